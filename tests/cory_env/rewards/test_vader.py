"""Tests of cory_env/rewards/vader.py."""

from __future__ import annotations

import pytest

from cory_env.records import Query
from cory_env.rewards.vader import VaderReward


def test_the_query_counts_as_well_as_the_response() -> None:
    # VADER: compound = x / sqrt(x^2 + 15); its list rates "great" 3.1 and "bad" -2.5, so one of
    # them gives 3.1 / sqrt(24.61) = 0.6249 and -2.5 / sqrt(21.25) = -0.5423, rounded there.
    queries = [Query("The film is"), Query("A great"), Query("The film is"), Query("The film")]
    scores = VaderReward()(queries, [" great", " film", " bad", " is"])
    assert scores == pytest.approx([0.6249, 0.6249, -0.5423, 0.0], abs=1e-4)


def test_texts_are_joined_as_they_are() -> None:
    # "gre" + "at" makes the rated word; with a space between there would be none.
    assert VaderReward()([Query("so gre")], ["at"])[0] > 0.5
    assert VaderReward()([Query("so gre")], [" at"]) == [0.0]


def test_an_empty_text_scores_zero() -> None:
    assert VaderReward()([Query("")], [""]) == [0.0]
