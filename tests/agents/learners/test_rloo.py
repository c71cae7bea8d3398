"""Tests of agents/learners/rloo.py."""

from __future__ import annotations

import pytest
import torch

from agents.learners.rloo import RLOO
from tests.agents.learners.toy import RESPONSES, made_rollout, toy_learner, toy_rollout

ONE = torch.zeros(2, dtype=torch.int64)


def test_advantages_by_hand() -> None:
    # 1 - 3 and 3 - 1; costs as in test_reinforce.
    prepared = toy_learner(RLOO).prepare(made_rollout(group=ONE))
    expected = torch.tensor([[-2.0, -2.2], [2.0, 0.0]], dtype=torch.float64)
    assert torch.allclose(prepared.advantages, expected)


def test_groups_are_apart() -> None:
    # Payoffs 1, 2 in one group and 10, 30 in the other; their rows are mixed.
    learner = toy_learner(RLOO, kl_coef=0.0)
    rollout = toy_rollout(learner, RESPONSES[:4], [1.0, 10.0, 2.0, 30.0])
    object.__setattr__(rollout, "group", torch.tensor([4, 7, 4, 7]))
    assert learner.prepare(rollout).advantages[:, 0].tolist() == [-1.0, -20.0, 1.0, 20.0]


@pytest.mark.case(42)
def test_a_group_of_one_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2 responses to be compared, got one of 1"):
        toy_learner(RLOO).prepare(made_rollout())


def test_a_constant_group_teaches_nothing() -> None:
    learner = toy_learner(RLOO, kl_coef=0.0)
    rollout = toy_rollout(learner, RESPONSES, [0.1] * 7)
    object.__setattr__(rollout, "group", torch.zeros(7, dtype=torch.int64))
    assert not learner.prepare(rollout).advantages.any()
