"""Tests of agents/learners/mappo.py."""

from __future__ import annotations

from typing import Any

import torch

from agents.learners.mappo import MAPPO
from agents.learners.ppo import PPO
from agents.rollout import Rollout
from tests.agents.learners.toy import made_rollout, toy_learner

VALUES = torch.tensor([[0.5, 0.25], [1.0, 0.0]], dtype=torch.float64)


def two(**settings: Any) -> tuple[dict[str, MAPPO], dict[str, Rollout]]:
    """agent_1 is the pioneer. Scores 1 and 2 in the first episode, 3 and 5 in the second."""
    learners = {
        agent: toy_learner(MAPPO, kl_estimator="exact", whiten="none", **settings)
        for agent in ("agent_0", "agent_1")
    }
    scores = torch.tensor([[1.0, 2.0], [3.0, 5.0]], dtype=torch.float64)
    whole = {"shares": scores, "scores": scores, "payoffs": scores.sum(-1), "values": VALUES}
    return learners, {
        "agent_0": made_rollout(seat=1, **whole),
        "agent_1": made_rollout(seat=0, **whole),
    }


def test_the_boundary_by_hand() -> None:
    # No KL, lambda 1/2 within a turn and 1/4 between turns.
    # Observer, first episode: A_1 = 2 - .25 = 1.75, A_0 = .25 - .5 + 1.75 / 2 = .625;
    # second: A_0 = 5 - 1 = 4. Pioneer, first episode: behind its last token come V = .5 and
    # A = .625: A_1 = 1 + .5 - .25 + .625 / 4 = 1.40625, A_0 = .25 - .5 + A_1 / 2 = .453125;
    # second: 3 + 1 - 1 + 4 / 4 = 4.
    learners, rollouts = two(gae_lambda=0.5, lambda_turn=0.25, kl_coef=0.0)
    found = MAPPO.prepare_team(learners, rollouts)
    assert list(found) == ["agent_0", "agent_1"]
    assert found["agent_0"].advantages.tolist() == [[0.625, 1.75], [4.0, 0.0]]
    assert found["agent_1"].advantages.tolist() == [[0.453125, 1.40625], [4.0, 0.0]]
    assert torch.equal(found["agent_1"].returns, found["agent_1"].advantages + VALUES)


def test_the_kl_of_the_later_agent_is_in_the_stream_once() -> None:
    # Traces 1: the return to go. KL .2, .4 | .6 of each; weight .5 of the pioneer, 2 of the
    # observer, whose KL costs 1.2 in both episodes.
    learners, rollouts = two(gae_lambda=1.0, lambda_turn=1.0)
    learners["agent_0"].kl_controller.coef = 2.0
    found = MAPPO.prepare_team(learners, rollouts)
    pioneer = [[3 - 0.1 - 0.2 - 1.2, 3 - 0.2 - 1.2], [8 - 0.3 - 1.2, 0.0]]
    assert torch.allclose(found["agent_1"].returns, torch.tensor(pioneer, dtype=torch.float64))
    observer = [[2 - 0.4 - 0.8, 2 - 0.8], [5 - 1.2, 0.0]]
    assert torch.allclose(found["agent_0"].returns, torch.tensor(observer, dtype=torch.float64))


def test_each_agent_is_whitened_by_itself() -> None:
    learners, rollouts = two(kl_coef=0.0)
    for learner in learners.values():
        object.__setattr__(learner.config, "whiten", "batch")
    found = MAPPO.prepare_team(learners, rollouts)
    for prepared in found.values():
        counted = prepared.advantages[prepared.mask]
        assert abs(counted.mean().item()) < 1e-9
        assert abs(counted.std().item() - 1) < 1e-6
    assert found["agent_0"].sigma[0] != found["agent_1"].sigma[0]


def test_alone_it_is_ppo() -> None:
    learner = toy_learner(MAPPO, whiten="none")
    rollout = made_rollout(values=VALUES)
    plain = toy_learner(PPO, whiten="none").prepare(rollout)
    assert torch.equal(learner.prepare(rollout).advantages, plain.advantages)
