"""Tests of agents/maths/diversity.py."""

from __future__ import annotations

import pytest

from agents.maths.diversity import distinct_n


def test_distinct_2_by_hand() -> None:
    # Bigrams (1 2) (2 1) (1 2) and, pooled, (1 2) again: 2 different of 4.
    assert distinct_n([(1, 2, 1, 2), (1, 2)]) == pytest.approx(0.5)


def test_grams_do_not_reach_over_the_end_of_a_response() -> None:
    assert distinct_n([(1, 2), (3, 4)]) == 1.0  # (2 3) is none


def test_other_lengths() -> None:
    assert distinct_n([(1, 1, 1)], 1) == pytest.approx(1 / 3)
    assert distinct_n([(1, 1, 1, 1)], 3) == pytest.approx(1 / 2)


def test_no_gram_at_all_is_none() -> None:
    assert distinct_n([(1,), ()]) is None
    assert distinct_n([]) is None


def test_a_length_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="n must be at least 1"):
        distinct_n([(1, 2)], 0)
