"""The typed record of one agent's finished turns, which every learner works on."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rollout:
    """A batch of one agent's responses: B rows, T positions, Q prompt width, H hidden width."""

    prompt_ids: Tensor
    """Left-padded with -1, [B, Q]."""
    response_ids: Tensor
    """End token included, padded with -1 on the right, [B, T]."""
    logprobs: Tensor
    """Of each token when it was drawn, [B, T], nats."""
    values: Tensor
    """Of the critic when it was drawn, [B, T]."""
    kl: Tensor
    """KL(policy || reference) over the whole vocabulary when it was drawn, [B, T], nats."""
    entropy: Tensor
    """Of the policy when it was drawn, [B, T], nats."""
    ref_logprobs: Tensor
    """Of each token under the reference, [B, T], nats."""
    ref_hidden: Tensor
    """Hidden states of the reference, [B, T, H]; [B, T, 0] where the KL estimator needs none."""
    payoffs: Tensor
    """What each response was paid, [B]."""
    episode: Tensor
    """Number of the episode within the iteration, [B]: the rows of two agents meet by it."""
    seat: int
    """Position of the agent in the turn order of this iteration."""

    def __post_init__(self) -> None:
        batch, width = self.response_ids.shape
        for name in ("logprobs", "values", "kl", "entropy", "ref_logprobs"):
            got = tuple(getattr(self, name).shape)
            if got != (batch, width):
                raise ValueError(f"{name} must be [{batch}, {width}], got {list(got)}")
        for name in ("prompt_ids", "ref_hidden", "payoffs", "episode"):
            if len(getattr(self, name)) != batch:
                raise ValueError(f"{name} must have {batch} rows, got {len(getattr(self, name))}")

    @property
    def mask(self) -> Tensor:
        """True = a token of the response, [B, T]; from the ids' padding, never from a token."""
        return self.response_ids >= 0

    def __len__(self) -> int:
        return len(self.response_ids)

    def select(self, rows: Tensor) -> Self:
        """The same record of some rows only."""
        changes = {
            f.name: getattr(self, f.name)[rows]
            for f in fields(self)
            if isinstance(getattr(self, f.name), Tensor)
        }
        return replace(self, **changes)


@dataclass(frozen=True)
class Prepared(Rollout):
    """A rollout with the learner's targets."""

    advantages: Tensor
    """Not yet whitened over a minibatch, [B, T]."""
    returns: Tensor
    """Targets of the critic, [B, T]."""
    sigma: Tensor
    """What the advantages were divided by, a row each (all the same), [B]."""
    token_count: int | None = None
    """Tokens of the whole minibatch, where this is a part of one."""

    @property
    def tokens(self) -> int:
        """What a mean over tokens divides by: the tokens of the whole minibatch."""
        return int(self.mask.sum()) if self.token_count is None else self.token_count


def prepared(rollout: Rollout, advantages: Tensor, returns: Tensor, sigma: Tensor) -> Prepared:
    """Add a learner's targets to a rollout."""
    own = {f.name: getattr(rollout, f.name) for f in fields(Rollout)}
    rows = torch.full((len(rollout),), float(sigma), dtype=advantages.dtype)
    return Prepared(**own, advantages=advantages, returns=returns, sigma=rows.to(advantages.device))
