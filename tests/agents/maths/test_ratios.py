"""Tests of agents/maths/ratios.py."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from agents.maths.losses import clipped_policy_loss
from agents.maths.ratios import (
    clipped_sequence_loss,
    effective_sample_size,
    next_factor,
    sequence_log_ratio,
)

MASK = torch.tensor([[True, True], [True, False]])
OLD = torch.tensor([[-1.0, -2.0], [-0.5, 0.0]], dtype=torch.float64)
# Two tokens that became e^.1 and e^.3 times as likely; one that became e^-.6 times as likely.
NEW = OLD + torch.tensor([[0.1, 0.3], [-0.6, 0.0]], dtype=torch.float64)


def test_the_log_ratio_of_a_response_is_the_mean_over_its_tokens() -> None:
    noise = torch.where(MASK, 0.0, 99.0)
    got = sequence_log_ratio(NEW + noise, OLD, MASK)
    assert got.tolist() == pytest.approx([0.2, -0.6])
    empty = torch.zeros(1, 2, dtype=torch.bool)
    assert sequence_log_ratio(NEW[:1], OLD[:1], empty).tolist() == [0.0]


def loss_and_gradient(advantages: Tensor, clip: float) -> tuple[float, Tensor]:
    new = NEW.clone().requires_grad_()
    loss = clipped_sequence_loss(new, OLD, advantages, MASK, clip_coef=clip)
    (gradient,) = torch.autograd.grad(loss, new)
    return loss.item(), gradient


def test_the_sequence_loss_by_hand() -> None:
    # Ratios e^.2 = 1.221 and e^-.6 = .549, clip .5: neither leaves [.5, 1.5]. Three tokens.
    advantages = torch.tensor([[1.0, 1.0], [2.0, 0.0]], dtype=torch.float64)
    loss, gradient = loss_and_gradient(advantages, 0.5)
    assert loss == pytest.approx(-(2 * math.exp(0.2) + 2 * math.exp(-0.6)) / 3)
    expected = [[-math.exp(0.2) / 3, -math.exp(0.2) / 3], [-2 * math.exp(-0.6) / 3, 0.0]]
    assert gradient.tolist() == [pytest.approx(row) for row in expected]


def test_the_sequence_loss_clips_whole_responses() -> None:
    # Clip .1: 1.221 is cut to 1.1 for a positive advantage, .549 to .9 for a negative one.
    advantages = torch.tensor([[1.0, 1.0], [-2.0, 0.0]], dtype=torch.float64)
    loss, gradient = loss_and_gradient(advantages, 0.1)
    assert loss == pytest.approx((-2 * 1.1 + 2 * 0.9) / 3)
    assert gradient.abs().max() == 0.0
    # For the other sign they are not cut: min(rho A, clip(rho) A) is the free side.
    _, gradient = loss_and_gradient(-advantages, 0.1)
    assert bool((gradient[MASK] != 0).all())


def test_the_first_step_is_that_of_the_tokens() -> None:
    advantages = torch.tensor([[1.0, -0.5], [-2.0, 0.0]], dtype=torch.float64)
    found = []
    for loss in (clipped_sequence_loss, clipped_policy_loss):
        now = OLD.clone().requires_grad_()
        value = loss(now, OLD, advantages, MASK, clip_coef=0.2)
        found.append((value.item(), torch.autograd.grad(value, now)[0]))
    assert found[0][0] == pytest.approx(found[1][0])
    assert torch.allclose(found[0][1], found[1][1], atol=1e-15)


@pytest.mark.case(47)
def test_the_factor_of_three_agents_by_hand() -> None:
    # First agent: log-ratios .1 + .3 and -.6. Second: the same again.
    one = torch.ones(2, dtype=torch.float64)
    factor, clamped = next_factor(one, NEW, OLD, MASK)
    assert factor.tolist() == pytest.approx([math.exp(0.4), math.exp(-0.6)])
    assert clamped.tolist() == [False, False]
    factor, clamped = next_factor(factor, NEW, OLD, MASK)
    assert factor.tolist() == pytest.approx([math.exp(0.8), math.exp(-1.2)])
    # Twice as far: each agent's part is kept within a factor of two.
    factor, clamped = next_factor(one, OLD + 2 * (NEW - OLD), OLD, MASK)
    assert factor.tolist() == pytest.approx([2.0, 0.5])
    assert clamped.tolist() == [True, True]


@pytest.mark.case(47)
def test_the_factor_is_a_number() -> None:
    new = NEW.clone().requires_grad_()
    factor, _ = next_factor(torch.ones(2, dtype=torch.float64), new, OLD, MASK)
    assert not factor.requires_grad


def test_the_factor_is_of_the_whole_response_however_long() -> None:
    # No mean over tokens: ten tokens of .05 make e^.5.
    mask = torch.ones(1, 10, dtype=torch.bool)
    old = torch.zeros(1, 10, dtype=torch.float64)
    factor, _ = next_factor(torch.ones(1, dtype=torch.float64), old + 0.05, old, mask)
    assert factor.item() == pytest.approx(math.exp(0.5))


def test_the_effective_sample_size() -> None:
    assert effective_sample_size(torch.full((4,), 3.0)) == pytest.approx(1.0)
    # Weights 1 and 3: 2^2 / 5.
    assert effective_sample_size(torch.tensor([1.0, 3.0])) == pytest.approx(0.8)
