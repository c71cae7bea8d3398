"""Tests of cory_env/tasks/imdb.py: every published format gives the same openings."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from cory_env import cory_v0
from cory_env.data_files import SPLITS
from cory_env.records import Query
from cory_env.tasks.imdb import ImdbTask, opening_length
from cory_env.tasks.reviews import ReviewsTask
from tests.cory_env.data_files.test_parquet import table
from tests.cory_env.tasks.small_data import review, review_rows, write_jsonl

TRAIN, TEST = range(40), range(40, 60)


def acl(folder: Path) -> Path:
    for part, numbers in (("train", TRAIN), ("test", TEST)):
        for i in numbers:
            path = folder / part / ("pos", "neg")[i % 2] / f"{i}_5.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(review(i), encoding="utf-8")
    unrated = folder / "train" / "unsup" / "0_0.txt"
    unrated.parent.mkdir()
    unrated.write_text(review(99))
    return folder


def write_csv(path: Path, numbers: range) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, ("review", "sentiment"))
        writer.writeheader()
        writer.writerows(review_rows(numbers))
    return path


def csv_folder(folder: Path) -> Path:
    write_csv(folder / "train.csv", TRAIN)
    write_csv(folder / "test.csv", TEST)
    return folder


def parquet(folder: Path) -> Path:
    """As on the hub: text and label, and the unrated reviews in a split of their own."""
    for part, numbers in (("train", TRAIN), ("test", TEST), ("unsupervised", range(99, 100))):
        table(
            folder / "plain_text" / f"{part}-00000-of-00001.parquet",
            text=[review(i) for i in numbers],
            label=[i % 2 for i in numbers],
        )
    return folder


def jsonl(folder: Path) -> Path:
    write_jsonl(folder / "train.jsonl", review_rows(TRAIN))
    write_jsonl(folder / "test.jsonl", review_rows(TEST))
    return folder


def texts(data: Path) -> dict[str, list[str]]:
    task = ImdbTask(data=data)
    return {split: sorted(query.text for query in task.queries(split)) for split in SPLITS}


@pytest.mark.parametrize("write", [acl, csv_folder, parquet, jsonl])
def test_every_published_format_gives_the_same_openings(write: Any, tmp_path: Path) -> None:
    found = texts(write(tmp_path / "data"))
    plain = {i: review(i).replace("<br /><br />", " ") for i in range(60)}
    expected = {i: " ".join(text.split()[: opening_length(text)]) for i, text in plain.items()}
    # The shortest openings are such as `Review 7`: all differ by their number.
    assert found["test"] == sorted(expected[i] for i in TEST)
    assert sorted([*found["train"], *found["validation"]]) == sorted(expected[i] for i in TRAIN)
    assert len(found["validation"]) >= 1


def test_one_file_is_split_by_the_hash(tmp_path: Path) -> None:
    found = texts(write_csv(tmp_path / "imdb.csv", range(60)))
    assert sum(map(len, found.values())) == 60
    assert len(found["train"]) > 40


def test_openings_are_two_to_seven_words_and_as_frequent() -> None:
    lengths = [opening_length(f"a review {i}") for i in range(6000)]
    # binomial: 1000 each, standard deviation 29; four of them
    assert all(abs(lengths.count(n) - 1000) < 116 for n in range(2, 8))
    assert set(lengths) == set(range(2, 8))


def test_the_length_of_an_opening_for_ever() -> None:
    # written down once: sha256 of "imdb/opening/" and the review, first eight bytes, modulo 6, + 2
    assert [opening_length(text) for text in ("a", "b", "c")] == [6, 3, 3]


def one(tmp_path: Path, *reviews: str) -> list[Query]:
    path = write_jsonl(tmp_path / "r.jsonl", [{"review": text, "label": 1} for text in reviews])
    task = ImdbTask(data=path)
    return [query for split in SPLITS for query in some(task, split)]


def some(task: ImdbTask, split: str) -> tuple[Query, ...]:
    try:
        return task.queries(split)
    except ValueError:
        return ()


def test_marks_become_spaces_and_the_label_is_kept(tmp_path: Path) -> None:
    (query,) = one(tmp_path, "One<br />two<br /><br />three four  five\nsix " + "x" * 200)
    words = ["One", "two", "three", "four", "five", "six", "x" * 200]
    assert query.text in {" ".join(words[:n]) for n in range(2, 8)}
    assert query.metadata == {"label": 1, "line": 1}


def test_only_reviews_of_more_than_200_characters_count(tmp_path: Path) -> None:
    enough = "one two three four five six seven " + "x" * 167  # 34 + 167 = 201
    assert len(one(tmp_path, enough)) == 1
    message = r"none of its rows is a review of more than 200 characters"
    task = ImdbTask(data=write_jsonl(tmp_path / "s.jsonl", [{"review": enough[:-1]}]))
    with pytest.raises(ValueError, match=rf"s\.jsonl: {message}"):
        task.queries("train")


def test_an_opening_is_one_query_and_in_one_split(tmp_path: Path) -> None:
    # The same review in train and test, and twice in train.
    write_jsonl(tmp_path / "d/train.jsonl", review_rows(range(30)) * 2)
    write_jsonl(tmp_path / "d/test.jsonl", review_rows(range(10)))
    found = texts(tmp_path / "d")
    assert len(found["test"]) == 10
    assert len(found["train"]) + len(found["validation"]) == 20
    assert len({text for split in SPLITS for text in found[split]}) == 30


@pytest.mark.case(27)
def test_prompts_written_out() -> None:
    task, reviews, query = ImdbTask(), ReviewsTask(), Query("The plot")
    assert task.prompt("pioneer", query, ()) == "The plot"
    assert task.prompt("observer", query, (" is thin.",)) == (
        'I can make this sentence "The plot is thin." more positive: The plot'
    )
    # One template: what changes in one task changes in the other.
    earlier = (" is thin.", " works")
    assert task.prompt("observer_2", query, earlier) == reviews.prompt("observer_2", query, earlier)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"text_": "a"}], r"r\.jsonl, line 1: no 'review' or 'text', got keys \['text_'\]"),
        ([{"review": None}], r"r\.jsonl, line 1: 'review' must be text, got None"),
        ([*review_rows(range(1)), {"review": 3}], r"line 2: 'review' must be text, got 3"),
    ],
)
def test_another_format_or_a_broken_line_is_named(
    rows: list[dict[str, Any]], message: str, tmp_path: Path
) -> None:
    task = ImdbTask(data=write_jsonl(tmp_path / "r.jsonl", rows))
    with pytest.raises(ValueError, match=message):
        task.queries("train")


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pos").mkdir()
    with pytest.raises(ValueError, match="no data files that name their split"):
        ImdbTask(data=tmp_path).queries("train")


def test_the_environment_plays_with_the_byte_level_tokenizer_or_a_given_one(
    tmp_path: Path,
) -> None:
    data = write_csv(tmp_path / "imdb.csv", range(60))
    env = cory_v0.env("imdb", data=data, reward="vader", split="test")
    env.reset(seed=0)
    assert env.unwrapped.episode.query.text.startswith("Review")
    given = ReviewsTask().tokenizer()
    assert cory_v0.env("imdb", data=data, reward="vader", tokenizer=given).unwrapped.rules
    assert env.unwrapped.rules.task.completion
