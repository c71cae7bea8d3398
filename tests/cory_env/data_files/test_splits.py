"""Tests of cory_env/data_files/splits.py: no text is ever in two splits."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cory_env.data_files.splits import (
    SPLITS,
    check_split,
    split_as_published,
    split_by_hash,
    split_of,
)
from cory_env.records import Query

# sha256 of the text, first eight bytes, modulo 10: 0-7, 8, 9
TRAIN, VALIDATION, TEST = "0", "11", "6"

TEXTS = st.lists(st.sampled_from([str(i) for i in range(40)]))
PARTS = st.dictionaries(st.sampled_from(SPLITS), TEXTS.map(lambda ts: [Query(t) for t in ts]))


def texts(parts: dict[str, tuple[Query, ...]]) -> dict[str, list[str]]:
    return {split: [query.text for query in queries] for split, queries in parts.items()}


def test_one_list_goes_by_the_hash_in_its_order() -> None:
    queries = [Query(text) for text in (TEST, TRAIN, VALIDATION, TRAIN, "1")]
    assert split_of("1") == "train"
    assert texts(split_by_hash(queries)) == {
        "train": [TRAIN, TRAIN, "1"],
        "validation": [VALIDATION],
        "test": [TEST],
    }


def test_validation_is_cut_from_the_published_train() -> None:
    parts = {"train": [Query(TRAIN), Query(VALIDATION), Query(TEST)], "test": [Query("x")]}
    # A text that a lone file would put into test stays in train: the test was published.
    assert texts(split_as_published(parts)) == {
        "test": ["x"],
        "validation": [VALIDATION],
        "train": [TRAIN, TEST],
    }


def test_a_published_validation_split_stays() -> None:
    parts = {"train": [Query(VALIDATION), Query("v")], "validation": [Query("v")]}
    assert texts(split_as_published(parts)) == {"validation": ["v"], "train": [VALIDATION]}


def test_what_is_held_out_leaves_the_others() -> None:
    parts = {
        "train": [Query("a"), Query("b"), Query("c"), Query("a")],
        "validation": [Query("b"), Query("c")],
        "test": [Query("c"), Query("c")],
    }
    assert texts(split_as_published(parts)) == {
        "test": ["c", "c"],
        "validation": ["b"],
        "train": ["a", "a"],
    }


def test_without_train_there_is_no_validation() -> None:
    assert texts(split_as_published({"test": [Query("a")]})) == {"test": ["a"]}


@given(PARTS)
def test_no_text_is_in_two_splits_and_none_is_lost(parts: dict[str, list[Query]]) -> None:
    found = split_as_published(parts)
    sets = [{query.text for query in queries} for queries in found.values()]
    assert sum(map(len, sets)) == len(set().union(*sets))
    given_texts = {query.text for query in chain.from_iterable(parts.values())}
    assert set().union(*sets) == given_texts
    assert [q.text for q in found.get("test", ())] == [q.text for q in parts.get("test", ())]


def test_an_unknown_split_is_refused() -> None:
    assert check_split("test") == "test"
    with pytest.raises(ValueError, match=r"split must be one of \['train', 'validation', 'test'\]"):
        check_split("dev")
