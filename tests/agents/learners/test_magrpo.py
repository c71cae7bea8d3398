"""Tests of agents/learners/magrpo.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from agents.learners.magrpo import MAGRPO
from tests.agents.learners.toy import made_rollout, toy_learner

SCORES = torch.tensor([[1.0, 2.0], [3.0, 5.0]], dtype=torch.float64)


def advantages(matrix: Any = ((1.0, 1.0), (1.0, 1.0)), **settings: Any) -> dict[str, Tensor]:
    """Two episodes of one group; agent_1 is the pioneer; of each response's first token."""
    learners = {
        a: toy_learner(MAGRPO, kl_coef=0.0, group_size=2, **settings)
        for a in ("agent_0", "agent_1")
    }
    group = torch.zeros(2, dtype=torch.int64)
    rollouts = {}
    for agent, seat in (("agent_0", 1), ("agent_1", 0)):
        shares = SCORES * torch.tensor(matrix[seat], dtype=torch.float64)
        rollouts[agent] = made_rollout(
            seat=seat, shares=shares, scores=SCORES, payoffs=shares.sum(-1), group=group
        )
    found = MAGRPO.prepare_team(learners, rollouts)
    return {agent: prepared.advantages[:, 0] for agent, prepared in found.items()}


@pytest.mark.parametrize(
    ("baseline", "expected"),
    # Joint returns 3 and 8.
    [("leave_one_out", [-5.0, 5.0]), ("max", [-5.0, 5.0]), ("mean", [-2.5, 2.5])],
)
def test_both_have_the_same_advantage(baseline: str, expected: list[float]) -> None:
    for got in advantages(magrpo_baseline=baseline).values():
        assert got.tolist() == expected


def test_the_return_is_joint_also_where_the_observer_is_not_paid_for_the_pioneer() -> None:
    for got in advantages(matrix=((1.0, 1.0), (0.0, 1.0))).values():
        assert got.tolist() == [-5.0, 5.0]


def test_crossed_pairs_leave_each_its_own_score() -> None:
    # Paid with every observer answer of the group, the others' part is the same for all.
    got = advantages(magrpo_pairing="cross")
    assert got["agent_1"].tolist() == [-2.0, 2.0]
    assert got["agent_0"].tolist() == [-3.0, 3.0]
