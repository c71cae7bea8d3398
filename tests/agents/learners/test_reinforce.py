"""Tests of agents/learners/reinforce.py and sequence.py."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from agents.learners.reinforce import Reinforce
from tests.agents.learners.toy import (
    RESPONSES,
    made_rollout,
    made_scored,
    prepared_of,
    toy_learner,
    toy_rollout,
)


def test_the_first_batch_is_compared_with_itself() -> None:
    # Payoffs 1 and 3, weight 0.5: costs .1 + .2 and .2 | .3. Each less the other's at its place:
    # 1 - 3 - (.3 - .3), 1 - 3 - (.2 - 0) | 3 - 1 - (.3 - .3).
    prepared = toy_learner(Reinforce, kl_estimator="exact").prepare(made_rollout())
    expected = torch.tensor([[-2.0, -2.2], [2.0, 0.0]], dtype=torch.float64)
    assert torch.allclose(prepared.advantages, expected)
    assert prepared.sigma.tolist() == [1.0, 1.0]
    assert not prepared.returns.any()  # there is no critic


def test_later_batches_are_compared_with_the_past_of_their_role() -> None:
    learner = toy_learner(Reinforce, kl_estimator="k3", baseline_decay=0.75)
    learner.prepare(made_rollout())
    assert learner.baselines == {0: 2.0}
    # 5 - 2 and 7 - 2; then 0.75 * 2 + 0.25 * 6 = 3.
    paid = torch.tensor([5.0, 7.0], dtype=torch.float64)
    second = learner.prepare(made_rollout(payoffs=paid))
    assert second.advantages[:, 0].tolist() == [3.0, 5.0]
    assert learner.baselines == {0: 3.0}


@pytest.mark.case(45)
def test_each_role_has_a_baseline_of_its_own() -> None:
    learner = toy_learner(Reinforce, kl_estimator="k3")
    learner.prepare(made_rollout())
    # As observer: payoffs 11 and 23, of which 10 and 20 are the pioneers': it earned 1 and 3.
    shares = torch.tensor([[10.0, 1.0], [20.0, 3.0]], dtype=torch.float64)
    observer = made_rollout(seat=1, shares=shares, payoffs=shares.sum(-1))
    assert learner.prepare(observer).advantages[:, 0].tolist() == [-2.0, 2.0]
    assert learner.baselines == {0: 2.0, 1: 2.0}


def test_what_it_keeps_comes_back() -> None:
    learner = toy_learner(Reinforce)
    learner.baselines = {0: 0.1, 1: -2.5}
    other = toy_learner(Reinforce)
    other.load_state(learner.state())
    assert other.baselines == learner.baselines
    for state in ({"x": 1.0}, {"baseline of seat x": 1.0}, {"baseline of seat 0": float("nan")}):
        with pytest.raises(ValueError, match="no baseline of a seat"):
            other.load_state(state)
    assert other.baselines == learner.baselines


def test_the_loss_by_hand() -> None:
    # log-probs of (1/2, 1/4, 1/4): tokens 0, 2 | 2; advantages 1, 2 | 3; KL weight 0.
    learner = toy_learner(Reinforce, kl_coef=0.0, ent_coef=0.01)
    log_probs = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64).log().expand(2, 2, 3)
    scored = made_scored(log_probs, torch.tensor([[0, 2], [2, -1]]), torch.zeros(2, 2))
    advantages = torch.tensor([[1.0, 2.0], [3.0, 0.0]], dtype=torch.float64)
    loss, parts = learner.loss(scored, prepared_of(made_rollout(), advantages, advantages, 1.0))
    policy = (1 + 2 * 2 + 3 * 2) * torch.tensor(2.0).double().log() / 3
    assert parts["policy_loss"].item() == pytest.approx(policy.item())
    entropy = 1.5 * torch.tensor(2.0).double().log().item()
    assert loss.item() == pytest.approx(policy.item() - 0.01 * entropy)
    assert set(parts) == {"policy_loss", "kl_loss"}


def test_a_single_response_has_nothing_to_be_compared_with() -> None:
    learner = toy_learner(Reinforce)
    rollout = toy_rollout(learner, [RESPONSES[0]], [1.5])
    prepared = learner.prepare(rollout)
    assert prepared.advantages[0, 0].item() == pytest.approx(1.5 - 0.5 * rollout.kl[0, 0].item())


def test_the_critic_is_left_alone() -> None:
    learner = toy_learner(Reinforce)
    before = learner.actor.value_head.weight.clone()
    learner.set_iteration(1, 1)
    stats = learner.update_from(
        learner.prepare(toy_rollout(learner, RESPONSES, [0.1 * i for i in range(7)])), 3, 1
    )
    assert torch.equal(learner.actor.value_head.weight, before)
    assert stats.value_loss is None and stats.explained_variance is None
    assert stats.clip_fraction is None and stats.policy_loss is not None


def test_the_payoff_of_a_rollout_by_itself_is_what_it_earned() -> None:
    rollout = made_rollout(seat=1)
    assert rollout.earned.tolist() == [1.0, 3.0]
    charged = replace(rollout, payoffs=rollout.payoffs - 0.5)
    assert charged.earned.tolist() == [0.5, 2.5]
