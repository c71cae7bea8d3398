"""The agents together, as one Tianshou algorithm."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from tianshou.algorithm.algorithm_base import OnPolicyAlgorithm, TrainingStats
from tianshou.algorithm.multiagent.marl import MapTrainingStats
from tianshou.data import ReplayBuffer

from agents.bridge.learner import Learner, UpdateStats
from agents.bridge.policy import TeamPolicy
from agents.maths.masking import masked_sum
from agents.rollout import Rollout


class Team(OnPolicyAlgorithm[TeamPolicy]):
    """Gives every agent its own rows, and updates each with its own optimizer.

    All rollouts are read and prepared before the first update, so the order of the updates does not
    matter to learners that stand each for themselves.
    """

    def __init__(self, *, learners: dict[str, Learner], policy: TeamPolicy, kl_scope: str) -> None:
        """Join learners.

        Args:
            learners: by agent id, in the order of the reward's columns.
            policy: the team's.
            kl_scope: "own", or "team": an agent also pays the KL of those who act after it.
        """
        super().__init__(policy=policy)
        self.learners = learners
        self._kl_scope = kl_scope
        self.rollouts: dict[str, Rollout] = {}
        self.update_stats: dict[str | int, UpdateStats] = {}

    def begin_iteration(self, iteration: int, iterations: int) -> None:
        """Tell policy and learners which iteration begins."""
        self.policy.iteration = iteration
        for learner in self.learners.values():
            learner.set_iteration(iteration, iterations)

    def _preprocess_batch(self, batch: Any, buffer: ReplayBuffer, indices: np.ndarray) -> Any:
        self.rollouts = {
            agent: learner.rollout(batch[np.flatnonzero(batch.obs.agent_id == agent)], column)
            for column, (agent, learner) in enumerate(self.learners.items())
        }
        paid = self.rollouts
        if self._kl_scope == "team":
            paid = self._with_later_kl(self.rollouts)
        return {agent: self.learners[agent].prepare(paid[agent]) for agent in self.learners}

    def _with_later_kl(self, rollouts: dict[str, Rollout]) -> dict[str, Rollout]:
        """Charge each agent the KL of the responses that come after its own.

        Earlier ones are fixed before it acts and would only add noise.
        """
        cost = {
            agent: self.learners[agent].kl_controller.coef * masked_sum(r.kl, r.mask).double()
            for agent, r in rollouts.items()
        }
        charged = {}
        for agent, rollout in rollouts.items():
            later = [cost[o] for o, r in rollouts.items() if r.seat > rollout.seat]
            charge = torch.stack(later).sum(0) if later else torch.zeros_like(rollout.payoffs)
            charged[agent] = replace(rollout, payoffs=rollout.payoffs - charge)
        return charged

    def _update_with_batch(self, batch: Any, batch_size: int | None, repeat: int) -> TrainingStats:
        self.update_stats = {}
        for agent, learner in self.learners.items():
            self.update_stats[agent] = learner.update_from(batch[agent], batch_size, repeat)
        for agent, learner in self.learners.items():
            rollout = self.rollouts[agent]
            kl = float(masked_sum(rollout.kl, rollout.mask).mean())
            learner.kl_controller.update(kl, len(rollout))
        return MapTrainingStats(dict(self.update_stats))
