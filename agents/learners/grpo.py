"""Group-relative policy optimisation, each agent for itself.

    advantage     = (R_i - mean of the group) / standard deviation of the group     (grpo_std)
    policy loss   = clipped surrogate, with the ratio of each token or of the whole response
                    (ratio_level)

Deviations from the paper: a mean over the tokens of the minibatch in place of one a response, which
would favour long wrong answers; the KL's true gradient in place of k3 in the loss (`--kl-estimator
k3`), divided by the typical deviation of a group.

Source: Shao et al. 2024, "DeepSeekMath", equation 3 and section 4.1.2; without the deviation Liu et
al. 2025, "Understanding R1-Zero-Like Training", section 3.2; ratio of a response Zheng et al. 2025.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from agents.learners.sequence import READS, SequenceLearner
from agents.maths.baselines import compared, group_deviation, group_mean, is_constant
from agents.maths.losses import clipped_policy_loss
from agents.maths.ratios import clipped_sequence_loss
from agents.models.language_model import Scored
from agents.rollout import Prepared, Rollout
from agents.traits import Traits


class GRPO(SequenceLearner):
    """Each response against its group, in several clipped passes."""

    traits: ClassVar[Traits] = Traits(
        reads=READS | {"clip_coef", "grpo_std", "ratio_level"}, group_size=4, least_group=2
    )

    def advantages(self, returns: Tensor, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """Return minus the group's mean, over its deviation; 0 in a group of equal returns."""
        group = rollout.group
        found = compared(returns, group_mean(returns, group), group)
        one = torch.ones((), dtype=returns.dtype)
        if not self.config.grpo_std:
            return found, one
        deviation = group_deviation(returns, group)
        varied = deviation[~is_constant(returns, group)]
        # One number for the KL of all groups: a group that hardly varies must not blow it up.
        sigma = (varied**2).mean().sqrt().cpu() if len(varied) else one
        return found / deviation, sigma

    def policy_loss(self, scored: Scored, batch: Prepared) -> Tensor:
        """The clipped surrogate, a scalar."""
        whole = self.config.ratio_level == "sequence"
        surrogate = clipped_sequence_loss if whole else clipped_policy_loss
        return surrogate(
            scored.logprobs,
            batch.logprobs,
            batch.advantages,
            batch.mask,
            clip_coef=self.config.clip_coef,
            count=batch.tokens,
        )
