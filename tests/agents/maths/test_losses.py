"""Tests of agents/maths/losses.py."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agents.maths.losses import (
    clipped_policy_loss,
    explained_variance,
    ratio_statistics,
    value_loss,
)

MASK = torch.tensor([[True, True, False]])  # two response tokens, one pad
OLD = torch.zeros(1, 3)
ADVANTAGES = torch.tensor([[1.0, -2.0, 99.0]])


def test_clipped_policy_loss_known_answer() -> None:
    # Ratios 1.5 and 1.0, advantages +1 and -2, clip 0.2: mean(-1.2, +2.0) = 0.4.
    new = torch.tensor([[math.log(1.5), 0.0, 9.0]])
    loss = clipped_policy_loss(new, OLD, ADVANTAGES, MASK, clip_coef=0.2)
    assert loss.item() == pytest.approx(0.4)


def test_the_clip_is_pessimistic() -> None:
    # Ratio 0.5 with advantage +1 is not clipped (-0.5), with -2 it is (0.8 * 2 = 1.6).
    new = torch.full((1, 3), math.log(0.5))
    loss = clipped_policy_loss(new, OLD, ADVANTAGES, MASK, clip_coef=0.2)
    assert loss.item() == pytest.approx((-0.5 + 1.6) / 2)


@pytest.mark.case(14)
def test_no_gradient_reaches_padding_or_clipped_tokens() -> None:
    new = torch.tensor([[math.log(1.5), 0.0, 9.0]], requires_grad=True)
    clipped_policy_loss(new, OLD, ADVANTAGES, MASK, clip_coef=0.2).backward()
    assert new.grad is not None
    # Token 1 has ratio 1: d (-A ratio) / d log-prob = 2, over two tokens.
    assert new.grad.tolist() == [[0.0, 1.0, 0.0]]


@pytest.mark.parametrize("junk", [1e4, math.inf, math.nan])
def test_padding_of_any_size_gives_no_gradient(junk: float) -> None:
    new = torch.tensor([[0.1, -0.1, junk]], requires_grad=True)
    clipped_policy_loss(new, OLD, ADVANTAGES, MASK, clip_coef=0.2).backward()
    assert new.grad is not None
    assert torch.isfinite(new.grad).all()
    assert new.grad[0, 2] == 0.0


@pytest.mark.case(14)
@given(pad=st.floats(-50, 50))
def test_padding_content_is_ignored(pad: float) -> None:
    a = torch.tensor([[0.1, -0.1, 0.0]])
    b = torch.tensor([[0.1, -0.1, pad]])
    assert torch.equal(
        clipped_policy_loss(a, OLD, ADVANTAGES, MASK, clip_coef=0.2),
        clipped_policy_loss(b, OLD, ADVANTAGES, MASK, clip_coef=0.2),
    )
    assert torch.equal(value_loss(a, OLD, OLD, MASK), value_loss(b, OLD, OLD, MASK))
    for one, two in zip(
        ratio_statistics(a, OLD, MASK, clip_coef=0.2),
        ratio_statistics(b, OLD, MASK, clip_coef=0.2),
        strict=True,
    ):
        assert torch.equal(one, two)


def test_rejects_a_mask_without_tokens() -> None:
    with pytest.raises(ValueError, match="no token"):
        clipped_policy_loss(OLD, OLD, ADVANTAGES, torch.zeros_like(MASK), clip_coef=0.2)


def test_rejects_shapes_that_would_broadcast() -> None:
    with pytest.raises(ValueError, match=r"old_logprobs \(3,\)"):
        clipped_policy_loss(OLD, OLD[0], ADVANTAGES, MASK, clip_coef=0.2)
    with pytest.raises(ValueError, match=r"returns \(3,\)"):
        value_loss(OLD, OLD, OLD[0], MASK)


def test_value_loss_known_answer() -> None:
    # Errors 1 and 2: mean(1, 4) = 2.5, without the 1/2 of other libraries.
    values = torch.tensor([[1.0, 2.0, 50.0]])
    assert value_loss(values, OLD, torch.zeros(1, 3), MASK).item() == pytest.approx(2.5)


def test_value_clip_takes_the_larger_error() -> None:
    # Old 0, clip 0.5. Value 1, target 2: near = .5, errors 1 and 2.25 -> 2.25.
    # Value 0.2, target 1: near = .2, both .64.
    values = torch.tensor([[1.0, 0.2, 50.0]])
    returns = torch.tensor([[2.0, 1.0, 0.0]])
    loss = value_loss(values, OLD, returns, MASK, value_clip=0.5)
    assert loss.item() == pytest.approx((2.25 + 0.64) / 2)


def test_value_clip_stops_the_gradient_of_a_critic_that_has_moved_far_enough() -> None:
    values = torch.tensor([[1.0, 0.2, 50.0]], requires_grad=True)
    value_loss(values, OLD, torch.tensor([[2.0, 1.0, 0.0]]), MASK, value_clip=0.5).backward()
    assert values.grad is not None
    # Token 1: d (0.2 - 1)^2 / d value = -1.6, over two tokens.
    assert values.grad[0].tolist() == pytest.approx([0.0, -0.8, 0.0])


def test_ratio_statistics_by_hand() -> None:
    # Ratios 1.5 and 0.9. k3: (.5 - log 1.5 + -.1 - log .9) / 2; one of two left the range of .2.
    new = torch.tensor([[math.log(1.5), math.log(0.9), 7.0]])
    approx_kl, clip_fraction = ratio_statistics(new, OLD, MASK, clip_coef=0.2)
    expected = (0.5 - math.log(1.5) - 0.1 - math.log(0.9)) / 2
    assert approx_kl.item() == pytest.approx(expected, rel=1e-5)
    assert clip_fraction.item() == 0.5


def test_nothing_has_moved_before_an_update() -> None:
    approx_kl, clip_fraction = ratio_statistics(OLD, OLD, MASK, clip_coef=0.2)
    assert approx_kl.item() == clip_fraction.item() == 0.0


def test_explained_variance_by_hand() -> None:
    # Returns 0, 2 (variance 2); values 0, 1: errors 0, 1 (variance 1/2): 1 - 1/4.
    returns, values = torch.tensor([[0.0, 2.0, 9.0]]), torch.tensor([[0.0, 1.0, -9.0]])
    assert explained_variance(values, returns, MASK) == pytest.approx(0.75)
    assert explained_variance(returns, returns, MASK) == pytest.approx(1.0)


def test_explained_variance_of_constant_or_single_returns_is_none() -> None:
    assert explained_variance(OLD, torch.ones(1, 3), MASK) is None
    one = torch.tensor([[True, False, False]])
    assert explained_variance(OLD, ADVANTAGES, one) is None
