"""Many episodes side by side, with one reward call for all that end in the same step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cory_env.episode import Episode
from cory_env.records import EpisodeRecord, Query
from cory_env.rewards.base import score_batch
from cory_env.roles import check_turn_order
from cory_env.rules import GameRules
from cory_env.tokens import pad_left

PLACEBOS = ("own", "permuted")


def derangement(n: int, rng: np.random.Generator, block: int = 1) -> list[int]:
    """Return a random permutation of range(n) that moves every block: one cycle of the blocks.

    Args:
        n: a multiple of `block`.
        rng: draws the cycle, uniformly.
        block: numbers that move together, and keep their places in the block.

    Raises:
        ValueError: if there are fewer than 2 blocks, where there is none.
    """
    blocks, rest = divmod(n, block)
    if rest:
        raise ValueError(f"a permuted batch must be whole blocks of {block}, got {n} episodes")
    if blocks < 2:
        of = "" if block == 1 else f" in blocks of {block}"
        raise ValueError(f"a permuted batch needs at least {2 * block} episodes{of}, got {n}")
    cycle = rng.permutation(blocks)
    permutation = np.empty(blocks, dtype=np.int64)
    permutation[cycle] = np.roll(cycle, 1)
    return [int(index) * block + place for index in permutation for place in range(block)]


class LockStepRunner:
    """Plays a batch of episodes; equal, bit for bit, to as many single environments.

    B is the number of episodes of the batch, n the number of ids in a call, N the number of agents.

    Attributes:
        rules: the game's settings.
        episodes: the episodes of the batch as they stand, [B].
        finished: the record of each episode that was played to its end since `begin`, [B]; a reset
            does not clear it.
    """

    def __init__(self, rules: GameRules, *, transfer: str = "own", scores: str = "own") -> None:
        """Choose the game.

        Args:
            rules: the game's settings.
            transfer: "own", or "permuted": later seats read the responses of another episode of the
                batch.
            scores: "own", or "permuted": in the mixing each seat sees its own score, and for the
                other seats those of another episode of the batch.

        Raises:
            ValueError: for another word, or "permuted" at token level, where episodes do not move
                together, or "permuted" transfer without knowledge transfer.
        """
        for name, value in (("transfer", transfer), ("scores", scores)):
            if value not in PLACEBOS:
                raise ValueError(f"{name} must be one of {list(PLACEBOS)}, got {value!r}")
        if "permuted" in (transfer, scores) and rules.action_level != "response":
            raise ValueError("a permuted batch needs action_level='response', got 'token'")
        if transfer == "permuted" and not rules.knowledge_transfer:
            raise ValueError("transfer='permuted' needs knowledge_transfer=True")
        self.rules = rules
        self.episodes: list[Episode] = []
        self.finished: list[EpisodeRecord | None] = []
        self._permuted_transfer = transfer == "permuted"
        self._permuted_scores = scores == "permuted"
        self._queries: list[Query] = []
        self._turn_order: tuple[str, ...] = rules.agents
        self._read_from: list[int] = []
        self._paid_from: list[int] = []

    @property
    def paid_from(self) -> list[int]:
        """Return the episode whose scores the mixing sees for the other seats, [B]."""
        return list(self._paid_from) if self._permuted_scores else list(range(len(self.episodes)))

    def begin(
        self,
        queries: Sequence[Query],
        turn_order: Sequence[str],
        rng: np.random.Generator | None = None,
        *,
        block: int = 1,
    ) -> None:
        """Fix the queries and the turn order of a batch and start its episodes.

        Args:
            queries: one for each episode, [B].
            turn_order: the agents by seat, the same in all episodes.
            rng: draws the permutations; needed only for a permuted batch.
            block: episodes of one query, which stand together; a permuted batch takes what belongs
                to another block, and so to another query.

        Raises:
            ValueError: if the order is wrong, a query does not fit, or a permuted batch has no
                generator or only one episode.
        """
        order = check_turn_order(turn_order, self.rules.agents)
        episodes = [Episode(self.rules, query, order) for query in queries]
        if self._permuted_transfer or self._permuted_scores:
            if rng is None:
                raise ValueError("a permuted batch needs rng")
            self._read_from = derangement(len(queries), rng, block)
            self._paid_from = derangement(len(queries), rng, block)
        self._queries = list(queries)
        self._turn_order = order
        self.episodes = episodes
        self.finished = [None] * len(queries)

    def reset(self, ids: Sequence[int]) -> None:
        """Start these episodes of the batch again; queries, order and permutations stay.

        Raises:
            ValueError: if an id is not in the batch.
        """
        for index in self._known(ids):
            if not self.episodes[index].touched:
                continue  # it stands at its beginning
            self.episodes[index] = Episode(self.rules, self._queries[index], self._turn_order)

    def observe(self, ids: Sequence[int]) -> tuple[list[str], NDArray[np.int64]]:
        """Return the acting agent of each episode and what it sees, int64 [n, L].

        After the end it is the agent that acted last.
        """
        episodes = [self.episodes[index] for index in self._known(ids)]
        width = self.rules.observation_width
        observations = np.empty((len(episodes), width), dtype=np.int64)
        for row, episode in zip(observations, episodes, strict=True):
            row[:] = pad_left(episode.observe(episode.agent), width)
        return [episode.agent for episode in episodes], observations

    def step(
        self, actions: Sequence[Any] | NDArray[np.int64], ids: Sequence[int]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Let the acting agent of each of these episodes write.

        Args:
            actions: one for each id: [n, T] at response level, [n] at token level.
            ids: which episodes, without repetition.

        Returns:
            payoffs: [n, N], column k for agent_k; zero until the episode ends.
            terminated: whether it ended, [n].

        Raises:
            ValueError: if an action is not legal or an episode is over (no episode has moved then),
                an id is unknown or twice there, or only a part of a permuted batch moves.
            RewardError: if the reward fails.
        """
        known = self._known(ids)
        self._check_step(actions, known)
        episodes = [self.episodes[index] for index in known]
        for episode, action in zip(episodes, actions, strict=True):
            episode.submit(action)
        terminated = np.array([episode.over for episode in episodes], dtype=bool)
        self._settle([index for index in known if self.episodes[index].over])
        if self._permuted_transfer:
            self._exchange_references(known)
        payoffs = [list(episode.payoffs().values()) for episode in episodes]
        shape = (len(known), self.rules.n_agents)
        return np.array(payoffs, dtype=np.float64).reshape(shape), terminated

    def infos(self, ids: Sequence[int]) -> list[dict[str, Any]]:
        """Return the info of the agent that will act, or acted last, in each of these episodes."""
        episodes = [self.episodes[index] for index in self._known(ids)]
        return [episode.info(episode.agent) for episode in episodes]

    def _known(self, ids: Sequence[int]) -> list[int]:
        known = [int(index) for index in ids]
        if not all(0 <= index < len(self.episodes) for index in known):
            raise ValueError(f"ids must lie in [0, {len(self.episodes)}), got {known}")
        return known

    def _check_step(self, actions: Sequence[Any] | NDArray[np.int64], ids: list[int]) -> None:
        if len(actions) != len(ids) or len(set(ids)) != len(ids):
            raise ValueError(
                f"step needs one action for each of {len(ids)} different ids, got {len(actions)} "
                f"actions and ids {ids}"
            )
        if any(self.episodes[index].over for index in ids):
            raise ValueError("step must not be called for an episode that is over: reset it first")
        for action in actions:
            self.rules.parse_action(action)  # all are checked before any episode moves
        if self._permuted_transfer or self._permuted_scores:
            seats = {self.episodes[index].seat for index in ids}
            if len(ids) != len(self.episodes) or len(seats) != 1:
                raise ValueError(
                    f"a permuted batch moves all of its {len(self.episodes)} episodes together, "
                    f"got ids {ids} at seats {sorted(seats)}"
                )

    def _settle(self, ids: list[int]) -> None:
        ended = [self.episodes[index] for index in ids]
        queries = [query for episode in ended for query in episode.scored_queries()]
        responses = [text for episode in ended for text in episode.responses()]
        batch = score_batch(self.rules.reward, queries, responses)
        n = self.rules.n_agents
        scores = dict(zip(ids, batch.scores.reshape(len(ids), n), strict=True))
        for place, (index, episode) in enumerate(zip(ids, ended, strict=True)):
            others = scores[self._paid_from[index]] if self._permuted_scores else None
            parts = [batch.parts_of(row) for row in range(place * n, (place + 1) * n)]
            episode.settle(scores[index], others, parts)
            self.finished[index] = episode.record()

    def _exchange_references(self, ids: list[int]) -> None:
        for index in ids:
            if not self.episodes[index].over:
                other = self.episodes[self._read_from[index]]
                self.episodes[index].replace_references(other.responses())
