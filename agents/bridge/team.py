"""The agents together, as one Tianshou algorithm."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tianshou.algorithm.algorithm_base import OnPolicyAlgorithm, TrainingStats
from tianshou.algorithm.multiagent.marl import MapTrainingStats
from tianshou.data import ReplayBuffer

from agents.bridge.learner import Learner, UpdateStats
from agents.bridge.outcomes import Outcome, charged, distinct, outcome_of, with_outcome
from agents.bridge.policy import TeamPolicy
from agents.bridge.replay import Extra, Replay
from agents.bridge.vector_env import ResponseVectorEnv
from agents.groups import Groups
from agents.maths.masking import masked_sum
from agents.rollout import Rollout


class Team(OnPolicyAlgorithm[TeamPolicy]):
    """Gives every agent its own rows, and updates each with its own optimizer.

    All rollouts are read and prepared before the first update, so the order of the updates does not
    matter to learners that stand each for themselves.
    """

    def __init__(
        self,
        *,
        learners: dict[str, Learner],
        policy: TeamPolicy,
        kl_scope: str,
        groups: Groups | None = None,
    ) -> None:
        """Join learners.

        Args:
            learners: by agent id, in the order of the reward's columns; all of one class.
            policy: the team's.
            kl_scope: "own", or "team": an agent also pays the KL of those who act after it.
            groups: which episodes belong together; None: each stands alone.
        """
        super().__init__(policy=policy)
        self.learners = learners
        self._kind = type(next(iter(learners.values())))
        self._kl_scope = kl_scope
        self._groups = Groups() if groups is None else groups
        self.env: ResponseVectorEnv | None = None
        """Where the episodes are played: it knows how they ended. Set before the first batch."""
        self.rollouts: dict[str, Rollout] = {}
        self.update_stats: dict[str | int, UpdateStats] = {}
        self.extra = Extra()
        """What the iteration cost beside its episodes."""

    def begin_iteration(self, iteration: int, iterations: int) -> None:
        """Tell policy and learners which iteration begins."""
        self.policy.iteration = iteration
        for learner in self.learners.values():
            learner.set_iteration(iteration, iterations)

    def _preprocess_batch(self, batch: Any, buffer: ReplayBuffer, indices: np.ndarray) -> Any:
        self.read(batch)
        paid = self.rollouts
        if self._kl_scope == "team" and not self._kind.traits.one_stream:
            paid = self._with_later_kl(paid)
        learned = {agent: distinct(rollout, self._groups) for agent, rollout in paid.items()}
        return self._kind.prepare_team(self.learners, learned)

    def read(self, batch: Any) -> None:
        """Fill `rollouts` with what the agents did and how it ended.

        Args:
            batch: all rows of the iteration's episodes.
        """
        assert self.env is not None, "the team has no environment to ask how its episodes ended"
        outcome = outcome_of(self.env, self._groups)
        rollouts = {
            agent: learner.rollout(batch[np.flatnonzero(batch.obs.agent_id == agent)], column)
            for column, (agent, learner) in enumerate(self.learners.items())
        }
        self.extra = Extra(tokens=-self._shared_tokens(rollouts))
        self.rollouts = {
            agent: with_outcome(rollout, outcome, self._without(rollout, outcome))
            for agent, rollout in rollouts.items()
        }

    def _without(self, rollout: Rollout, outcome: Outcome) -> NDArray[np.float64] | None:
        """What later seats would have contributed to an agent's payoffs, if its learner asks."""
        if not self._kind.traits.counterfactual or outcome.matrix is None:
            return None
        assert self.env is not None
        replay = Replay(self.env.runner.rules, self.policy)
        row = outcome.matrix[rollout.seat]
        weights = {j: float(row[j]) for j in range(rollout.seat + 1, len(row))}
        found = replay.contributions(self.env.records(), rollout.seat, weights)
        self.extra.responses += replay.extra.responses
        self.extra.tokens += replay.extra.tokens
        return found

    def _shared_tokens(self, rollouts: dict[str, Rollout]) -> int:
        """Tokens that stand in several episodes and were drawn once."""
        every = sum(int(rollout.mask.sum()) for rollout in rollouts.values())
        once = [distinct(rollout, self._groups) for rollout in rollouts.values()]
        return every - sum(int(rollout.mask.sum()) for rollout in once)

    def _with_later_kl(self, rollouts: dict[str, Rollout]) -> dict[str, Rollout]:
        """Charge each agent the KL of the responses that come after its own."""
        costs = [
            self.learners[agent].kl_controller.coef * masked_sum(r.kl, r.mask).double()
            for agent, r in rollouts.items()
        ]
        return dict(zip(rollouts, charged(list(rollouts.values()), costs), strict=True))

    def _update_with_batch(self, batch: Any, batch_size: int | None, repeat: int) -> TrainingStats:
        self.update_stats = dict(
            self._kind.update_team(self.learners, batch, batch_size, repeat).items()
        )
        for agent, learner in self.learners.items():
            rollout = self.rollouts[agent]
            kl = float(masked_sum(rollout.kl, rollout.mask).mean())
            learner.kl_controller.update(kl, len(rollout))
        return MapTrainingStats(dict(self.update_stats))
