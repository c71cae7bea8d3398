"""Tests of cory_env/special_tokens.py."""

from __future__ import annotations

import pytest

from cory_env.special_tokens import SpecialTokens

TOKENS = SpecialTokens(
    names={0: "<s>", 1: "</s>", 2: "<unk>", 3: "<think>", 4: "|", 5: "<s><s>"},
    special=frozenset({0, 1, 2, 4, 5}),
    unknown=frozenset({2}),
)


def test_special_tokens_among_ids_keep_their_order() -> None:
    # 2 is what unknown text becomes, 3 is not special, and the name of 4 is one sign of any text
    assert TOKENS.among([9, 1, 2, 3, 4, 0, 5, 1]) == (1, 0, 5, 1)


@pytest.mark.parametrize(
    ("text", "spelled"),
    [("a </s>", True), ("<unk>", True), ("< /s>", False), ("|", False), ("<think>", False)],
)
def test_whether_a_name_is_in_a_text(text: str, spelled: bool) -> None:
    assert TOKENS.spelled_in(text) is spelled


@pytest.mark.parametrize(
    ("spans", "cuts"),
    [
        ([], []),
        ([(0, 1)], []),  # "a"
        ([(0, 2)], [2]),  # "a<": the template writes the rest of the name
        ([(3, 4)], [2]),
        ([(4, 9)], [5]),  # the second name
        ([(0, 8)], [2, 5]),
    ],
)
def test_names_are_cut_behind_their_first_sign_where_a_span_wrote_a_part(
    spans: list[tuple[int, int]], cuts: list[int]
) -> None:
    #   a <s> </s> b
    #   0 123 4567 8
    assert list(TOKENS.cuts("a<s></s>b", spans)) == cuts


def test_names_inside_one_another_are_all_cut() -> None:
    # "<s><s>" begins at 0, and the "<s>" at its end at 3
    assert list(TOKENS.cuts("<s><s>", [(0, 6)])) == [1, 4]


def test_without_added_tokens_nothing_is_special() -> None:
    assert SpecialTokens().among([0, 1]) == ()
    assert not SpecialTokens().spelled_in("<s>")
    assert list(SpecialTokens().cuts("<s>", [(0, 3)])) == []
