"""Where the divergence from the reference enters an update, by the estimator's name.

| estimator | in the token rewards | in the loss |
| --- | --- | --- |
| exact | full KL (later tokens', through the reward-to-go) | full KL of the current token |
| k1 | log-ratio of the drawn token | - |
| k3 | - | k3 of the drawn token |
| reference | full KL | - |

The rewards carry no gradient of their own; `docs/kl.md` says which gradient each choice has.
"""

from __future__ import annotations

import torch
from torch import Tensor

from agents.config import TrainConfig
from agents.maths.kl import k1, k3
from agents.maths.masking import masked_mean
from agents.models.language_model import Scored
from agents.rollout import Prepared, Rollout


def penalty_in_reward(rollout: Rollout, estimator: str, coef: float) -> Tensor:
    """Cost of each token, subtracted from its reward; [B, T], no gradient.

    Args:
        rollout: one agent's responses.
        estimator: a name of the table above.
        coef: weight per nat.
    """
    if estimator in ("exact", "reference"):
        return coef * rollout.kl
    if estimator == "k1":
        return (coef * k1(rollout.logprobs, rollout.ref_logprobs)).masked_fill(~rollout.mask, 0.0)
    return torch.zeros_like(rollout.kl)


def penalty_in_loss(
    scored: Scored, batch: Prepared, estimator: str, *, coef: float, sigma: Tensor
) -> Tensor:
    """Term added to the loss, with gradient; a scalar.

    Divided by sigma, which the advantages were divided by: otherwise the weight of this term
    against the rewards would change with their spread.
    """
    if estimator == "exact":
        divergence = scored.kl
    elif estimator == "k3":
        divergence = k3(scored.logprobs, batch.ref_logprobs)
    else:
        return scored.logprobs.new_zeros(())
    return coef / sigma * masked_mean(divergence, batch.mask, batch.tokens)


def regularised(
    policy: Tensor, scored: Scored, batch: Prepared, config: TrainConfig, coef: float
) -> tuple[Tensor, Tensor]:
    """A policy loss with what keeps a policy where it is: the KL's part, and an entropy bonus.

    Args:
        policy: the policy loss, a scalar.
        scored: what the policy says now.
        batch: the piece of the minibatch.
        config: says estimator and weight of the bonus.
        coef: weight of the KL, per nat.

    Returns:
        The loss, and the KL's part of it; scalars.
    """
    penalty = penalty_in_loss(scored, batch, config.kl_estimator, coef=coef, sigma=batch.sigma[0])
    total = policy + penalty
    if config.ent_coef:
        total = total - config.ent_coef * masked_mean(scored.entropy, batch.mask, batch.tokens)
    return total, penalty
