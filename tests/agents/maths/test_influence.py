"""Tests of agents/maths/influence.py."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.maths.influence import influence_from_scores


def test_known_answer_by_hand() -> None:
    # One query, two first responses, two second ones to each: (0, 2) and (4, 6).
    # Within: both variances are 2, W = 2. Group means 1 and 5 have variance 8, B = 2 * 8 = 16.
    # Explained (16 - 2) / 2 = 7, total 7 + 2 = 9.
    assert influence_from_scores(np.array([[[0.0, 2.0], [4.0, 6.0]]])) == pytest.approx(7 / 9)


def test_variances_are_averaged_over_queries_before_the_ratio() -> None:
    # The second query has no variance at all: it halves numerator and denominator alike.
    r2 = np.array([[[0.0, 2.0], [4.0, 6.0]], [[3.0, 3.0], [3.0, 3.0]]])
    assert influence_from_scores(r2) == pytest.approx(7 / 9)


def test_the_difference_between_queries_is_no_influence() -> None:
    # Queries differ by 100; within each the same (0, 2) stands twice: W = 2, B = 0, so the
    # estimate is (0 - 2) / 2 = -1 over -1 + 2 = 1.
    r2 = np.array([[[0.0, 2.0], [0.0, 2.0]], [[100.0, 102.0], [100.0, 102.0]]])
    assert influence_from_scores(r2) == pytest.approx(-1.0)


def test_full_influence_is_one() -> None:
    r2 = np.array([[[1.0, 1.0, 1.0], [5.0, 5.0, 5.0]]])
    assert influence_from_scores(r2) == pytest.approx(1.0)


def test_constant_scores_give_zero() -> None:
    assert influence_from_scores(np.full((3, 4, 5), 0.1)) == 0.0


def test_the_noise_of_the_inner_mean_does_not_count() -> None:
    # Pure noise: the plain variance of means of 2 draws would be half of the total.
    r2 = np.random.default_rng(0).normal(size=(4000, 4, 2))
    assert abs(influence_from_scores(r2)) < 0.03


def test_a_planted_share_is_recovered() -> None:
    # Variance 1 of the first response, 3 left: I = 0.25.
    rng = np.random.default_rng(1)
    r2 = rng.normal(size=(4000, 6, 1)) + np.sqrt(3.0) * rng.normal(size=(4000, 6, 6))
    assert influence_from_scores(r2) == pytest.approx(0.25, abs=0.02)


@given(
    seed=st.integers(0, 10**6),
    shift=st.floats(-100, 100),
    scale=st.floats(0.01, 100),
)
def test_shift_scale_and_order_do_not_matter(seed: int, shift: float, scale: float) -> None:
    rng = np.random.default_rng(seed)
    r2 = rng.normal(size=(3, 4, 5))
    expected = influence_from_scores(r2)
    moved = scale * rng.permuted(r2, axis=2)[:, rng.permutation(4)] + shift
    assert influence_from_scores(moved) == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert expected <= 1.0


@pytest.mark.parametrize("shape", [(4, 3), (0, 3, 3), (2, 1, 3), (2, 3, 1)])
def test_shapes_without_an_estimate_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="r2 must be"):
        influence_from_scores(np.zeros(shape))


def test_scores_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        influence_from_scores(np.full((1, 2, 2), np.nan))
