"""Policy and value losses."""

from __future__ import annotations

import torch
from torch import Tensor

from agents.maths.masking import check_same_shape, masked_mean


def clipped_policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_coef: float,
    count: int | None = None,
) -> Tensor:
    """Clipped surrogate policy loss, averaged over the tokens where mask is True; all [B, T].

    `count` is the number of tokens of the whole minibatch, as in `masked_mean`; so it is below.

    Source: Schulman et al. 2017, equation 7; CORY paper, equation 11.
    """
    check_same_shape(logprobs=logprobs, old_logprobs=old_logprobs, advantages=advantages, mask=mask)
    # Padding gets ratio 1: exp of an arbitrary number there could be inf and poison the gradient.
    ratio = torch.exp((logprobs - old_logprobs).masked_fill(~mask, 0.0))
    clipped = ratio.clamp(1.0 - clip_coef, 1.0 + clip_coef)
    return masked_mean(torch.maximum(-advantages * ratio, -advantages * clipped), mask, count)


def policy_gradient_loss(
    logprobs: Tensor, advantages: Tensor, mask: Tensor, *, count: int | None = None
) -> Tensor:
    """Minus advantage times log-probability, averaged over the tokens that count; all [B, T].

    Source: Williams 1992, section 4, the REINFORCE algorithms; the advantage is what it calls
    reinforcement minus baseline.
    """
    check_same_shape(logprobs=logprobs, advantages=advantages, mask=mask)
    return masked_mean(-advantages * logprobs, mask, count)


def value_loss(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    mask: Tensor,
    *,
    value_clip: float | None = None,
    count: int | None = None,
) -> Tensor:
    """Mean squared error of the critic over the tokens where mask is True; all [B, T].

    Args:
        values: the critic now.
        old_values: the critic when the responses were drawn.
        returns: its targets.
        mask: True = counts.
        value_clip: None, or how far the critic may move from `old_values` before the larger of
            the two errors counts. In units of the return.
        count: tokens of the whole minibatch; None: those of the mask.

    Source: CORY paper, equation 10; the factor 1/2 of other libraries is in `vf_coef`.
    """
    check_same_shape(values=values, old_values=old_values, returns=returns, mask=mask)
    error = (values - returns) ** 2
    if value_clip is not None:
        near = old_values + (values - old_values).clamp(-value_clip, value_clip)
        error = torch.maximum(error, (near - returns) ** 2)
    return masked_mean(error, mask, count)


def ratio_statistics(
    logprobs: Tensor,
    old_logprobs: Tensor,
    mask: Tensor,
    *,
    clip_coef: float,
    count: int | None = None,
) -> tuple[Tensor, Tensor]:
    """How far the policy has moved since the responses were drawn.

    Returns:
        approx_kl: mean of (ratio - 1) - log ratio, nats per token (Schulman's k3), a scalar.
        clip_fraction: share of tokens whose ratio left the clip range, a scalar.
    """
    with torch.no_grad():
        log_ratio = (logprobs - old_logprobs).masked_fill(~mask, 0.0)
        approx_kl = masked_mean(torch.expm1(log_ratio) - log_ratio, mask, count)
        outside = (torch.expm1(log_ratio).abs() > clip_coef).to(logprobs.dtype)
        return approx_kl, masked_mean(outside, mask, count)


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor) -> float | None:
    """1 - Var(returns - values) / Var(returns) over tokens; None where the returns are constant."""
    predicted, target = values[mask].double(), returns[mask].double()
    if target.numel() < 2:
        return None
    variance = float(target.var())
    if variance == 0.0:
        return None
    return 1.0 - float((target - predicted).var()) / variance
