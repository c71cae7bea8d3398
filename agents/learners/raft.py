"""Rejection-sampling fine-tuning, each agent for itself.

    kept          = the best share `raft_keep` of each group, by R_i minus the cost of its KL
    policy loss   = - mean log pi(token) over the tokens of the kept responses

Groups in which all earned the same say nothing and are left out.

Source: Dong et al. 2023, "RAFT", algorithm 1; the KL in the ranking is its section 3.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from agents.learners.sequence import READS, SequenceLearner
from agents.maths.baselines import check_groups, is_constant, kept_best
from agents.rollout import Prepared, Rollout, prepared
from agents.traits import Traits


class RAFT(SequenceLearner):
    """Learns from the best answers only, as from examples."""

    traits: ClassVar[Traits] = Traits(reads=READS | {"raft_keep"}, group_size=4, least_group=2)

    def prepare(self, rollout: Rollout) -> Prepared:
        """The kept responses alone, each with advantage 1."""
        check_groups(rollout.group)
        returns = self.returns(rollout)
        judged = returns - self.costs(rollout)[:, :1].sum(-1)
        keep = kept_best(judged, rollout.group, self.config.raft_keep)
        kept = rollout.select((keep & ~is_constant(returns, rollout.group)).nonzero().squeeze(-1))
        ones = kept.mask.to(rollout.values.dtype)
        return prepared(kept, ones, torch.zeros_like(ones), torch.ones((), dtype=ones.dtype))

    def advantages(self, returns: Tensor, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """Not used: a response is kept or it is not."""
        raise NotImplementedError("raft compares by rank")
