"""Token rewards, returns and generalised advantage estimation over one agent's responses."""

from __future__ import annotations

from collections.abc import Sequence

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


def to_go(values: Tensor, mask: Tensor) -> Tensor:
    """Sum of each token's value and those of the tokens after it, 0 outside the mask; [B, T]."""
    check_same_shape(values=values, mask=mask)
    whole = values.masked_fill(~mask, 0.0)
    return whole.flip(-1).cumsum(-1).flip(-1).masked_fill(~mask, 0.0)


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


def chained_gae(
    rewards: Sequence[Tensor],
    values: Sequence[Tensor],
    masks: Sequence[Tensor],
    *,
    gamma: float,
    gae_lambda: float,
    lambda_turn: float,
) -> list[tuple[Tensor, Tensor]]:
    """Advantages and returns over all turns of an episode as one stream of tokens.

    After a turn's last token the value is that before the next turn's first token, so the critic's
    estimate of what is to come, given all that was said, stands beside what came. Tokens of prompts
    between the turns are no steps.

    Args:
        rewards: by seat, each [B, T]; a row is the same episode in all of them.
        values: the same shapes.
        masks: the same shapes; each row's first positions.
        gamma: discount per token.
        gae_lambda: trace decay from token to token of one turn.
        lambda_turn: trace decay from a turn's last token to the next turn's first.

    Returns:
        As `gae`, by seat.

    Source: Schulman et al. 2016, equation 16, over the tokens of all agents in the order in which
    they act (Wang et al. 2025, "MARFT", its token-level advantages), with a decay of its own
    between turns.
    """
    found: list[tuple[Tensor, Tensor]] = []
    batch = len(rewards[-1])
    after = rewards[-1].new_zeros(batch)  # value and traced advantage of what follows the turn
    traced = torch.zeros_like(after)
    for reward, value, mask in zip(
        reversed(rewards), reversed(values), reversed(masks), strict=True
    ):
        lengths = mask.sum(-1)
        rows = torch.nonzero(lengths > 0).squeeze(-1)
        whole = reward.clone()
        whole[rows, lengths[rows] - 1] += gamma * (after + lambda_turn * traced)[rows]
        advantages, returns = gae(whole, value, mask, gamma=gamma, gae_lambda=gae_lambda)
        found.append((advantages, returns))
        # An empty turn has no first token: what follows it follows the turn before.
        after, traced = after.clone(), traced.clone()
        after[rows], traced[rows] = value[rows, 0].to(after.dtype), advantages[rows, 0]
    return found[::-1]
