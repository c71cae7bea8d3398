"""Tests of agents/maths/baselines.py."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from agents.maths.baselines import (
    check_groups,
    compared,
    group_deviation,
    group_mean,
    is_constant,
    kept_best,
    leave_one_out,
    leave_one_out_max,
    moving,
)

# Two groups whose rows are mixed: 5 with values 1, 2, 6 and 9 with values 10, 14.
VALUES = torch.tensor([1.0, 10.0, 2.0, 14.0, 6.0], dtype=torch.float64)
GROUP = torch.tensor([5, 9, 5, 9, 5])


def test_means_by_hand() -> None:
    assert group_mean(VALUES, GROUP).tolist() == [3.0, 12.0, 3.0, 12.0, 3.0]
    # (2 + 6) / 2, 14, (1 + 6) / 2, 10, (1 + 2) / 2.
    assert leave_one_out(VALUES, GROUP).tolist() == [4.0, 14.0, 3.5, 10.0, 1.5]
    assert leave_one_out_max(VALUES, GROUP).tolist() == [6.0, 14.0, 6.0, 10.0, 2.0]


def test_columns_are_averaged_one_by_one() -> None:
    values = torch.stack([VALUES, -VALUES], dim=1)
    expected = torch.stack([leave_one_out(VALUES, GROUP), -leave_one_out(VALUES, GROUP)], dim=1)
    assert torch.equal(leave_one_out(values, GROUP), expected)


def test_deviations_by_hand() -> None:
    # 1, 2, 6: squares 4, 1, 9 over 2: sqrt 7. 10, 14: 4 + 4 over 1: sqrt 8.
    expected = [math.sqrt(n) for n in (7, 8, 7, 8, 7)]
    assert group_deviation(VALUES, GROUP).tolist() == pytest.approx(expected)
    assert group_deviation(torch.ones(4), torch.tensor([0, 0, 1, 1])).tolist() == [1.0] * 4


groups = st.integers(2, 5).flatmap(
    lambda n: st.lists(
        st.tuples(st.integers(0, 2), st.floats(-100, 100)), min_size=2 * n, max_size=4 * n
    )
)


@pytest.mark.case(42)
@given(groups)
def test_leave_one_out_is_the_mean_of_the_others_by_brute_force(
    rows: list[tuple[int, float]],
) -> None:
    rows = rows + rows  # so that no group has a single row
    group = torch.tensor([g for g, _ in rows])
    values = torch.tensor([v for _, v in rows], dtype=torch.float64)
    got, largest = leave_one_out(values, group), leave_one_out_max(values, group)
    for i, (own, _) in enumerate(rows):
        others = [v for j, (g, v) in enumerate(rows) if g == own and j != i]
        assert got[i].item() == pytest.approx(sum(others) / len(others), abs=1e-9)
        assert largest[i].item() == max(others)
        # It does not depend on the row's own value.
        changed = values.clone()
        changed[i] += 17.0
        assert leave_one_out(changed, group)[i].item() == pytest.approx(got[i].item(), abs=1e-9)


@pytest.mark.case(42)
def test_the_other_way_to_write_it_agrees() -> None:
    # G / (G - 1) times the distance from the mean of all.
    g = torch.tensor([3.0, 2.0, 3.0, 2.0, 3.0], dtype=torch.float64)
    other = g / (g - 1) * (VALUES - group_mean(VALUES, GROUP))
    assert torch.allclose(VALUES - leave_one_out(VALUES, GROUP), other, atol=1e-12)


@pytest.mark.case(42)
@pytest.mark.parametrize("baseline", [leave_one_out, leave_one_out_max, group_deviation])
def test_a_group_of_one_is_refused(baseline: object) -> None:
    assert callable(baseline)
    with pytest.raises(ValueError, match="at least 2 responses to be compared, got one of 1"):
        baseline(VALUES[:3], GROUP[:3])
    check_groups(GROUP[:3], least=1)


@given(st.floats(-1e3, 1e3, width=32), st.integers(2, 9))
def test_a_constant_group_has_no_advantage_at_all(value: float, size: int) -> None:
    values = torch.full((size,), value, dtype=torch.float32)
    group = torch.zeros(size, dtype=torch.int64)
    assert compared(values, leave_one_out(values, group), group).tolist() == [0.0] * size
    assert compared(values, group_mean(values, group), group).tolist() == [0.0] * size


def test_the_mean_alone_would_leave_a_residue() -> None:
    residues = 0
    for size in range(2, 20):
        values = torch.full((size,), 0.1, dtype=torch.float32)
        group = torch.zeros(size, dtype=torch.int64)
        residues += bool((values - group_mean(values, group)).abs().max() > 0)
        assert is_constant(values, group).all()
    assert residues


def test_a_constant_group_beside_another() -> None:
    values = torch.tensor([0.1, 0.1, 0.0, 1.0])
    group = torch.tensor([7, 7, 8, 8])
    assert is_constant(values, group).tolist() == [True, True, False, False]
    assert compared(values, leave_one_out(values, group), group).tolist() == [0, 0, -1, 1]


@pytest.mark.parametrize(
    ("share", "kept"),
    [
        # Of three 0.75, 1.5, 3 rows; of two 0.5, 1, 2.
        (0.25, [4, 3]),
        (0.5, [2, 3, 4]),
        (0.0, [4, 3]),
        (1.0, [0, 1, 2, 3, 4]),
    ],
)
def test_the_best_of_each_group(share: float, kept: list[int]) -> None:
    rows = kept_best(VALUES, GROUP, share).nonzero().squeeze(-1).tolist()
    assert rows == sorted(kept)


def test_of_equal_ones_the_earlier_is_kept() -> None:
    values = torch.tensor([0.0, 1.0, 1.0, 1.0])
    group = torch.zeros(4, dtype=torch.int64)
    assert kept_best(values, group, 0.25).tolist() == [False, True, False, False]


def test_the_moving_mean() -> None:
    batch = torch.tensor([1.0, 3.0])
    assert moving(None, batch, 0.9) == 2.0
    assert moving(10.0, batch, 0.9) == pytest.approx(0.9 * 10 + 0.1 * 2)
    assert moving(10.0, batch[:0], 0.9) == 10.0
    assert moving(None, batch[:0], 0.9) is None


def test_no_rows_are_no_groups() -> None:
    none: Tensor = VALUES[:0]
    assert leave_one_out(none, GROUP[:0]).tolist() == []
    assert kept_best(none, GROUP[:0], 0.5).tolist() == []
