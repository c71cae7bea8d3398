"""How the games of an iteration ended, as every agent's rollout tells it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agents.bridge.vector_env import ResponseVectorEnv
from agents.groups import Groups
from agents.rollout import Rollout
from cory_env.mixing import MatrixMixing


@dataclass(frozen=True)
class Outcome:
    """Scores of an iteration's episodes and what they were paid for; E episodes, N seats."""

    scores: NDArray[np.float64]
    """[E, N]."""
    others: NDArray[np.float64]
    """The scores that the mixing saw for the other seats: a placebo's are those of another episode,
    [E, N]."""
    matrix: NDArray[np.float64] | None
    """W over seats, [N, N]; None: payoffs are some other function of the scores."""
    groups: Groups

    def shares(self, seat: int, payoffs: NDArray[np.float64]) -> NDArray[np.float64]:
        """What each seat's score contributed to a seat's payoffs, [E] -> [E, N].

        Where payoffs are no sum over the scores, all of it is the seat's own.
        """
        if self.matrix is None:
            shares = np.zeros_like(self.scores)
            shares[:, seat] = payoffs
            return shares
        seen = self.others.copy()
        seen[:, seat] = self.scores[:, seat]
        return np.asarray(seen * self.matrix[seat], dtype=np.float64)


def outcome_of(env: ResponseVectorEnv, groups: Groups) -> Outcome:
    """The outcome of an environment's finished episodes."""
    scores = np.array([[turn.score for turn in r.turns] for r in env.records()], dtype=np.float64)
    mixing = env.runner.rules.mixing
    return Outcome(
        scores=scores,
        others=scores[env.runner.paid_from],
        matrix=mixing.matrix if isinstance(mixing, MatrixMixing) else None,
        groups=groups,
    )


def with_outcome(
    rollout: Rollout, outcome: Outcome, without: NDArray[np.float64] | None
) -> Rollout:
    """A rollout that knows how its episodes ended.

    Args:
        rollout: its rows are the episodes, all of them, in order.
        outcome: of these episodes.
        without: see `Rollout.without`, [E]; None: nobody asked.
    """
    device = rollout.payoffs.device
    episodes = rollout.episode.cpu().numpy()
    shares = outcome.shares(rollout.seat, rollout.payoffs.double().cpu().numpy())
    return replace(
        rollout,
        scores=torch.as_tensor(outcome.scores).to(device),
        shares=torch.as_tensor(shares).to(device),
        group=torch.as_tensor(outcome.groups.keys(rollout.seat, episodes)).to(device),
        without=rollout.without if without is None else torch.as_tensor(without).to(device),
    )


AVERAGED = ("payoffs", "scores", "shares", "without")


def distinct(rollout: Rollout, groups: Groups) -> Rollout:
    """Each response once: those that stand in several episodes are paid the mean over these.

    In gradient this is the same as learning from each copy, at a fraction of the work.
    """
    drawn = groups.first(rollout.seat, rollout.episode.cpu().numpy())
    _, rows, place = np.unique(drawn, return_index=True, return_inverse=True)
    if len(rows) == len(rollout):
        return rollout
    device = rollout.payoffs.device
    where = torch.as_tensor(place).to(device)
    kept = rollout.select(torch.as_tensor(rows).to(device))
    changes: dict[str, Any] = {
        name: _means(getattr(rollout, name), where, len(rows)) for name in AVERAGED
    }
    return replace(kept, **changes)


def _means(values: Tensor, where: Tensor, n: int) -> Tensor:
    """Mean over the rows of each number; [B, ...] -> [n, ...]."""
    sums = values.new_zeros((n, *values.shape[1:])).index_add_(0, where, values)
    counts = torch.bincount(where, minlength=n).to(values)
    return sums / counts.view(-1, *[1] * (values.ndim - 1))


def charged(rollouts: Sequence[Rollout], costs: Sequence[Tensor]) -> list[Rollout]:
    """Charge each agent what the responses after its own cost.

    Earlier ones are fixed before it acts and would only add noise.

    Args:
        rollouts: one an agent.
        costs: of each agent's responses, [B].
    """
    found = []
    for rollout in rollouts:
        later = [c for c, r in zip(costs, rollouts, strict=True) if r.seat > rollout.seat]
        charge = torch.stack(later).sum(0) if later else torch.zeros_like(rollout.payoffs)
        found.append(replace(rollout, payoffs=rollout.payoffs - charge))
    return found
