"""Learners that count the KL elsewhere than ours do, and learners with faults in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from agents.learners import kl_penalty, ppo
from agents.maths.kl import k1, k3
from agents.maths.losses import clipped_policy_loss
from agents.maths.masking import masked_mean
from cory_env.mixing import own_matrix
from tests.agents.gradients.toy_game import Game

FORMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "full": lambda kl, log_ratio: kl,
    "k1": lambda kl, log_ratio: log_ratio,
    "k2": lambda kl, log_ratio: log_ratio**2 / 2,
    "k3": lambda kl, log_ratio: k3(log_ratio, torch.zeros_like(log_ratio)),
}
"""Estimates of a token's KL, from the full one and the log-ratio of the drawn token."""


@contextmanager
def kl_placed(in_reward: str | None, in_loss: str | None) -> Iterator[None]:
    """Count these forms of the KL in the rewards and in the loss, whatever is configured."""

    def reward(rollout: Any, estimator: str, coef: float) -> Tensor:
        if in_reward is None:
            return torch.zeros_like(rollout.kl)
        log_ratio = k1(rollout.logprobs, rollout.ref_logprobs)
        return coef * FORMS[in_reward](rollout.kl, log_ratio).masked_fill(~rollout.mask, 0.0)

    def loss(scored: Any, batch: Any, estimator: str, **rest: Any) -> Tensor:
        if in_loss is None:
            return scored.logprobs.new_zeros(())
        log_ratio = k1(scored.logprobs, batch.ref_logprobs)
        divergence = FORMS[in_loss](scored.kl, log_ratio)
        return rest["coef"] / rest["sigma"] * masked_mean(divergence, batch.mask)

    with (
        patch.object(ppo, "penalty_in_reward", reward),
        patch.object(kl_penalty, "penalty_in_loss", loss),
    ):
        yield


# Faults.


@contextmanager
def others_score_dropped(game: Game) -> Iterator[None]:
    """Everyone is paid its own score only, as if the credit of a later turn were lost."""
    matrix = game.rules.mixing.matrix  # type: ignore[attr-defined]
    before = matrix.copy()
    matrix[:] = own_matrix(len(game.order))
    try:
        yield
    finally:
        matrix[:] = before


@contextmanager
def end_left_out(game: Game) -> Iterator[None]:
    """The mask of the policy loss is one token too short: the last token learns nothing."""

    def loss(logprobs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, **rest: Any) -> Any:
        counted = mask.sum()
        following = torch.zeros_like(mask)
        following[:, :-1] = mask[:, 1:]
        short = mask & following
        if not bool(short.any()):
            return 0.0 * logprobs.sum()
        return clipped_policy_loss(logprobs, old, advantages, short, **rest) * (
            short.sum() / counted
        )

    with patch.object(ppo, "clipped_policy_loss", loss):
        yield


@contextmanager
def rewards_one_position_early(game: Game) -> Iterator[None]:
    """Each token is credited with the advantage of the one after it."""

    def loss(logprobs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, **rest: Any) -> Any:
        moved = torch.zeros_like(advantages)
        moved[:, :-1] = advantages[:, 1:]
        return clipped_policy_loss(logprobs, old, moved, mask, **rest)

    with patch.object(ppo, "clipped_policy_loss", loss):
        yield


@contextmanager
def kl_in_the_reward_only(game: Game) -> Iterator[None]:
    """`reference` where `exact` is meant."""
    with kl_placed("full", None):
        yield


@contextmanager
def no_fault(game: Game) -> Iterator[None]:
    """The code as it is."""
    yield


FAULTS = {
    "others_score_dropped": others_score_dropped,
    "kl_in_the_reward_only": kl_in_the_reward_only,
    "end_left_out": end_left_out,
    "rewards_one_position_early": rewards_one_position_early,
}
