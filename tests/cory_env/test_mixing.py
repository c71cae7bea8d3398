"""Tests of cory_env/mixing.py (case 46: one formula, W over seats)."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cory_env.mixing import MIXINGS, mixing

SCORES = np.array([1.0, 0.5, -2.0])


@pytest.mark.case(46)
@pytest.mark.parametrize(
    ("spec", "payoffs"),
    [
        ("sum", [-0.5, -0.5, -0.5]),
        ("own", [1.0, 0.5, -2.0]),
        # own minus the mean of the other two: 1 - (0.5 - 2)/2, 0.5 - (1 - 2)/2, -2 - (1 + 0.5)/2
        ("competitive", [1.75, 1.0, -2.75]),
        # seat i is paid sum_j W[i, j] * score_j: 1 + 2*0.5, 0.5, -2 + 3*1
        ([[1, 2, 0], [0, 1, 0], [3, 0, 1]], [2.0, 0.5, 1.0]),
        (lambda scores: scores[::-1], [-2.0, 0.5, 1.0]),
    ],
)
def test_payoffs_known_answers(spec: Any, payoffs: list[float]) -> None:
    assert mixing(spec, 3)(SCORES).tolist() == payoffs


def test_the_pioneer_of_cory_exact_is_paid_for_the_observer_and_not_the_other_way() -> None:
    assert mixing([[1, 1], [0, 1]], 2)(np.array([0.0, 1.0])).tolist() == [1.0, 1.0]
    assert mixing([[1, 1], [0, 1]], 2)(np.array([1.0, 0.0])).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("name", sorted(MIXINGS))
def test_one_agent_is_always_paid_its_own_score(name: str) -> None:
    assert mixing(name, 1)(np.array([0.7])).tolist() == [0.7]


def test_competitive_payoffs_of_two_sum_to_zero() -> None:
    assert mixing("competitive", 2)(np.array([0.25, 1.0])).tolist() == [-0.75, 0.75]


@given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3), min_size=1, max_size=9))
@pytest.mark.parametrize("spec", [*sorted(MIXINGS), np.arange(9.0).reshape(3, 3), np.cumsum])
def test_a_batch_gives_what_each_row_gives_bit_for_bit(spec: Any, rows: list[list[float]]) -> None:
    mix = mixing(spec, 3)
    batch = mix(np.array(rows))
    assert batch.shape == (len(rows), 3)
    for row, payoffs in zip(rows, batch, strict=True):
        assert np.array_equal(mix(np.array(row)), payoffs)


def test_a_callable_can_not_change_the_scores() -> None:
    def spoil(scores: Any) -> Any:
        scores[:] = 0.0
        return scores

    scores = np.array([1.0, 2.0])
    mixing(spoil, 2)(scores)
    assert scores.tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("team", "reward_mixing must be a matrix, a callable or one of"),
        ([[1.0]], "finite 2 x 2 matrix"),
        ([[1.0, float("nan")], [0.0, 1.0]], "finite 2 x 2 matrix"),
        ([[1.0, 2.0], [0.0]], "a matrix of numbers"),
        (None, "matrix"),
        (3, "2 x 2"),
    ],
)
def test_other_specs_are_refused(spec: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mixing(spec, 2)


@pytest.mark.parametrize("payoffs", [[1.0], [1.0, float("inf")], 1.0, [[1.0, 2.0]]])
def test_a_callable_that_gives_something_else_is_named(payoffs: Any) -> None:
    with pytest.raises(ValueError, match="reward_mixing must give 2 finite payoffs"):
        mixing(lambda _: payoffs, 2)(np.zeros(2))


@pytest.mark.filterwarnings("error")
def test_payoffs_that_overflow_print_no_warning() -> None:
    scores = np.array([1.5e308, 1.5e308])
    # Those of a matrix are refused by the episode, those of a function at once.
    assert mixing("sum", 2)(scores).tolist() == [np.inf, np.inf]
    with pytest.raises(ValueError, match="reward_mixing must give 2 finite payoffs"):
        mixing(lambda row: [row.sum()] * 2, 2)(scores)


def test_a_mixing_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(mixing("sum", 2)))(np.ones(2)).tolist() == [2.0, 2.0]
