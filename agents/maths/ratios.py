"""Probability ratios of whole responses: those of a sequence, and the factor of HAPPO."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from agents.maths.masking import check_same_shape, masked_mean, masked_sum

LOG_LIMIT = math.log(2.0)
"""How far a logarithm of HAPPO's factor may be from 0."""


def sequence_log_ratio(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> Tensor:
    """Mean over a response's tokens of the log-ratio, [B]; 0 for an empty response.

    Source: Zheng et al. 2025, "Group Sequence Policy Optimization", equation 7.
    """
    check_same_shape(logprobs=logprobs, old_logprobs=old_logprobs, mask=mask)
    return masked_sum(logprobs - old_logprobs, mask) / mask.sum(-1).clamp(min=1)


def clipped_sequence_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_coef: float,
    count: int | None = None,
) -> Tensor:
    """Clipped surrogate with one ratio a response, averaged over tokens.

    Each response weighs as much as it has tokens, so the gradient of the first step is that of the
    loss over tokens. With a weight of 1 a response, as in the paper, long ones would count less.

    Args:
        logprobs: now, [B, T].
        old_logprobs: when the tokens were drawn, [B, T].
        advantages: [B, T]; they may differ within a response.
        mask: True = counts, [B, T].
        clip_coef: half-width of the clip.
        count: tokens of the whole minibatch, as in `masked_mean`.

    Source: Zheng et al. 2025, equations 5 and 13: the ratio's value is that of the response, its
    gradient that of the token.
    """
    check_same_shape(advantages=advantages, mask=mask)
    log_ratio = sequence_log_ratio(logprobs, old_logprobs, mask).detach().unsqueeze(-1)
    own = (logprobs - logprobs.detach()).masked_fill(~mask, 0.0)
    ratio = torch.exp(log_ratio + own)
    clipped = ratio.clamp(1.0 - clip_coef, 1.0 + clip_coef)
    return masked_mean(torch.maximum(-advantages * ratio, -advantages * clipped), mask, count)


def next_factor(
    factor: Tensor, logprobs: Tensor, old_logprobs: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor]:
    """M of the next agent, once one has been updated.

    Args:
        factor: M of the agent that was updated, [B].
        logprobs: of its responses after the update, [B, T], no gradient.
        old_logprobs: when they were drawn, [B, T].
        mask: True = counts, [B, T].

    Returns:
        factor * exp(sum over tokens of the log-ratio, kept within log 2 of 0), [B], and whether it
        was kept, [B].

    Source: Kuba et al. 2022, "Trust Region Policy Optimisation in Multi-Agent Reinforcement
    Learning", equation 11; here clamped, and a product over the tokens of a response.
    """
    check_same_shape(logprobs=logprobs, old_logprobs=old_logprobs, mask=mask)
    log_ratio = masked_sum(logprobs.detach() - old_logprobs, mask)
    kept = log_ratio.clamp(-LOG_LIMIT, LOG_LIMIT)
    return factor * kept.exp(), log_ratio.abs() > LOG_LIMIT


def effective_sample_size(weights: Tensor) -> float:
    """Share of equally weighted samples that would say as much: mean(w)^2 / mean(w^2), in (0, 1].

    Source: Kish 1965, "Survey Sampling", section 11.7.
    """
    wide = weights.double()
    return float(wide.mean() ** 2 / (wide**2).mean())
