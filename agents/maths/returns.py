"""Token rewards, returns and generalised advantage estimation over one agent's responses."""

from __future__ import annotations

import torch
from torch import Tensor

from agents.maths.masking import check_same_shape


def token_rewards(payoffs: Tensor, penalties: Tensor, mask: Tensor) -> Tensor:
    """Reward of every token: minus its penalty, plus the payoff on the last token that counts.

    Args:
        payoffs: what each response was paid, [B].
        penalties: cost of each token (coefficient times KL), [B, T].
        mask: True = counts; True positions are a prefix of each row, [B, T].

    Returns:
        [B, T]. The payoff of an empty response goes nowhere: it has no token.

    Source: CORY paper, equation 2.
    """
    check_same_shape(penalties=penalties, mask=mask)
    rewards = (-penalties).masked_fill(~mask, 0.0)
    lengths = mask.sum(-1)
    rows = torch.nonzero(lengths > 0).squeeze(-1)
    rewards[rows, lengths[rows] - 1] += payoffs[rows].to(rewards.dtype)
    return rewards


def gae(
    rewards: Tensor, values: Tensor, mask: Tensor, *, gamma: float, gae_lambda: float
) -> tuple[Tensor, Tensor]:
    """Advantages and returns of each token, with value 0 after a response's last token.

    Args:
        rewards: [B, T].
        values: critic's estimate before each token is drawn, [B, T].
        mask: True = counts; a prefix of each row, [B, T].
        gamma: discount per token.
        gae_lambda: trace decay per token.

    Returns:
        advantages and returns = advantages + values, both [B, T], 0 outside the mask.

    Source: Schulman et al. 2016, equation 16; CORY paper, equation 12 (with its index mended).
    """
    check_same_shape(rewards=rewards, values=values, mask=mask)
    rewards = rewards.masked_fill(~mask, 0.0)
    values = values.masked_fill(~mask, 0.0)
    advantages = torch.zeros_like(values)
    next_value = (
        torch.zeros_like(values[:, 0]) if values.shape[1] else values.new_zeros(len(values))
    )
    carried = torch.zeros_like(next_value)
    for t in range(values.shape[1] - 1, -1, -1):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        # Outside the mask rewards, values and what is carried are all 0, so padding adds nothing.
        carried = delta + gamma * gae_lambda * carried
        advantages[:, t] = carried
        next_value = values[:, t]
    return advantages, (advantages + values).masked_fill(~mask, 0.0)
