"""REINFORCE leave-one-out, each agent for itself.

    baseline      = mean of R over the *other* responses of the group
    advantage     = R_i - baseline
    policy loss   = - mean A_{i,t} log pi(token)

A group holds answers to the same query (nested groups: to the same prompt) in the same role.

Source: Ahmadian et al. 2024, "Back to Basics", section 3; Kool et al. 2019.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from agents.learners.sequence import READS, SequenceLearner
from agents.maths.baselines import compared, leave_one_out
from agents.rollout import Rollout
from agents.traits import SMALL_STEPS, Traits


class RLOO(SequenceLearner):
    """Each response against the others of its group."""

    traits: ClassVar[Traits] = Traits(
        reads=READS, single_pass=True, rate=SMALL_STEPS, group_size=4, least_group=2
    )

    def advantages(self, returns: Tensor, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """Return minus the mean of the others; 0 in a group of equal returns."""
        baseline = leave_one_out(returns, rollout.group)
        one = torch.ones((), dtype=returns.dtype)
        return compared(returns, baseline, rollout.group), one
