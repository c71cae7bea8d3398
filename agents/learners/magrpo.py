"""Multi-agent GRPO: one return for all, compared within groups of whole episodes.

    return        = sum over the seats of what the team is paid for their scores
    advantage     = return minus the group's baseline (magrpo_baseline): mean of the others, largest
                    of the others, or mean of all; the same for every agent
    policy loss   = - mean A_{i,t} log pi(token); no ratio, no clip, no critic

Source: Liu et al. 2025, "LLM Collaboration with Multi-Agent Reinforcement Learning", arXiv
2508.04652, algorithm 1; the variants are those of its library, the maximum here without the
response's own return.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from agents.bridge.learner import Learner
from agents.learners.sequence import READS, SequenceLearner
from agents.maths.baselines import compared, group_mean, leave_one_out, leave_one_out_max
from agents.rollout import Prepared, Rollout
from agents.traits import SMALL_STEPS, Traits


class MAGRPO(SequenceLearner):
    """The same advantage for all agents of an episode."""

    traits: ClassVar[Traits] = Traits(
        reads=READS | {"magrpo_baseline", "magrpo_pairing"},
        single_pass=True,
        rate=SMALL_STEPS,
        group_size=4,
        least_group=2,
        nested=False,
        plain_transfer=True,
        common_return=True,
    )

    @classmethod
    def prepare_team(
        cls, learners: Mapping[str, Learner], rollouts: Mapping[str, Rollout]
    ) -> dict[str, Prepared]:
        """Every agent learns from what the whole team was paid."""
        own = {agent: rollout.shares[:, rollout.seat] for agent, rollout in rollouts.items()}
        found = {}
        for agent, learner in learners.items():
            rollout = rollouts[agent]
            others = [share for other, share in own.items() if other != agent]
            if learner.config.magrpo_pairing == "cross":
                # Played with every other response of the group: the mean over these pairs.
                others = [group_mean(share, rollout.group) for share in others]
            joint = torch.stack([own[agent], *others]).sum(0)
            # What is charged beside the scores (later agents' KL) stays as it is.
            charge = rollout.payoffs.double() - rollout.shares.sum(-1)
            shares = torch.zeros_like(rollout.shares)
            shares[:, rollout.seat] = joint
            paid = replace(rollout, payoffs=joint + charge, shares=shares)
            found[agent] = learner.prepare(paid)
        return found

    def advantages(self, returns: Tensor, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """Return minus the baseline of the setting; 0 in a group of equal returns."""
        baseline = {
            "leave_one_out": leave_one_out,
            "max": leave_one_out_max,
            "mean": group_mean,
        }[self.config.magrpo_baseline](returns, rollout.group)
        one = torch.ones((), dtype=returns.dtype)
        return compared(returns, baseline, rollout.group), one
