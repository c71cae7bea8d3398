"""Groups: which episodes share a query, and which responses are compared with each other.

In *query groups* of G an iteration plays G episodes of each query. In *nested groups* the first
speaker answers a query G times, and each of its answers is answered m times: the G * m episodes of
a query come in blocks of m with the same first response.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Groups:
    """How the episodes of an iteration, numbered from 0, belong together."""

    size: int = 1
    """G: answers to a query that are compared; 1: every episode stands alone."""
    nested: int = 1
    """m: later answers to each first answer; 1: query groups."""

    def __post_init__(self) -> None:
        if self.size < 1 or self.nested < 1:
            raise ValueError(f"groups must be at least 1 x 1, got {self.size} x {self.nested}")

    @property
    def episodes(self) -> int:
        """Episodes of one query."""
        return self.size * self.nested

    def queries(self, n_episodes: int) -> int:
        """Queries that so many episodes take.

        Raises:
            ValueError: if they are not whole groups.
        """
        if n_episodes % self.episodes:
            raise ValueError(
                f"batch_size must give whole groups: expected a multiple of {self.episodes} "
                f"episodes an iteration, got {n_episodes}"
            )
        return n_episodes // self.episodes

    def keys(self, seat: int, episodes: NDArray[np.int64]) -> NDArray[np.int64]:
        """The group of the response of a seat in each episode, [B] -> [B].

        Responses of one seat with one key are compared: they answer the same query, and in nested
        groups of later seats the same prompt.
        """
        return episodes // (self.nested if seat and self.nested > 1 else self.episodes)

    def first(self, seat: int, episodes: NDArray[np.int64]) -> NDArray[np.int64]:
        """The episode in which the response of a seat was drawn, [B] -> [B].

        It is the episode itself, but for the first seat of nested groups: one answer there stands
        in m episodes.
        """
        return episodes if seat else episodes - episodes % self.nested
