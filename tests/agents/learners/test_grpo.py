"""Tests of agents/learners/grpo.py."""

from __future__ import annotations

import math

import pytest
import torch

from agents.learners.grpo import GRPO
from agents.maths.losses import clipped_policy_loss
from agents.maths.ratios import clipped_sequence_loss
from agents.rollout import Rollout
from tests.agents.learners.toy import RESPONSES, made_rollout, toy_learner, toy_rollout

ONE = torch.zeros(2, dtype=torch.int64)


def test_advantages_by_hand() -> None:
    # Mean 2, deviation sqrt 2 (n - 1). The costs' differences 0, .2 | 0 are divided by it too.
    prepared = toy_learner(GRPO).prepare(made_rollout(group=ONE))
    sigma = math.sqrt(2)
    expected = [[-1 / sigma, (-1 - 0.2) / sigma], [1 / sigma, 0.0]]
    assert torch.allclose(prepared.advantages, torch.tensor(expected, dtype=torch.float64))
    assert prepared.sigma.tolist() == pytest.approx([sigma, sigma])


def test_without_the_deviation() -> None:
    prepared = toy_learner(GRPO, grpo_std=False).prepare(made_rollout(group=ONE))
    expected = torch.tensor([[-1.0, -1.2], [1.0, 0.0]], dtype=torch.float64)
    assert torch.allclose(prepared.advantages, expected)
    assert prepared.sigma.tolist() == [1.0, 1.0]


def groups_of_two(payoffs: list[float], **settings: object) -> tuple[GRPO, Rollout]:
    learner = toy_learner(GRPO, **settings)
    rollout = toy_rollout(learner, RESPONSES[1:5], payoffs)
    object.__setattr__(rollout, "group", torch.tensor([0, 0, 1, 1]))
    return learner, rollout


def test_the_kl_is_divided_by_the_typical_deviation_of_groups_that_vary() -> None:
    # Deviations sqrt 2 and sqrt 8: root of the mean square is sqrt 5. The last group is constant
    # in the second case: it does not count.
    learner, rollout = groups_of_two([0.0, 2.0, 0.0, 4.0])
    assert learner.prepare(rollout).sigma.tolist() == pytest.approx([math.sqrt(5)] * 4)
    learner, rollout = groups_of_two([0.0, 2.0, 3.0, 3.0])
    assert learner.prepare(rollout).sigma.tolist() == pytest.approx([math.sqrt(2)] * 4)
    learner, rollout = groups_of_two([1.0, 1.0, 3.0, 3.0])
    assert learner.prepare(rollout).sigma.tolist() == [1.0] * 4


def test_a_constant_group_teaches_nothing_beside_one_that_varies() -> None:
    learner, rollout = groups_of_two([0.1, 0.1, 0.0, 1.0], kl_coef=0.0)
    root = 1 / math.sqrt(2)
    got = learner.prepare(rollout).advantages[:, 0].tolist()
    assert got == [0.0, 0.0, pytest.approx(-root), pytest.approx(root)]


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_the_level_of_the_ratio(level: str) -> None:
    learner, rollout = groups_of_two([0.0, 2.0, 0.0, 4.0], ratio_level=level, kl_coef=0.0)
    batch = learner.prepare(rollout)
    with torch.no_grad():
        learner.actor.model.get_output_embeddings().weight.mul_(1.3)
    scored = learner.score(batch)
    loss, _ = learner.loss(scored, batch)
    formula = {"token": clipped_policy_loss, "sequence": clipped_sequence_loss}
    both = {
        name: f(scored.logprobs, batch.logprobs, batch.advantages, batch.mask, clip_coef=0.2).item()
        for name, f in formula.items()
    }
    assert loss.item() == pytest.approx(both[level], abs=1e-12)
    assert abs(both["token"] - both["sequence"]) > 1e-3
