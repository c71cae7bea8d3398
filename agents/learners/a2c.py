"""Advantage actor-critic over whole responses, each agent for itself.

    advantages    = GAE(gamma, gae_lambda), as in PPO
    policy loss   = - mean A_t log pi(token)
    loss          = policy loss + vf_coef * value loss - ent_coef * entropy
                    + the current token's KL (`kl_estimator` exact or k3)

There is no ratio to the policy that drew the batch, so each response is learned from once.

Source: Mnih et al. 2016, algorithm S3, with the synchronous updates and the traces of Schulman et
al. 2016, equation 16.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from agents.learners.ppo import PPO
from agents.maths.losses import policy_gradient_loss
from agents.models.language_model import Scored
from agents.rollout import Prepared
from agents.traits import SMALL_STEPS, Traits


class A2C(PPO):
    """PPO's advantages and critic with the plain policy gradient."""

    traits: ClassVar[Traits] = Traits(
        reads=frozenset({"value_clip", "vf_coef", "ent_coef", "gamma", "gae_lambda", "whiten"}),
        single_pass=True,
        rate=SMALL_STEPS,
    )

    def policy_loss(self, scored: Scored, batch: Prepared) -> Tensor:
        """Minus advantage times log-probability, a scalar."""
        return policy_gradient_loss(
            scored.logprobs, batch.advantages, batch.mask, count=batch.tokens
        )
