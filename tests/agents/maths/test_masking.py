"""Tests of agents/maths/masking.py."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agents.maths.masking import check_same_shape, masked_mean, masked_sum, whiten

MASK = torch.tensor([[True, True, False], [True, False, False]])


def test_masked_sum_and_mean_by_hand() -> None:
    values = torch.tensor([[1.0, 2.0, 99.0], [6.0, 99.0, 99.0]])
    # Rows: 1 + 2 and 6. All of it: (1 + 2 + 6) / 3.
    assert masked_sum(values, MASK).tolist() == [3.0, 6.0]
    assert masked_mean(values, MASK).item() == 3.0


def test_not_a_number_outside_the_mask_is_never_read() -> None:
    values = torch.tensor([[1.0, 2.0, math.nan], [6.0, math.inf, math.nan]])
    assert masked_sum(values, MASK).tolist() == [3.0, 6.0]
    assert masked_mean(values, MASK).item() == 3.0
    assert torch.isfinite(whiten(values, MASK)[0]).all()


def test_whiten_by_hand() -> None:
    # 1, 2, 6: mean 3, variance with n - 1 = (4 + 1 + 9) / 2 = 7.
    values = torch.tensor([[1.0, 2.0, 99.0], [6.0, 99.0, 99.0]], dtype=torch.float64)
    whitened, sigma = whiten(values, MASK)
    assert sigma.item() == pytest.approx(math.sqrt(7.0), rel=1e-8)
    expected = [[-2 / math.sqrt(7), -1 / math.sqrt(7), 0.0], [3 / math.sqrt(7), 0.0, 0.0]]
    assert torch.allclose(whitened, torch.tensor(expected, dtype=torch.float64), atol=1e-8)


def test_eps_is_added_to_the_variance() -> None:
    # 0 and 2: variance 2; with eps 7 the divisor is 3.
    mask = torch.ones(1, 2, dtype=torch.bool)
    whitened, sigma = whiten(torch.tensor([[0.0, 2.0]]), mask, eps=7.0)
    assert sigma.item() == pytest.approx(3.0)
    assert whitened[0].tolist() == pytest.approx([-1 / 3, 1 / 3])


# The float32 mean of 0.1 repeated leaves a residue; dividing by sqrt(1e-8) would make it 0.0001.
@given(value=st.floats(-1e6, 1e6, width=32), n=st.integers(1, 40))
def test_a_constant_becomes_exactly_zero(value: float, n: int) -> None:
    values = torch.full((1, n), value)
    whitened, sigma = whiten(values, torch.ones(1, n, dtype=torch.bool))
    assert torch.equal(whitened, torch.zeros(1, n))
    assert sigma.item() == 1.0


def test_whitening_nothing_gives_zeros_and_sigma_one() -> None:
    whitened, sigma = whiten(torch.ones(2, 3), torch.zeros(2, 3, dtype=torch.bool))
    assert torch.equal(whitened, torch.zeros(2, 3))
    assert sigma.item() == 1.0


@given(seed=st.integers(0, 10**6), rows=st.integers(1, 6), width=st.integers(2, 9))
def test_whitened_values_have_mean_zero_and_variance_one(seed: int, rows: int, width: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = 50.0 * torch.randn(rows, width, generator=generator, dtype=torch.float64) + 7.0
    mask = torch.rand(rows, width, generator=generator) < 0.7
    mask[0, :2] = True
    whitened, _ = whiten(values, mask)
    counted = whitened[mask]
    assert counted.mean().item() == pytest.approx(0.0, abs=1e-9)
    assert counted.var(unbiased=True).item() == pytest.approx(1.0, rel=1e-6)
    assert torch.equal(whitened[~mask], torch.zeros_like(whitened[~mask]))


def test_a_mean_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no token"):
        masked_mean(torch.ones(1, 2), torch.zeros(1, 2, dtype=torch.bool))


def test_different_shapes_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"left \(2, 3\), right \(3,\)"):
        check_same_shape(left=torch.zeros(2, 3), right=torch.zeros(3))
    with pytest.raises(ValueError, match="share one shape"):
        masked_mean(torch.zeros(2, 3), torch.ones(1, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match="share one shape"):
        whiten(torch.zeros(2, 3), torch.ones(2, 1, dtype=torch.bool))
