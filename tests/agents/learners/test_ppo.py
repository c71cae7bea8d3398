"""Tests of agents/learners/ppo.py and kl_penalty.py."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from agents.bridge.learner import trimmed
from agents.learners import PPO
from agents.learners.kl_penalty import penalty_in_loss, penalty_in_reward
from agents.maths.kl import full_kl
from agents.maths.logprobs import log_softmax
from tests.agents.learners.toy import (
    PROMPT,
    RESPONSES,
    made_rollout,
    made_scored,
    prepared_of,
    toy_learner,
    toy_rollout,
)

ESTIMATORS = ["exact", "k1", "k3", "reference"]


# Where the KL enters the rewards.


@pytest.mark.case(38)
@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        # Weight 0.5. Full KL .2 .4 | .6; log-ratios -1 + 1.5, -.5 + .25 | -2 + 2.5.
        ("exact", [[0.1, 0.2], [0.3, 0.0]]),
        ("reference", [[0.1, 0.2], [0.3, 0.0]]),
        ("k1", [[0.25, -0.125], [0.25, 0.0]]),
        ("k3", [[0.0, 0.0], [0.0, 0.0]]),
    ],
)
def test_penalty_in_the_reward_by_hand(estimator: str, expected: list[list[float]]) -> None:
    got = penalty_in_reward(made_rollout(), estimator, 0.5)
    assert torch.allclose(got, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize(
    ("estimator", "advantages"),
    [
        # Values 0, gamma = lambda = 1: the reward-to-go. Payoffs 1 and 3 on the last token.
        ("exact", [[1 - 0.1 - 0.2, 1 - 0.2], [3 - 0.3, 0.0]]),
        ("reference", [[1 - 0.1 - 0.2, 1 - 0.2], [3 - 0.3, 0.0]]),
        ("k1", [[1 - 0.25 + 0.125, 1 + 0.125], [3 - 0.25, 0.0]]),
        ("k3", [[1.0, 1.0], [3.0, 0.0]]),
    ],
)
def test_prepare_by_hand(estimator: str, advantages: list[list[float]]) -> None:
    learner = toy_learner(kl_estimator=estimator, gae_lambda=1.0, whiten="none")
    prepared = learner.prepare(made_rollout())
    expected = torch.tensor(advantages, dtype=torch.float64)
    assert torch.allclose(prepared.advantages, expected)
    assert torch.allclose(prepared.returns, expected)
    assert prepared.sigma.tolist() == [1.0, 1.0]


def test_prepare_uses_the_weight_of_the_controller_and_the_critic() -> None:
    learner = toy_learner(kl_estimator="exact", gae_lambda=0.5, gamma=1.0, whiten="none")
    learner.kl_controller.coef = 2.0
    values = torch.tensor([[0.5, 0.25], [1.0, 0.0]], dtype=torch.float64)
    prepared = learner.prepare(made_rollout(values=values))
    # Rewards -.4, 1 - .8 = .2 | 3 - 1.2 = 1.8. Row 0: A_1 = .2 - .25 = -.05;
    # A_0 = -.4 + .25 - .5 + .5 * -.05 = -.675. Row 1: 1.8 - 1 = .8.
    expected = torch.tensor([[-0.675, -0.05], [0.8, 0.0]], dtype=torch.float64)
    assert torch.allclose(prepared.advantages, expected)
    assert torch.allclose(prepared.returns, (expected + values))


def test_whitening_over_the_batch_says_what_it_divided_by() -> None:
    learner = toy_learner(kl_estimator="k3", gae_lambda=1.0, whiten="batch")
    prepared = learner.prepare(made_rollout())
    # 1, 1, 3: mean 5/3, variance (4/9 + 4/9 + 16/9) / 2 = 4/3.
    sigma = math.sqrt(4 / 3)
    assert prepared.sigma.tolist() == pytest.approx([sigma, sigma])
    expected = [[-2 / 3 / sigma, -2 / 3 / sigma], [4 / 3 / sigma, 0.0]]
    assert torch.allclose(prepared.advantages, torch.tensor(expected, dtype=torch.float64))
    # The critic's targets are not whitened.
    assert torch.allclose(prepared.returns, torch.tensor([[1.0, 1.0], [3.0, 0.0]]).double())


# Where it enters the loss.


@pytest.mark.case(38)
def test_penalty_in_the_loss_by_hand() -> None:
    # The reference (zero hidden states) is uniform over three. The policy is (1/2, 1/4, 1/4) at
    # the three tokens that count: KL = log 3 - 1.5 log 2. Weight 0.5 over sigma 2.
    rollout = made_rollout()
    batch = prepared_of(rollout, rollout.kl, rollout.kl, 2.0)
    log_probs = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64).log().expand(2, 2, 3)
    scored = made_scored(log_probs, rollout.response_ids, rollout.values)

    def penalty(estimator: str) -> float:
        return penalty_in_loss(scored, batch, estimator, coef=0.5, sigma=batch.sigma[0]).item()

    assert penalty("exact") == pytest.approx(0.25 * (math.log(3) - 1.5 * math.log(2)))
    # k3 by the drawn tokens 0, 2 | 2: log-ratios of the reference d = -1.5 + log 2,
    # -.25 + log 4 | -2.5 + log 4: mean of e^d - 1 - d.
    ds = [-1.5 + math.log(2), -0.25 + math.log(4), -2.5 + math.log(4)]
    k3 = sum(math.exp(d) - 1 - d for d in ds) / 3
    assert penalty("k3") == pytest.approx(0.25 * k3)
    assert penalty("k1") == penalty("reference") == 0.0


def test_loss_by_hand() -> None:
    # Ratios 1 (first step), advantages 1, 2 | 3: policy loss -2. Critic 1 everywhere against
    # 2, 3 | 4: mean(1, 4, 9) = 14/3. Entropy of (1/2, 1/4, 1/4): 1.5 log 2.
    learner = toy_learner(kl_estimator="exact", vf_coef=0.05, ent_coef=0.01, whiten="none")
    learner.kl_controller.coef = 0.3
    log_probs = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64).log().expand(2, 2, 3)
    ids = torch.tensor([[0, 2], [2, -1]])
    scored = made_scored(log_probs, ids, torch.ones(2, 2, dtype=torch.float64))
    rollout = made_rollout(logprobs=scored.logprobs)
    advantages = torch.tensor([[1.0, 2.0], [3.0, 0.0]], dtype=torch.float64)
    loss, parts = learner.loss(scored, prepared_of(rollout, advantages, advantages + 1, 1.0))
    kl = math.log(3) - 1.5 * math.log(2)
    assert parts["policy_loss"].item() == pytest.approx(-2.0)
    assert parts["value_loss"].item() == pytest.approx(14 / 3)
    expected = -2.0 + 0.05 * 14 / 3 + 0.3 * kl - 0.01 * 1.5 * math.log(2)
    assert loss.item() == pytest.approx(expected)


def test_whitening_over_the_minibatch_divides_the_kl_of_the_loss_too() -> None:
    learner = toy_learner(kl_estimator="exact", whiten="minibatch", vf_coef=0.0)
    log_probs = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64).log().expand(2, 2, 3)
    ids = torch.tensor([[0, 2], [2, -1]])
    scored = made_scored(log_probs, ids, torch.zeros(2, 2, dtype=torch.float64))
    rollout = made_rollout(logprobs=scored.logprobs)
    advantages = torch.tensor([[1.0, 1.0], [3.0, 0.0]], dtype=torch.float64)
    batch = learner.minibatch(prepared_of(rollout, advantages, advantages, 1.0))
    loss, parts = learner.loss(scored, batch)
    # Whitened advantages have mean 0, so at ratio 1 only the KL is left, over sqrt(4/3).
    assert parts["policy_loss"].item() == pytest.approx(0.0, abs=1e-9)
    kl = math.log(3) - 1.5 * math.log(2)
    assert loss.item() == pytest.approx(0.5 * kl / math.sqrt(4 / 3))


# All responses of a toy, weighted by their probability (science: where an estimate equals the
# gradient). Sums over tokens instead of means, first step, no whitening, any critic, lambda 1.


def enumerated(learner: PPO, payoffs: list[float]) -> tuple[Tensor, Tensor]:
    """Probability of each response [R] and its expected-KL part [R], with gradient."""
    ids = torch.tensor([r + [-1] * (2 - len(r)) for r in RESPONSES])
    prompts = torch.tensor([PROMPT] * len(RESPONSES))
    scored = learner.actor.score(prompts, ids, 1.0)
    with torch.no_grad():
        hidden = learner.reference.response_hidden(prompts, ids)
        ref = log_softmax(learner.reference.logits(hidden), 1.0)
    probabilities = scored.logprobs.sum(-1).exp()
    own = learner.actor.distribution(prompts, ids, 1.0)
    kl = full_kl(own, ref).masked_fill(ids < 0, 0.0).sum(-1)
    return probabilities, kl


def gradient(learner: PPO, value: Tensor) -> Tensor:
    parameters = list(learner.actor.model.parameters())
    parts = torch.autograd.grad(value, parameters, allow_unused=True)
    return torch.cat(
        [
            (torch.zeros_like(p) if g is None else g).flatten()
            for p, g in zip(parameters, parts, strict=True)
        ]
    )


def learner_gradient(learner: PPO, payoffs: list[float]) -> Tensor:
    """Gradient of the learner's real loss over all responses, one row at a time."""
    total = torch.zeros((), dtype=torch.float64)
    for response, payoff in zip(RESPONSES, payoffs, strict=True):
        rollout = toy_rollout(learner, [response], [payoff])
        batch = trimmed(learner.prepare(rollout))
        loss, _ = learner.loss(learner.score(batch), batch)
        probability = rollout.logprobs.sum().exp()
        total = total + probability * len(response) * loss
    return gradient(learner, total)


PAYOFFS = [0.3, -1.0, 2.0, 0.7, 1.3, -0.4, 0.9]
STRICT: dict[str, Any] = {"gamma": 1.0, "gae_lambda": 1.0, "whiten": "none", "vf_coef": 0.0}


def true_gradients(learner: PPO) -> tuple[Tensor, Tensor]:
    """Gradients of E[R] and of E[sum of KL] by autograd of their definition."""
    probabilities, kl = enumerated(learner, PAYOFFS)
    assert probabilities.sum().item() == pytest.approx(1.0, abs=1e-12)
    reward = gradient(learner, (probabilities * torch.tensor(PAYOFFS, dtype=torch.float64)).sum())
    probabilities, kl = enumerated(learner, PAYOFFS)
    return reward, gradient(learner, (probabilities * kl).sum())


@pytest.mark.case(39)
@pytest.mark.parametrize("estimator", ["exact", "k1"])
def test_exact_and_k1_have_the_gradient_of_the_definition(estimator: str) -> None:
    learner = toy_learner(kl_estimator=estimator, **STRICT)
    reward, kl = true_gradients(learner)
    true = reward - 0.5 * kl
    got = learner_gradient(learner, PAYOFFS)
    assert true.norm() > 0.1 and (0.5 * kl).norm() > 0.1
    assert torch.allclose(-got, true, atol=1e-10, rtol=0)


@pytest.mark.case(39)
def test_reference_misses_the_kl_of_the_current_token() -> None:
    learner = toy_learner(kl_estimator="reference", **STRICT)
    reward, kl = true_gradients(learner)
    # The missing part: expectation over prefixes of the gradient of KL_t alone.
    probabilities, kl_sums = enumerated(learner, PAYOFFS)
    current = gradient(learner, (probabilities.detach() * kl_sums).sum())
    got = learner_gradient(learner, PAYOFFS)
    assert current.norm() > 0.1
    assert torch.allclose(-got, reward - 0.5 * (kl - current), atol=1e-10, rtol=0)
    assert not torch.allclose(-got, reward - 0.5 * kl, atol=1e-3, rtol=0)


@pytest.mark.case(39)
def test_k3_has_the_forward_kl_of_the_current_token() -> None:
    # Expectation over the drawn token of the gradient of k3 is that of KL(reference || policy).
    learner = toy_learner(kl_estimator="k3", **STRICT)
    reward, _ = true_gradients(learner)
    ids = torch.tensor([r + [-1] * (2 - len(r)) for r in RESPONSES])
    prompts = torch.tensor([PROMPT] * len(RESPONSES))
    scored = learner.actor.score(prompts, ids, 1.0)
    ref = learner.reference.distribution(prompts, ids, 1.0)
    own = learner.actor.distribution(prompts, ids, 1.0)
    forward = full_kl(ref, own).masked_fill(ids < 0, 0.0).sum(-1)
    weights = scored.logprobs.sum(-1).exp().detach()
    expected = reward - 0.5 * gradient(learner, (weights * forward).sum())
    assert torch.allclose(-learner_gradient(learner, PAYOFFS), expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_without_weight_every_estimator_is_the_plain_policy_gradient(estimator: str) -> None:
    learner = toy_learner(kl_estimator=estimator, kl_coef=0.0, **STRICT)
    reward, _ = true_gradients(learner)
    assert torch.allclose(-learner_gradient(learner, PAYOFFS), reward, atol=1e-10, rtol=0)


# The plumbing of an update.


@pytest.mark.case(33, 35)
def test_an_update_counts_its_steps_and_moves_only_its_own_parameters() -> None:
    learner = toy_learner(update_epochs=2, kl_estimator="exact")
    frozen = [p.clone() for p in learner.reference.parameters()]
    own = [p.detach().clone() for p in learner.actor.parameters()]
    learner.set_iteration(1, 1)
    batch = learner.prepare(toy_rollout(learner, RESPONSES, PAYOFFS))
    stats = learner.update_from(batch, 3, 2)
    assert stats.optimizer_steps == 2 * 3  # 7 responses in minibatches of 3, 3 and 1
    assert all(
        torch.equal(a, b) for a, b in zip(frozen, learner.reference.parameters(), strict=True)
    )
    moved = [not torch.equal(a, b) for a, b in zip(own, learner.actor.parameters(), strict=True)]
    assert all(moved)


@pytest.mark.case(9)
def test_the_first_step_reports_that_nothing_has_moved() -> None:
    learner = toy_learner()
    learner.set_iteration(1, 1)
    batch = learner.prepare(toy_rollout(learner, RESPONSES, PAYOFFS))
    stats = learner.update_from(batch, None, 1)
    assert stats.approx_kl == pytest.approx(0.0, abs=1e-12)
    assert stats.clip_fraction == 0.0
    # The mean of whitened advantages.
    assert stats.policy_loss == pytest.approx(0.0, abs=1e-6)


def test_minibatches_are_each_response_once_and_the_same_every_time() -> None:
    def parts(epoch: int) -> list[list[int]]:
        learner = toy_learner()
        learner.iteration = 4
        batch = learner.prepare(toy_rollout(learner, RESPONSES, PAYOFFS))
        return [part.episode.tolist() for part in learner._minibatches(batch, 3, epoch)]

    assert [len(p) for p in parts(0)] == [3, 3, 1]
    assert sorted(row for part in parts(0) for row in part) == list(range(7))
    assert parts(0) == parts(0) != parts(1)


def test_gradients_are_clipped_to_the_largest_norm() -> None:
    learner = toy_learner(max_grad_norm=1e-3)
    learner.set_iteration(1, 1)
    batch = learner.prepare(toy_rollout(learner, RESPONSES, PAYOFFS))
    stats = learner.update_from(batch, None, 1)
    assert stats.grad_norm is not None and stats.grad_norm > 1e-2  # before it was clipped
    total = torch.stack([p.grad.norm() for p in learner.actor.parameters() if p.grad is not None])
    assert total.norm().item() == pytest.approx(1e-3, rel=1e-3)


def test_the_linear_schedule_falls_to_zero_after_the_last_iteration() -> None:
    learner = toy_learner(learning_rate=0.8, learning_rate_schedule="linear")
    rates = []
    for iteration in range(1, 5):
        learner.set_iteration(iteration, 4)
        rates.append(learner.optim._optim.param_groups[0]["lr"])
    assert rates == pytest.approx([0.8, 0.6, 0.4, 0.2])


@pytest.mark.case(32)
def test_the_reference_is_no_part_of_the_learners_state() -> None:
    learner = toy_learner()
    reference = {id(p) for p in learner.reference.parameters()}
    assert not reference & {id(p) for p in learner.parameters()}
    assert not any("reference" in name for name in learner.state_dict())


def test_trimming_cuts_only_padding() -> None:
    learner = toy_learner()
    batch = learner.prepare(toy_rollout(learner, [[2], [2]], [1.0, 2.0]))
    short = trimmed(batch)
    assert short.response_ids.tolist() == [[2], [2]]
    assert torch.equal(short.advantages, batch.advantages[:, :1])
    full, _ = learner.loss(learner.score(batch), batch)
    cut, _ = learner.loss(learner.score(short), short)
    assert cut.item() == pytest.approx(full.item(), abs=1e-12)
