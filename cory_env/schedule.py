"""Which query and which turn order an environment's next episode has."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cory_env.queries import QuerySource
from cory_env.records import Query
from cory_env.roles import rotate

ROLE_SCHEDULES = ("fixed", "alternate", "random")
_ORDER_STREAM = 1  # apart from the query orders, which use [seed, pass]


def check_role_schedule(role_schedule: str) -> str:
    """Return the schedule if there is one of that name.

    Raises:
        ValueError: otherwise.
    """
    if role_schedule not in ROLE_SCHEDULES:
        raise ValueError(
            f"role_schedule must be one of {list(ROLE_SCHEDULES)}, got {role_schedule!r}"
        )
    return role_schedule


class EpisodeSchedule:
    """Deals out queries and turn orders; everything follows from the seed and from what was played.

    An episode that nobody played is dealt again: libraries that reset twice in a row (Tianshou's
    Collector does) neither skip queries nor move the roles on.
    """

    def __init__(
        self, queries: Sequence[Query] | None, agents: Sequence[str], role_schedule: str, seed: int
    ) -> None:
        """Begin at the first query and the first turn order.

        Args:
            queries: those of the split; None: every deal is given one.
            agents: all agents, in the order of their names.
            role_schedule: "fixed", "alternate" or "random".
            seed: of the query order and of random turn orders.

        Raises:
            ValueError: if the schedule or the seed is not usable.
        """
        self._source = None if queries is None else QuerySource(queries, seed)
        self._agents = tuple(agents)
        self._role_schedule = check_role_schedule(role_schedule)
        self._seed = int(seed)
        self._played = 0
        self._given_query: Query | None = None
        self._given_order: tuple[str, ...] | None = None

    def played(self) -> None:
        """Note that the episode dealt last has been played: the next deal is another one."""
        if self._given_query is None and self._source is not None:
            self._source.position += 1
        self._played += 1
        self._given_query = None
        self._given_order = None

    def deal(
        self, query: Query | None = None, turn_order: tuple[str, ...] | None = None
    ) -> tuple[Query, tuple[str, ...]]:
        """Return query and turn order of the coming episode.

        Args:
            query: what the user wants instead; the query that was due stays due.
            turn_order: what the user wants instead, for this episode.

        Raises:
            ValueError: if no query is given and there are none.
        """
        if query is not None:
            self._given_query = query
        if turn_order is not None:
            self._given_order = turn_order
        dealt = self._due() if self._given_query is None else self._given_query
        return dealt, self._given_order or self._scheduled_order()

    def _due(self) -> Query:
        if self._source is None:
            raise ValueError("reset must name options['query'] in a game without a split, got none")
        return self._source.peek()

    def _scheduled_order(self) -> tuple[str, ...]:
        if self._role_schedule == "alternate":
            return rotate(self._agents, self._played)
        if self._role_schedule == "random":
            rng = np.random.default_rng([self._seed, self._played, _ORDER_STREAM])
            return tuple(self._agents[place] for place in rng.permutation(len(self._agents)))
        return self._agents
