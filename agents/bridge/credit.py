"""Credit: every turn is paid what its agent earns until it acts again.

Tianshou hands an agent only the reward that arrives at its own step. In this game all are paid at
the end, so its stock multi-agent algorithm pays the pioneer nothing, and since the pioneer's rows
never end, its advantages run on into the next episode.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tianshou.data.collector import EpisodeBatchProtocol, EpisodeRolloutHook


def turn_credit(
    rewards: NDArray[np.float64], actors: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Credit each step of one episode with what its agent earns until its next step.

    Args:
        rewards: of every agent at every step, [S, N].
        actors: column of the agent that acted, [S].

    Returns:
        credited: [S, N]; row s holds in column actors[s] all that the agent earned from step s up
            to before its next step, and 0 in the other columns, which no learner reads.
        last: True at each agent's last step, [S].

    Raises:
        ValueError: if an agent's steps are not one block: what Tianshou takes for the next
            observation of a row would then be another agent's.

    Source: PettingZoo's cumulative rewards, applied to a stored episode.
    """
    if rewards.ndim != 2 or len(rewards) != len(actors):
        raise ValueError(f"rewards must be [{len(actors)}, N], got {list(rewards.shape)}")
    credited = np.zeros_like(rewards, dtype=np.float64)
    last = np.zeros(len(actors), dtype=bool)
    for agent in np.unique(actors):
        steps = np.flatnonzero(actors == agent)
        if steps[-1] - steps[0] != len(steps) - 1:
            raise ValueError(f"steps of one agent must be one block, got {steps.tolist()}")
        # Before its first step an agent has done nothing that could have earned a reward.
        ends = np.append(steps[1:], len(actors))
        for start, end in zip(steps, ends, strict=True):
            credited[start, agent] = rewards[start:end, agent].sum()
        last[steps[-1]] = True
    return credited, last


class CreditHook(EpisodeRolloutHook):
    """Rewrites a finished episode in the buffer; give it to a Collector and collect `n_episode`."""

    def __init__(self, agents: list[str]) -> None:
        """Fix the columns of the reward: the agents in the environment's order."""
        self._column = {agent: i for i, agent in enumerate(agents)}

    def __call__(self, episode_batch: EpisodeBatchProtocol) -> dict[str, np.ndarray]:
        """New values for the episode's `rew`, `terminated` and `done`; nothing is truncated."""
        names: Any = episode_batch.obs
        actors = np.array([self._column[a] for a in names.agent_id], dtype=np.int64)
        credited, last = turn_credit(np.asarray(episode_batch.rew, dtype=np.float64), actors)
        return {"rew": credited, "terminated": last, "done": last}
