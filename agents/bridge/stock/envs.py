"""The token-level game as Tianshou's Collector steps it, without a mask of the vocabulary.

Tianshou's PettingZoo wrapper keeps a list of V times True in every observation, and its multi-agent
policy fails without any mask while it collects. Every token is allowed at every step, so one column
says the same: where a mask is added to values of tokens, it is added to all of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tianshou.data import Batch
from tianshou.env import DummyVectorEnv, PettingZooEnv

from agents.bridge.vector_env import ResponseVectorEnv
from cory_env import cory_v0
from cory_env.rules import GameRules
from cory_env.runner import LockStepRunner


class TokenVectorEnv(ResponseVectorEnv):
    """N episodes side by side, one token a step; one reward call for those that end together."""

    def __init__(self, rules: GameRules, n_episodes: int) -> None:
        """Wrap the lock-step runner.

        Args:
            rules: of the game at either action level; it is played at token level.
            n_episodes: N.
        """
        super().__init__(LockStepRunner(replace(rules, action_level="token")), n_episodes)
        self._infos = np.empty(n_episodes, dtype=object)
        for index in range(n_episodes):
            self._infos[index] = {"env_id": index}

    @property
    def longest(self) -> int:
        """Steps of the longest episode."""
        return self.runner.rules.max_response_tokens * len(self.agents)

    def _observe(self, ids: list[int]) -> tuple[Batch, NDArray[np.object_]]:
        agents, observations = self.runner.observe(ids)
        allowed = np.ones((len(ids), 1), dtype=bool)
        obs = Batch(agent_id=np.array(agents, dtype=object), obs=observations, mask=allowed)
        return obs, self._infos[ids]


class TokenPettingZooEnv(PettingZooEnv):
    """Tianshou's wrapper of one PettingZoo game, with one column of mask in place of V."""

    def reset(self, *args: Any, **kwargs: Any) -> Any:
        """Start an episode; returns the first observation and the acting agent's info."""
        self.env.reset(*args, **kwargs)
        obs, _, _, _, info = self.env.last()
        return self._seen(obs), info

    def step(self, action: Any) -> Any:
        """Write one token; rewards are those of this step, by agent."""
        self.env.step(action)
        obs, _, terminated, truncated, info = self.env.last()
        rewards = [float(self.env.rewards[agent]) for agent in self.agents]
        return self._seen(obs), rewards, terminated, truncated, info

    def _seen(self, obs: Any) -> dict[str, Any]:
        return {"agent_id": self.env.agent_selection, "obs": obs, "mask": np.ones(1, dtype=bool)}


def token_vector_env(n: int, seed: int, **game: Any) -> DummyVectorEnv:
    """N token-level PettingZoo games, stepped one by one, each with its own order of queries.

    Args:
        n: environments.
        seed: of the first; the others count on.
        game: keywords of `cory_v0.env`.
    """
    env = DummyVectorEnv(
        [lambda: TokenPettingZooEnv(cory_v0.env(action_level="token", **game))] * n
    )
    env.seed(seed)
    return env
