"""Tests of agents/learners/raft.py."""

from __future__ import annotations

import pytest
import torch

from agents.learners.raft import RAFT
from tests.agents.learners.toy import RESPONSES, made_rollout, toy_learner, toy_rollout

ONE = torch.zeros(2, dtype=torch.int64)


def test_the_better_one_is_kept_by_hand() -> None:
    prepared = toy_learner(RAFT).prepare(made_rollout(group=ONE))
    assert prepared.episode.tolist() == [1]
    assert prepared.advantages.tolist() == [[1.0, 0.0]]


def test_the_kl_takes_part_in_the_ranking() -> None:
    # Costs at weight 2: 1.2 | 1.2; with 10 times the KL in the first row 12: 13 - 12 < 3 - 1.2.
    learner = toy_learner(RAFT)
    learner.kl_controller.coef = 2.0
    rollout = made_rollout(group=ONE, payoffs=torch.tensor([13.0, 3.0], dtype=torch.float64))
    assert learner.prepare(rollout).episode.tolist() == [0]
    costly = made_rollout(
        group=ONE,
        payoffs=rollout.payoffs,
        kl=rollout.kl * torch.tensor([[10.0], [1.0]], dtype=torch.float64),
    )
    assert learner.prepare(costly).episode.tolist() == [1]


def test_a_share_of_each_group_is_kept() -> None:
    learner = toy_learner(RAFT, raft_keep=0.5, kl_coef=0.0)
    rollout = toy_rollout(learner, RESPONSES, [3.0, 1.0, 2.0, 0.0, 7.0, 7.0, 7.0])
    object.__setattr__(rollout, "group", torch.tensor([0, 0, 0, 0, 1, 1, 1]))
    # Two of four; none where all earned the same.
    assert learner.prepare(rollout).episode.tolist() == [0, 2]


def test_an_iteration_without_a_better_answer_takes_no_step() -> None:
    learner = toy_learner(RAFT)
    before = [p.clone() for p in learner.actor.parameters()]
    rollout = toy_rollout(learner, RESPONSES, [0.5] * 7)
    object.__setattr__(rollout, "group", torch.zeros(7, dtype=torch.int64))
    learner.set_iteration(1, 1)
    stats = learner.update_from(learner.prepare(rollout), 3, 2)
    assert stats.optimizer_steps == 0 and stats.policy_loss is None
    assert all(torch.equal(a, b) for a, b in zip(before, learner.actor.parameters(), strict=True))


@pytest.mark.case(42)
def test_a_group_of_one_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2 responses"):
        toy_learner(RAFT).prepare(made_rollout())
