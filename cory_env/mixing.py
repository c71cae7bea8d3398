"""Who is paid for whose score.

The agent in seat i is paid sum_j W[i, j] * score_j. "sum" is CORY's collective reward (all ones),
"own" the identity, "competitive" has 1 on the diagonal and -1/(n-1) off it.

Source: Ma et al., "Coevolving with the Other You" (NeurIPS 2024), the collective reward of its
section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float64]
Mixing = Callable[[Scores], Scores]
MixingSpec = str | Sequence[Sequence[float]] | NDArray[np.floating[Any]] | Callable[..., Any]


def sum_matrix(n_agents: int) -> Scores:
    """Everyone is paid everyone's score."""
    return np.ones((n_agents, n_agents))


def own_matrix(n_agents: int) -> Scores:
    """Each is paid its own score."""
    return np.eye(n_agents)


def competitive_matrix(n_agents: int) -> Scores:
    """Each is paid its own score minus the mean of the others'; with one agent, its own score."""
    off_diagonal = -1.0 / max(n_agents - 1, 1)
    return np.where(np.eye(n_agents, dtype=bool), 1.0, off_diagonal)


MIXINGS: dict[str, Callable[[int], Scores]] = {
    "sum": sum_matrix,
    "own": own_matrix,
    "competitive": competitive_matrix,
}


@dataclass(frozen=True, eq=False)
class MatrixMixing:
    """Payoffs by a matrix over seats, [n, n]."""

    matrix: Scores

    def __call__(self, scores: Scores) -> Scores:
        """Return payoffs [..., n] for scores [..., n]."""
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused
            # A sum of products: a matrix product may round differently for another batch size.
            products: Scores = np.asarray(scores, dtype=np.float64)[..., None, :] * self.matrix
            payoffs: Scores = products.sum(axis=-1)
        return payoffs


@dataclass(frozen=True, eq=False)
class CallableMixing:
    """Payoffs by a user's function of one episode's scores, [n] -> [n]."""

    function: Callable[..., Any]
    n_agents: int

    def __call__(self, scores: Scores) -> Scores:
        """Return payoffs [..., n] for scores [..., n], one call for each episode.

        Raises:
            ValueError: if the function does not give n finite numbers.
        """
        scores = np.asarray(scores, dtype=np.float64)
        rows = [self._one(row) for row in scores.reshape(-1, self.n_agents)]
        return np.array(rows, dtype=np.float64).reshape(scores.shape)

    def _one(self, scores: Scores) -> Scores:
        # The function gets a copy: what it does to it must not reach the record.
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused
            payoffs = np.asarray(self.function(scores.copy()), dtype=np.float64)
        if payoffs.shape != (self.n_agents,) or not np.isfinite(payoffs).all():
            raise ValueError(
                f"reward_mixing must give {self.n_agents} finite payoffs for scores "
                f"{scores.tolist()}, got {payoffs.tolist()}"
            )
        return payoffs


def mixing(spec: MixingSpec, n_agents: int) -> Mixing:
    """Build the function from scores by seat to payoffs by seat.

    Args:
        spec: "sum", "own", "competitive", a matrix [n, n], or a callable `scores -> payoffs` on
            [n].
        n_agents: n, the number of seats.

    Raises:
        ValueError: for an unknown name or a matrix that is not n x n and finite.
    """
    if isinstance(spec, str):
        if spec not in MIXINGS:
            raise ValueError(
                f"reward_mixing must be a matrix, a callable or one of {sorted(MIXINGS)}, "
                f"got {spec!r}"
            )
        return MatrixMixing(MIXINGS[spec](n_agents))
    if callable(spec):
        return CallableMixing(spec, n_agents)
    try:
        matrix = np.array(spec, dtype=np.float64)
    except (OverflowError, TypeError, ValueError) as error:
        raise ValueError(
            f"reward_mixing must be a name, a matrix of numbers or a callable, got {spec!r}"
        ) from error
    if matrix.shape != (n_agents, n_agents) or not np.isfinite(matrix).all():
        raise ValueError(
            f"reward_mixing must be a finite {n_agents} x {n_agents} matrix, got {matrix.tolist()}"
        )
    return MatrixMixing(matrix)
