"""A stream of queries: each once per pass, in a seeded order; its state is one number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cory_env.records import Query


class QuerySource:
    """Deal out queries for ever.

    The order of pass p is a pure function of (seed, p), so `position` (queries dealt so far) is the
    whole state: save it, set it, and the stream goes on as if nothing had happened.
    """

    def __init__(self, queries: Sequence[Query], seed: int) -> None:
        """Fix the queries and the seed.

        Raises:
            ValueError: if there are no queries or the seed is not a whole number of at least 0.
        """
        if not queries:
            raise ValueError("queries must hold at least one query, got none")
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
            raise ValueError(f"seed must be a whole number of at least 0, got {seed!r}")
        self._queries = tuple(queries)
        self._seed = int(seed)
        self._position = 0
        self._pass = -1
        self._order: list[int] = []

    @property
    def position(self) -> int:
        """Number of queries dealt since the beginning."""
        return self._position

    @position.setter
    def position(self, value: int) -> None:
        if value < 0:
            raise ValueError(f"position must be at least 0, got {value}")
        self._position = int(value)

    def take(self, n: int) -> list[Query]:
        """Return the next n queries; a batch may cross the end of a pass.

        Raises:
            ValueError: if n is negative.
        """
        if n < 0:
            raise ValueError(f"n must be at least 0, got {n}")
        taken = [self._at(self._position + offset) for offset in range(n)]
        self._position += n
        return taken

    def peek(self) -> Query:
        """Return the next query without dealing it."""
        return self._at(self._position)

    def _at(self, position: int) -> Query:
        pass_number, place = divmod(position, len(self._queries))
        if pass_number != self._pass:
            rng = np.random.default_rng([self._seed, pass_number])
            self._order = rng.permutation(len(self._queries)).tolist()
            self._pass = pass_number
        return self._queries[self._order[place]]
