"""Tests of agents/learners/happo.py."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch

from agents.bridge.learner import UpdateStats
from agents.learners.happo import HAPPO
from agents.rollout import Prepared
from tests.agents.learners.toy import RESPONSES, made_rollout, toy_learner, toy_rollout

PAYOFFS = [0.3, -1.0, 2.0, 0.7, 1.3, -0.4, 0.9]


def two(**settings: Any) -> tuple[dict[str, HAPPO], dict[str, Prepared]]:
    """agent_0 is the pioneer."""
    learners = {a: toy_learner(HAPPO, **settings) for a in ("agent_0", "agent_1")}
    batches = {}
    for seat, (agent, learner) in enumerate(learners.items()):
        learner.set_iteration(1, 1)
        rollout = toy_rollout(learner, RESPONSES, PAYOFFS)
        object.__setattr__(rollout, "seat", seat)
        batches[agent] = learner.prepare(rollout)
    return learners, batches


def updated(learners: Any, batches: Any) -> tuple[list[tuple[HAPPO, Prepared]], Any]:
    """The updates in their order, and what they logged."""
    calls: list[tuple[HAPPO, Prepared]] = []
    update = HAPPO.update_from

    def watched(self: HAPPO, batch: Prepared, size: int | None, epochs: int) -> UpdateStats:
        calls.append((self, batch))
        return update(self, batch, size, epochs)

    with patch.object(HAPPO, "update_from", watched):
        stats = HAPPO.update_team(learners, batches, None, 2)
    return calls, stats


@pytest.mark.case(47)
@pytest.mark.parametrize("order", ["observer_first", "pioneer_first"])
def test_the_second_agent_is_corrected_for_the_first(order: str) -> None:
    learners, batches = two(happo_order=order, learning_rate=0.03)
    calls, stats = updated(learners, batches)
    names = ["agent_1", "agent_0"] if order == "observer_first" else ["agent_0", "agent_1"]
    assert [next(a for a, x in learners.items() if x is learner) for learner, _ in calls] == names
    first, second = calls[0][1].factor, calls[1][1].factor
    assert first is not None and first.tolist() == [1.0] * 7
    # M by its formula, with plain numbers, from the weights that the first update left.
    batch = batches[names[0]]
    now = learners[names[0]].actor.score(batch.prompt_ids, batch.response_ids, 1.0).logprobs
    expected, clamped = [], 0
    for row in range(7):
        moved = sum((now - batch.logprobs)[row][batch.mask[row]].tolist())
        expected.append(math.exp(min(max(moved, -math.log(2)), math.log(2))))
        clamped += abs(moved) > math.log(2)
    assert second is not None and second.tolist() == pytest.approx(expected)
    assert max(expected) > 1.1 and min(expected) < 0.9
    # What is logged.
    assert stats[names[0]].logged == {"factor_sample_size": 1.0, "factor_clamped": 0.0}
    size = sum(expected) ** 2 / 7 / sum(m * m for m in expected)
    assert stats[names[1]].logged["factor_sample_size"] == pytest.approx(size)
    assert stats[names[1]].logged["factor_clamped"] == pytest.approx(clamped / 7)
    assert list(stats) == ["agent_0", "agent_1"]


@pytest.mark.case(47)
def test_the_factor_weighs_whole_episodes_after_whitening() -> None:
    learner = toy_learner(HAPPO, whiten="minibatch", kl_estimator="k3", gae_lambda=1.0)
    prepared = learner.prepare(made_rollout())
    factor = torch.tensor([2.0, 0.5], dtype=torch.float64)
    got = learner.minibatch(replace(prepared, factor=factor))
    # 1, 1 | 3 whitened: mean 5/3, deviation sqrt(4/3); then times 2 and 1/2.
    sigma = math.sqrt(4 / 3)
    expected = [[-4 / 3 / sigma, -4 / 3 / sigma], [2 / 3 / sigma, 0.0]]
    assert torch.allclose(got.advantages, torch.tensor(expected, dtype=torch.float64))
    assert got.sigma.tolist() == pytest.approx([sigma, sigma])


def test_log_probs_after_an_update_are_scored_in_parts() -> None:
    learner = toy_learner(HAPPO)
    batch = learner.prepare(toy_rollout(learner, RESPONSES, PAYOFFS))
    with patch("agents.learners.happo.ROWS", 3):
        parts = learner.logprobs_now(batch)
    assert torch.allclose(parts, batch.logprobs, atol=1e-12)
    assert not parts.requires_grad
