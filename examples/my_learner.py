"""A learner of one's own in one file: learn from what went better than usual, forget the rest.

Run from the root of the repository: cory-train --algorithm examples.my_learner:MyLearner

The advantage of a response is how much more it earned than the mean of the agent's batch, or 0.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from agents.bridge.learner import Learner, LossParts
from agents.learners.kl_penalty import regularised
from agents.maths.baselines import compared
from agents.maths.losses import policy_gradient_loss
from agents.models.language_model import Scored
from agents.rollout import Prepared, Rollout, prepared
from agents.traits import SMALL_STEPS, Traits


class MyLearner(Learner):
    """The plain policy gradient, of good surprises only."""

    # It reads none of the settings that only some learners read, and its loss has no ratio to the
    # policy that drew the batch: so each response is learned from once, in small steps.
    traits: ClassVar[Traits] = Traits(reads=frozenset(), single_pass=True, rate=SMALL_STEPS)

    def prepare(self, rollout: Rollout) -> Prepared:
        """Called once with an agent's whole batch: one advantage for all tokens of a response."""
        earned = rollout.earned  # the payoff without what was settled before the agent acted, [B]
        everyone = torch.zeros_like(rollout.episode)  # one group
        gain = compared(earned, earned.mean(), everyone).clamp(min=0.0)
        advantages = (gain.unsqueeze(-1) * rollout.mask).to(rollout.values.dtype)  # [B, T]
        no_critic = torch.zeros_like(advantages)
        return prepared(rollout, advantages, no_critic, sigma=torch.ones(()))

    def loss(self, scored: Scored, batch: Prepared) -> tuple[Tensor, LossParts]:
        """Called with pieces of a minibatch, whose losses are added: so divide by batch.tokens."""
        policy = policy_gradient_loss(
            scored.logprobs, batch.advantages, batch.mask, count=batch.tokens
        )
        total, kl = regularised(policy, scored, batch, self.config, self.kl_controller.coef)
        return total, LossParts(policy_loss=policy, kl_loss=kl)
