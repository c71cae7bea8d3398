"""Proximal policy optimisation over whole responses, each agent for itself.

    token rewards = - kl_coef * KL of the token, plus the payoff on the last token   (CORY, eq. 2)
    advantages    = GAE(gamma, gae_lambda), value 0 after the last token             (eq. 12)
    returns       = advantages + values, before whitening
    loss          = clipped surrogate + vf_coef * value loss (eq. 10, 11, 13)
                    - ent_coef * entropy + the current token's KL (`kl_estimator` exact or k3)

Deviations from the paper: the KL's true gradient by default (its own is `--kl-estimator
reference`), a fixed KL weight, and the factor 1/2 of its value loss inside `vf_coef`.

Source: Schulman et al. 2017; Ma et al. 2024, section 3.2 and appendix B.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from agents.bridge.learner import Learner, LossParts
from agents.learners.kl_penalty import penalty_in_reward, regularised
from agents.maths.losses import clipped_policy_loss, value_loss
from agents.maths.masking import whiten
from agents.maths.returns import gae, token_rewards
from agents.models.language_model import Scored
from agents.rollout import Prepared, Rollout, prepared
from agents.traits import Traits


class PPO(Learner):
    """Sequence-level PPO; the baseline, and the learner of the paper."""

    traits: ClassVar[Traits] = Traits(
        reads=frozenset(
            {"clip_coef", "value_clip", "vf_coef", "ent_coef", "gamma", "gae_lambda", "whiten"}
        )
    )

    def prepare(self, rollout: Rollout) -> Prepared:
        """Token rewards, GAE, and whitening over the whole batch if so asked."""
        config = self.config
        advantages, returns = gae(
            self.token_rewards(rollout, rollout.payoffs),
            rollout.values,
            rollout.mask,
            gamma=config.gamma,
            gae_lambda=config.gae_lambda,
        )
        return self.whitened(rollout, advantages, returns)

    def token_rewards(self, rollout: Rollout, payoffs: Tensor) -> Tensor:
        """Payoffs [B] on the last tokens, and the KL's part on all, [B, T]."""
        penalty = penalty_in_reward(rollout, self.config.kl_estimator, self.kl_controller.coef)
        return token_rewards(payoffs, penalty, rollout.mask)

    def whitened(self, rollout: Rollout, advantages: Tensor, returns: Tensor) -> Prepared:
        """A rollout with its targets, whitened over the whole batch if so asked."""
        sigma = torch.ones((), dtype=advantages.dtype)
        if self.config.whiten == "batch":
            advantages, sigma = whiten(advantages, rollout.mask)
        return prepared(rollout, advantages, returns, sigma)

    def minibatch(self, batch: Prepared) -> Prepared:
        """Whiten over the minibatch if so asked."""
        if self.config.whiten != "minibatch":
            return batch
        advantages, sigma = whiten(batch.advantages, batch.mask)
        return replace(batch, advantages=advantages, sigma=sigma.expand(len(batch)))

    def loss(self, scored: Scored, batch: Prepared) -> tuple[Tensor, LossParts]:
        """Clipped surrogate, value loss, entropy bonus and the loss part of the KL."""
        config = self.config
        policy = self.policy_loss(scored, batch)
        critic = value_loss(
            scored.values,
            batch.values,
            batch.returns,
            batch.mask,
            value_clip=config.value_clip,
            count=batch.tokens,
        )
        total, penalty = regularised(policy, scored, batch, config, self.kl_controller.coef)
        total = total + config.vf_coef * critic
        return total, LossParts(policy_loss=policy, value_loss=critic, kl_loss=penalty)

    def policy_loss(self, scored: Scored, batch: Prepared) -> Tensor:
        """The clipped surrogate, a scalar."""
        return clipped_policy_loss(
            scored.logprobs,
            batch.logprobs,
            batch.advantages,
            batch.mask,
            clip_coef=self.config.clip_coef,
            count=batch.tokens,
        )
