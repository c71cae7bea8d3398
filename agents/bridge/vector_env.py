"""Tianshou's vector environment over the lock-step runner: N episodes, one reward call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from tianshou.data import Batch
from tianshou.env import BaseVectorEnv
from tianshou.env.worker import DummyEnvWorker, EnvWorker

from cory_env.records import EpisodeRecord, Query
from cory_env.rules import GameRules
from cory_env.runner import LockStepRunner


class _Spaces(gym.Env[Any, Any]):
    """Stands behind a worker and says what the spaces are; the runner plays."""

    def __init__(self, rules: GameRules) -> None:
        self.observation_space = rules.observation_space
        self.action_space = rules.action_space


def _worker(make: Any) -> EnvWorker:
    return DummyEnvWorker(make)


class ResponseVectorEnv(BaseVectorEnv):
    """N episodes side by side, as Tianshou's Collector steps them.

    Queries and turn order of a batch of episodes are fixed by `begin`. A reset starts an episode of
    that batch anew and uses up nothing: the Collector resets every environment once more after the
    last episode has ended.
    """

    def __init__(self, runner: LockStepRunner, n_episodes: int) -> None:
        """Wrap a runner.

        Args:
            runner: plays by its rules at response level.
            n_episodes: N.
        """
        rules = runner.rules
        super().__init__([lambda: _Spaces(rules)] * n_episodes, _worker)
        self.runner = runner
        self.agents = list(rules.agents)
        self.agent_idx = {agent: i for i, agent in enumerate(self.agents)}

    def begin(
        self,
        queries: Sequence[Query],
        turn_order: Sequence[str],
        rng: np.random.Generator | None = None,
        *,
        block: int = 1,
    ) -> None:
        """Fix the queries and the turn order of the next N episodes.

        Args:
            queries: N of them.
            turn_order: agents by seat.
            rng: for methods that permute episodes.
            block: episodes of one query, which stand together and are permuted together.
        """
        if len(queries) != len(self):
            raise ValueError(f"queries must be {len(self)}, got {len(queries)}")
        self.runner.begin(queries, turn_order, rng, block=block)

    def records(self) -> list[EpisodeRecord]:
        """The finished episodes of the batch.

        Raises:
            RuntimeError: if one has not ended.
        """
        finished = [record for record in self.runner.finished if record is not None]
        if len(finished) != len(self):
            raise RuntimeError("records were asked for before every episode of the batch ended")
        return finished

    def reset(
        self, env_id: int | list[int] | np.ndarray | None = None, **kwargs: Any
    ) -> tuple[Any, np.ndarray]:
        """Start episodes of the batch (again)."""
        self._assert_is_not_closed()
        ids = [int(i) for i in self._wrap_id(env_id)]
        self.runner.reset(ids)
        return self._observe(ids)

    def step(
        self, action: Any, id: int | list[int] | np.ndarray | None = None
    ) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Play one response in each of the given episodes."""
        self._assert_is_not_closed()
        if action is None:
            raise ValueError("action must be an array: this environment is not asynchronous")
        ids = [int(i) for i in self._wrap_id(id)]
        payoffs, ended = self.runner.step(np.asarray(action), ids)
        obs, infos = self._observe(ids)
        return obs, payoffs, ended, np.zeros(len(ids), dtype=bool), infos

    def _observe(self, ids: list[int]) -> tuple[Batch, NDArray[np.object_]]:
        agents, observations = self.runner.observe(ids)
        infos = np.empty(len(ids), dtype=object)
        for row, episode in enumerate(ids):
            # The same keys at every step: Tianshou fills a missing one with 0.
            infos[row] = {
                "env_id": episode,
                "episode": episode,
                "seat": self.runner.episodes[episode].seat,
            }
        return Batch(agent_id=np.array(agents, dtype=object), obs=observations), infos
