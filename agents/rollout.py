"""The typed record of one agent's finished turns, which every learner works on."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """A batch of one agent's responses: B rows, T positions, Q prompt width, H hidden width.

    N is the number of seats. The last four fields are how the game stood when it had ended; without
    them (None) each response is a group of its own and is paid for itself alone.
    """

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
    scores: Tensor = field(default=None)  # type: ignore[assignment]
    """Of all seats in the episode, [B, N], float64."""
    shares: Tensor = field(default=None)  # type: ignore[assignment]
    """What each seat's score contributed to the payoff, [B, N], float64; they add up to it. Those
    of earlier seats were settled before the agent acted."""
    group: Tensor = field(default=None)  # type: ignore[assignment]
    """Responses of one number are compared: they answer the same query, or in nested groups the
    same prompt, [B]."""
    without: Tensor = field(default=None)  # type: ignore[assignment]
    """What later seats' scores would have contributed, had they not read this response, [B]; 0
    where nobody asked."""

    def __post_init__(self) -> None:
        batch, width = self.response_ids.shape
        self._fill(batch)
        for name in ("logprobs", "values", "kl", "entropy", "ref_logprobs"):
            got = tuple(getattr(self, name).shape)
            if got != (batch, width):
                raise ValueError(f"{name} must be [{batch}, {width}], got {list(got)}")
        for name in (
            "prompt_ids",
            "ref_hidden",
            "payoffs",
            "episode",
            "scores",
            "shares",
            "group",
            "without",
        ):
            if len(getattr(self, name)) != batch:
                raise ValueError(f"{name} must have {batch} rows, got {len(getattr(self, name))}")

    def _fill(self, batch: int) -> None:
        """A response by itself."""
        paid = self.payoffs.double()
        alone = torch.zeros(batch, self.seat + 1, dtype=torch.float64, device=paid.device)
        alone[:, self.seat] = paid if len(paid) == batch else 0.0
        defaults = {
            "scores": alone,
            "shares": alone,
            "group": torch.arange(batch, device=paid.device),
            "without": torch.zeros(batch, dtype=torch.float64, device=paid.device),
        }
        for name, value in defaults.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)

    @property
    def mask(self) -> Tensor:
        """True = a token of the response, [B, T]; from the ids' padding, never from a token."""
        return self.response_ids >= 0

    @property
    def earned(self) -> Tensor:
        """The payoff without what was settled before the agent acted, [B], float64.

        Earlier seats' scores are no consequence of the response: they give no gradient, only noise.
        """
        return self.payoffs.double() - self.shares[:, : self.seat].sum(-1)

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


@dataclass(frozen=True, kw_only=True)
class Prepared(Rollout):
    """A rollout with the learner's targets."""

    advantages: Tensor
    """Not yet whitened over a minibatch, [B, T]."""
    returns: Tensor
    """Targets of the critic, [B, T]."""
    sigma: Tensor
    """What the advantages were divided by, a row each (all the same), [B]."""
    ref_log_probs: Tensor | None = None
    """What the reference says at each position, [B, T, V], over the passes of an update; None where
    that would be too large to keep."""
    token_count: int | None = None
    """Tokens of the whole minibatch, where this is a part of one."""
    factor: Tensor | None = None
    """M of HAPPO, [B]: how much likelier the other agents' responses of the episode have become by
    the updates that came before this one; None: no other was updated before."""

    @property
    def tokens(self) -> int:
        """What a mean over tokens divides by: the tokens of the whole minibatch."""
        return int(self.mask.sum()) if self.token_count is None else self.token_count


def prepared(rollout: Rollout, advantages: Tensor, returns: Tensor, sigma: Tensor) -> Prepared:
    """Add a learner's targets to a rollout."""
    own = {f.name: getattr(rollout, f.name) for f in fields(Rollout)}
    rows = torch.full((len(rollout),), float(sigma), dtype=advantages.dtype)
    return Prepared(**own, advantages=advantages, returns=returns, sigma=rows.to(advantages.device))
