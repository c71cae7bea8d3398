"""The base of learners without a critic: one number a response says how good it was.

    R_i       = payoff of response i, without what earlier seats' scores contributed
    C_{i,t}   = cost of its tokens from t on (the KL's part in the token rewards)
    A_{i,t}   = (advantage of R_i) - (C_{i,t} - mean over the other responses of C_{j,t}) / sigma

The costs' baseline does not depend on the response either, so it changes no gradient.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from agents.bridge.learner import Learner, LossParts
from agents.learners.kl_penalty import penalty_in_reward, regularised
from agents.maths.baselines import leave_one_out
from agents.maths.losses import policy_gradient_loss
from agents.maths.returns import to_go
from agents.models.language_model import Scored
from agents.rollout import Prepared, Rollout, prepared

READS = frozenset({"ent_coef"})
"""Settings that all of these learners read."""


class SequenceLearner(Learner):
    """A learner that judges whole responses."""

    @abstractmethod
    def advantages(self, returns: Tensor, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """Advantage of each response, [B], and what they were divided by, a scalar.

        Args:
            returns: what each response earned, before the cost of its KL, [B], float64.
            rollout: says which are compared.
        """

    def returns(self, rollout: Rollout) -> Tensor:
        """What each response earned, [B], float64."""
        return rollout.earned

    def prepare(self, rollout: Rollout) -> Prepared:
        """The same advantage for all tokens of a response, but for the KL that is still to come."""
        advantages, sigma = self.advantages(self.returns(rollout), rollout)
        costs = self.costs(rollout)
        if len(rollout) > 1:
            costs = costs - leave_one_out(costs, torch.zeros_like(rollout.episode))
        # Rewards are float64, the rest is as the critic's numbers would be.
        each = (advantages.unsqueeze(-1) - costs / sigma).masked_fill(~rollout.mask, 0.0)
        each = each.to(rollout.values.dtype)
        return prepared(rollout, each, torch.zeros_like(each), sigma)

    def costs(self, rollout: Rollout) -> Tensor:
        """Cost of each token and those after it, [B, T], float64."""
        penalty = penalty_in_reward(rollout, self.config.kl_estimator, self.kl_controller.coef)
        return to_go(penalty.double(), rollout.mask)

    def loss(self, scored: Scored, batch: Prepared) -> tuple[Tensor, LossParts]:
        """Policy loss, entropy bonus and the loss part of the KL."""
        policy = self.policy_loss(scored, batch)
        total, penalty = regularised(policy, scored, batch, self.config, self.kl_controller.coef)
        return total, LossParts(policy_loss=policy, kl_loss=penalty)

    def policy_loss(self, scored: Scored, batch: Prepared) -> Tensor:
        """Minus advantage times log-probability, a scalar."""
        return policy_gradient_loss(
            scored.logprobs, batch.advantages, batch.mask, count=batch.tokens
        )
