"""Tests of cory_env/rewards/target.py."""

from __future__ import annotations

import pytest

from cory_env.records import Query
from cory_env.rewards.target import FirstLetter


@pytest.mark.parametrize(
    ("response", "score"),
    [
        ("a", 1.0),
        ("a d", 1.0),  # what follows is free
        (" a", 1.0),
        ("d a", 0.0),  # only the first word counts
        ("ad", 0.0),
        ("? a", 0.0),
        ("| a", 0.0),
        ("", 0.0),
        ("A", 0.0),
    ],
)
def test_scores_known_answers(response: str, score: float) -> None:
    assert FirstLetter()([Query("a d", "a")], [response]) == [score]


def test_a_query_without_an_answer_is_never_right() -> None:
    assert FirstLetter()([Query("a d")], [""]) == [0.0]
