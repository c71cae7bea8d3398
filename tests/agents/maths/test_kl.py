"""Tests of agents/maths/kl.py."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agents.maths.kl import KLController, full_kl, k1, k3

P = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
Q = torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64)


@pytest.mark.case(6)
def test_full_kl_by_hand() -> None:
    # 1/2 log 2 + 1/4 log 1 + 1/4 log 1/2 = 1/4 log 2.
    assert full_kl(P.log(), Q.log()).item() == pytest.approx(0.25 * math.log(2), abs=1e-12)


def test_full_kl_keeps_the_axes_before_the_vocabulary() -> None:
    log_probs = torch.stack([P.log(), Q.log()]).unsqueeze(0)
    kl = full_kl(log_probs, Q.log().expand(1, 2, 3))
    assert kl.shape == (1, 2)
    assert kl[0, 1].item() == 0.0


def test_k1_and_k3_by_hand() -> None:
    # Drawn token 0: log-ratio d = log 2. k1 = log 2; k3 = 1/2 - 1 + log 2.
    logprobs, reference = torch.log(torch.tensor([[0.5]])), torch.log(torch.tensor([[0.25]]))
    assert k1(logprobs, reference).item() == pytest.approx(math.log(2))
    assert k3(logprobs, reference).item() == pytest.approx(math.log(2) - 0.5)


@pytest.mark.case(39)
def test_k1_and_k3_have_the_full_kl_as_their_mean() -> None:
    full = full_kl(P.log(), Q.log()).item()
    for estimate in (k1, k3):
        assert (P * estimate(P.log(), Q.log())).sum().item() == pytest.approx(full, abs=1e-12)


def logits_of(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(3, generator=generator, dtype=torch.float64)


@pytest.mark.case(39)
@given(seed=st.integers(0, 10**6))
def test_gradient_of_full_kl_is_that_of_its_definition(seed: int) -> None:
    # d KL / d logit_j = p_j (log p_j - log q_j - KL), on three tokens.
    logits = logits_of(seed).requires_grad_()
    reference = torch.log_softmax(logits_of(seed + 1), -1)
    full_kl(torch.log_softmax(logits, -1), reference).backward()
    assert logits.grad is not None
    log_p = torch.log_softmax(logits.detach(), -1)
    p = log_p.exp()
    definition = (p * (log_p - reference)).sum()
    by_hand = p * (log_p - reference - definition)
    assert torch.allclose(logits.grad, by_hand, atol=1e-12)
    assert full_kl(log_p, reference).item() == pytest.approx(definition.item(), abs=1e-15)


@pytest.mark.case(1)
@given(seed=st.integers(0, 10**6), scale=st.floats(0, 1e-6))
def test_full_kl_is_never_negative_and_zero_for_equals(seed: int, scale: float) -> None:
    # In float32 and near equality rounding alone would make many of these negative.
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(4, 30, generator=generator)
    near = logits + scale * torch.randn(4, 30, generator=generator)
    log_probs = torch.log_softmax(logits, -1)
    assert (full_kl(log_probs, torch.log_softmax(near, -1)) >= 0).all()
    assert torch.equal(full_kl(log_probs, log_probs), torch.zeros(4))


def test_clipping_at_zero_does_not_touch_the_gradient() -> None:
    # Not normalised on purpose: the "KL" is 0.5 * (log .5 - log 1) < 0, shown as 0. Its gradient
    # by log p is p (log p - log q) + p = 0.5 * (1 - log 2).
    log_prob = torch.tensor([math.log(0.5)], dtype=torch.float64, requires_grad=True)
    kl = full_kl(log_prob, torch.zeros(1, dtype=torch.float64))
    kl.backward()
    assert kl.item() == 0.0
    assert log_prob.grad is not None
    assert log_prob.grad.item() == pytest.approx(0.5 * (1 - math.log(2)))


@given(difference=st.floats(-20, 20))
def test_k3_is_never_negative(difference: float) -> None:
    value = k3(torch.zeros(1, 1, dtype=torch.float64), torch.full((1, 1), difference).double())
    assert value.item() >= 0.0


@pytest.mark.case(40)
def test_controller_by_hand() -> None:
    # Error clip(9 / 6 - 1) = +0.2; 500 responses of a horizon of 10,000: 0.3 * (1 + .2 * .05).
    controller = KLController(coef=0.3, target=6.0, horizon=10_000)
    controller.update(9.0, 500)
    assert controller.coef == pytest.approx(0.303)
    # 6.3 is 5 percent over: 0.303 * (1 + .05 * .05).
    controller.update(6.3, 500)
    assert controller.coef == pytest.approx(0.303 * 1.0025)
    # Nothing at all is clipped to -0.2.
    controller.coef = 1.0
    controller.update(0.0, 500)
    assert controller.coef == pytest.approx(0.99)


@pytest.mark.case(40)
def test_on_target_and_without_a_target_nothing_moves() -> None:
    on_target = KLController(coef=0.3, target=6.0)
    on_target.update(6.0, 500)
    assert on_target.coef == 0.3
    fixed = KLController(coef=0.3)
    fixed.update(1e9, 500)
    assert fixed.coef == 0.3


@pytest.mark.case(40)
@given(
    kl=st.floats(0, 1e6),
    target=st.floats(1e-3, 1e3),
    responses=st.integers(1, 10_000),
    horizon=st.integers(1, 10_000),
)
def test_one_step_moves_the_coefficient_by_at_most_a_fifth(
    kl: float, target: float, responses: int, horizon: int
) -> None:
    controller = KLController(coef=0.5, target=target, horizon=horizon)
    controller.update(kl, responses)
    assert 0.4 - 1e-12 <= controller.coef <= 0.6 + 1e-12
