"""Tianshou's own on-policy trainer, one iteration of ours to an epoch of its."""

from __future__ import annotations

from collections.abc import Callable

from tianshou.data import Collector, CollectStats, SequenceSummaryStats, VectorReplayBuffer
from tianshou.trainer import OnPolicyTrainer, OnPolicyTrainerParams

from agents.bridge.credit import CreditHook
from agents.bridge.team import Team
from agents.bridge.vector_env import ResponseVectorEnv


class MeanReturnStats(CollectStats):
    """Collection statistics of several agents: the return of an episode is the agents' mean.

    Tianshou's own flattens [episodes, agents] and warns of it after every collection.
    """

    def refresh_return_stats(self) -> None:
        """Summarise the mean payoff of each episode."""
        self.returns_stat = (
            SequenceSummaryStats.from_sequence(self.returns.mean(-1)) if self.returns.size else None
        )


class LazyBuffer(VectorReplayBuffer):
    """Tianshou's buffer without the wait: its constructor compiles index functions for seconds.

    Whole batches of finished episodes never call them; who does has them compiled then.
    """

    @staticmethod
    def _compile() -> None:
        """Compile nothing yet."""


class IterationTrainer(OnPolicyTrainer):
    """Runs iterations: collect a batch of episodes, then update every agent.

    Before each collection `begin` fixes queries and turn order, and the Collector's first
    observations are taken again: those it kept from its last reset belong to the batch before.
    """

    def __init__(
        self,
        *,
        team: Team,
        env: ResponseVectorEnv,
        begin: Callable[[int], None],
        minibatch_size: int | None,
        update_epochs: int,
        first_iteration: int,
        iterations: int,
    ) -> None:
        """Join the parts.

        Args:
            team: of learners.
            env: N episodes.
            begin: called with the iteration (from 1) before its collection.
            minibatch_size: responses of one agent in an optimizer step; None for all.
            update_epochs: passes over an agent's batch.
            first_iteration: 1, or after a resume the one that comes next.
            iterations: in all.
        """
        n_agents = len(env.agents)
        collector = Collector(
            team,
            env,
            LazyBuffer(len(env) * n_agents, len(env)),
            on_episode_done_hook=CreditHook(env.agents),
            collect_stats_class=MeanReturnStats,
            # Rewards are checked where they are made and losses before a step; walking through the
            # whole buffer once more is a twentieth of all that is not arithmetic.
            raise_on_nan_in_buffer=False,
        )
        params = OnPolicyTrainerParams(
            training_collector=collector,
            max_epochs=iterations,
            epoch_num_steps=len(env) * n_agents,
            collection_step_num_env_steps=None,
            collection_step_num_episodes=len(env),
            batch_size=minibatch_size,
            update_step_num_repetitions=update_epochs,
            multi_agent_return_reduction=lambda returns: returns.mean(1),
            show_progress=False,
            verbose=False,
        )
        super().__init__(team, params)
        self._begin = begin
        self._start_epoch = first_iteration - 1
        self.reset(reset_collectors=False)

    @property
    def iteration(self) -> int:
        """The iteration that runs or was the last, from 1."""
        return int(self._epoch)

    def run_iteration(self) -> int:
        """Collect and update once; returns the number of the iteration."""
        self.execute_epoch()
        return self.iteration

    def _collect_training_data(self) -> CollectStats:
        self._begin(self.iteration)
        self.params.training_collector.reset()
        return super()._collect_training_data()
