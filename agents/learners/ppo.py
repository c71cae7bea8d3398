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

import torch
from torch import Tensor

from agents.bridge.learner import Learner, LossParts
from agents.learners.kl_penalty import penalty_in_loss, penalty_in_reward
from agents.maths.losses import clipped_policy_loss, value_loss
from agents.maths.masking import masked_mean, whiten
from agents.maths.returns import gae, token_rewards
from agents.models.language_model import Scored
from agents.rollout import Prepared, Rollout, prepared


class PPO(Learner):
    """Sequence-level PPO; the baseline, and the learner of the paper."""

    def prepare(self, rollout: Rollout) -> Prepared:
        """Token rewards, GAE, and whitening over the whole batch if so asked."""
        config = self.config
        penalty = penalty_in_reward(rollout, config.kl_estimator, self.kl_controller.coef)
        rewards = token_rewards(rollout.payoffs, penalty, rollout.mask)
        advantages, returns = gae(
            rewards, rollout.values, rollout.mask, gamma=config.gamma, gae_lambda=config.gae_lambda
        )
        sigma = torch.ones((), dtype=advantages.dtype)
        if config.whiten == "batch":
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
        config, mask, count = self.config, batch.mask, batch.tokens
        policy = clipped_policy_loss(
            scored.logprobs,
            batch.logprobs,
            batch.advantages,
            mask,
            clip_coef=config.clip_coef,
            count=count,
        )
        critic = value_loss(
            scored.values,
            batch.values,
            batch.returns,
            mask,
            value_clip=config.value_clip,
            count=count,
        )
        penalty = penalty_in_loss(
            scored,
            batch,
            config.kl_estimator,
            coef=self.kl_controller.coef,
            sigma=batch.sigma[0],
        )
        total = policy + config.vf_coef * critic + penalty
        if config.ent_coef:
            total = total - config.ent_coef * masked_mean(scored.entropy, mask, count)
        return total, LossParts(policy_loss=policy, value_loss=critic, kl_loss=penalty)
