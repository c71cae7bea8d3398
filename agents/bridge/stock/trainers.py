"""Tianshou's own Collector and trainers over the token-level game."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from tianshou.algorithm.modelfree.ppo import PPO
from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
from tianshou.algorithm.multiagent.marl import MultiAgentOnPolicyAlgorithm
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, CollectStats, VectorReplayBuffer
from tianshou.env import BaseVectorEnv
from tianshou.trainer import (
    OffPolicyTrainer,
    OffPolicyTrainerParams,
    OnPolicyTrainer,
    OnPolicyTrainerParams,
)

from agents.bridge.credit import CreditHook
from agents.bridge.stock.envs import TokenVectorEnv
from agents.bridge.stock.networks import TokenActor, TokenCritic, categorical, turns_kept
from agents.bridge.stock.team import StockTeam
from agents.bridge.trainer import MeanReturnStats
from agents.models.language_model import ActorCritic
from agents.streams import stream

REPLAYED_ITERATIONS = 10
"""Batches of episodes that a replay holds. Older ones were played by other agents: with a partner
that learns, what they were paid is out of date."""


class StockIterations:
    """Runs iterations: collect a batch of episodes, then let the stock algorithm update.

    Tianshou draws from the global generators, so they are seeded around each iteration by its
    number, and an iteration is a function of the weights and that number.
    """

    def __init__(
        self,
        *,
        team: StockTeam,
        env: TokenVectorEnv,
        begin: Callable[[int], None],
        seed: int,
        minibatch_size: int | None,
        update_epochs: int,
        first_iteration: int,
        iterations: int,
    ) -> None:
        """Join the parts.

        Args:
            team: with its algorithm.
            env: N episodes.
            begin: called with the iteration (from 1) before its collection.
            seed: of the run.
            minibatch_size: responses of one agent in an optimizer step; Tianshou's minibatches are
                rows of tokens, so it gets as many as that many longest responses have. None: all.
            update_epochs: passes over an agent's batch; with a replay, samples of that size.
            first_iteration: 1, or after a resume the one that comes next.
            iterations: in all.
        """
        self._team, self._env, self._begin, self._seed = team, env, begin, seed
        width = env.runner.rules.max_response_tokens
        own = min(minibatch_size or len(env), len(env))
        self._rows = None if minibatch_size is None else own * width
        if team.off_policy:
            self._passes = update_epochs * math.ceil(len(env) / own)
        else:
            self._passes = update_epochs
        kept = REPLAYED_ITERATIONS if team.off_policy else 1
        collector = Collector(
            team.algorithm,
            env,
            VectorReplayBuffer(len(env) * env.longest * kept, len(env)),
            on_episode_done_hook=CreditHook(env.agents),
            collect_stats_class=MeanReturnStats,
            exploration_noise=team.off_policy,
            raise_on_nan_in_buffer=False,  # the trainer looks
        )
        common: dict[str, Any] = {
            "training_collector": collector,
            "max_epochs": iterations,
            "epoch_num_steps": 1,  # one collection already has more
            "collection_step_num_env_steps": None,
            "collection_step_num_episodes": len(env),
            "multi_agent_return_reduction": lambda returns: returns.mean(1),
            "show_progress": False,
            "verbose": False,
        }
        self._trainer: _OnPolicy | _OffPolicy
        if team.off_policy:
            params = OffPolicyTrainerParams(
                **common,
                batch_size=own * width * len(env.agents),  # of all agents together
            )
            self._trainer = _OffPolicy(team.algorithm, params)
            self._trainer.steps = self._passes
        else:
            self._trainer = _OnPolicy(
                team.algorithm,
                OnPolicyTrainerParams(
                    **common,
                    batch_size=self._rows,
                    update_step_num_repetitions=update_epochs,
                ),
            )
        self._trainer.collect = self._collect
        self._trainer._start_epoch = first_iteration - 1
        self._trainer.reset(reset_collectors=False)

    @property
    def iteration(self) -> int:
        """The iteration that runs or was the last, from 1."""
        return int(self._trainer._epoch)

    def run_iteration(self) -> int:
        """Collect and update once; returns the number of the iteration."""
        trainer = self._trainer
        trainer.found = []
        with seeded(self._seed, "stock", trainer._epoch + 1), warnings.catch_warnings():
            # TRPO's line search says at which step it stopped.
            warnings.filterwarnings("ignore", message="Backtracking to step")
            try:
                trainer.execute_epoch()
            except (ValueError, RuntimeError) as error:  # drawn from NaN, as weights became NaN
                self._team.check_finite(error)
                raise
        self._team.updated(trainer.found, self._rows, self._passes)
        return self.iteration

    def _collect(self, stock: Callable[[], CollectStats]) -> CollectStats:
        """Fix queries and turn order, collect, and have the KL paid."""
        self._begin(self.iteration)
        collector = self._trainer.params.training_collector
        collector.reset(reset_buffer=False)  # what it observed at its last reset is out of date
        actors = [learner.token_actor for learner in self._team.stock.values()]
        with turns_kept(actors, len(self._env)):
            stats = stock()
        self._team.collected(collector.buffer)
        return stats


class _OnPolicy(OnPolicyTrainer):
    """Tianshou's own, with a word before and after its collection."""

    collect: Callable[[Callable[[], CollectStats]], CollectStats]
    found: list[Any]

    def _collect_training_data(self) -> CollectStats:
        return self.collect(super()._collect_training_data)

    def _update_step(self, collect_stats: Any = None) -> Any:
        stats = super()._update_step(collect_stats)
        self.found.append(stats)
        return stats


class _OffPolicy(OffPolicyTrainer):
    """The same with a replay; a fixed number of steps an iteration, however long the texts are."""

    collect: Callable[[Callable[[], CollectStats]], CollectStats]
    found: list[Any]
    steps: int

    def _collect_training_data(self) -> CollectStats:
        return self.collect(super()._collect_training_data)

    def _update_step(self, collect_stats: Any) -> Any:
        buffer = self.params.training_collector.buffer
        self.found = [self._sample_and_update(buffer) for _ in range(self.steps)]
        return self.found[-1]


# By hand, from Python: any vector environment.


def stock_ppo(
    models: Sequence[ActorCritic], env: Any, *, learning_rate: float, **settings: Any
) -> MultiAgentOnPolicyAlgorithm:
    """Tianshou's own PPO for every agent, under its own multi-agent algorithm.

    Args:
        models: one an agent.
        env: tells the agents and the action space: a `PettingZooEnv`, or a `TokenVectorEnv`.
        learning_rate: of Adam.
        settings: keywords of `tianshou.algorithm.PPO`, such as `eps_clip` or `gae_lambda`.
    """
    space: gym.Space[Any] = (
        env.runner.rules.action_space if isinstance(env, TokenVectorEnv) else env.action_space
    )
    algorithms: list[Any] = []
    for model in models:
        policy = ProbabilisticActorPolicy(
            actor=TokenActor(model),  # type: ignore[arg-type]
            dist_fn=categorical,
            action_space=space,
            action_scaling=False,
            action_bound_method=None,
            deterministic_eval=False,
        )
        algorithms.append(
            PPO(
                policy=policy,
                critic=TokenCritic(model),
                optim=AdamOptimizerFactory(lr=learning_rate),
                **settings,
            )
        )
    return MultiAgentOnPolicyAlgorithm(algorithms=algorithms, env=env)


def train_stock(
    algorithm: MultiAgentOnPolicyAlgorithm,
    env: BaseVectorEnv,
    agents: Sequence[str],
    *,
    iterations: int,
    update_epochs: int,
    minibatch_size: int | None,
    max_episode_steps: int,
    seed: int,
    on_iteration: Callable[[int, dict[str, float]], None] | None = None,
) -> list[dict[str, float]]:
    """Train with Tianshou's own Collector and OnPolicyTrainer.

    Args:
        algorithm: e.g. from `stock_ppo`.
        env: one episode of each environment is an iteration's batch.
        agents: ids in the environment's order.
        iterations: collections.
        update_epochs: passes over each.
        minibatch_size: tokens in an optimizer step; None for all.
        max_episode_steps: longest episode, in tokens of all agents.
        seed: Tianshou draws from the global generators, so they are seeded around the call.
        on_iteration: called with the number and each agent's mean payoff.

    Returns:
        Mean payoff by agent, one row an iteration.
    """
    rows: list[dict[str, float]] = []
    collector = Collector(
        algorithm,
        env,
        VectorReplayBuffer(len(env) * max_episode_steps, len(env)),
        on_episode_done_hook=CreditHook(list(agents)),
        collect_stats_class=MeanReturnStats,
    )

    def keep(returns: np.ndarray) -> np.ndarray:
        rows.append(dict(zip(agents, map(float, returns.mean(0)), strict=True)))
        if on_iteration is not None:
            on_iteration(len(rows), rows[-1])
        return np.asarray(returns.mean(1))

    params = OnPolicyTrainerParams(
        training_collector=collector,
        max_epochs=iterations,
        epoch_num_steps=1,  # one collection already has more
        collection_step_num_env_steps=None,
        collection_step_num_episodes=len(env),
        batch_size=minibatch_size,
        update_step_num_repetitions=update_epochs,
        multi_agent_return_reduction=keep,
        show_progress=False,
        verbose=False,
    )
    with seeded(seed, "stock"):
        OnPolicyTrainer(algorithm, params).run()
    return rows


@contextmanager
def seeded(seed: int, component: str, iteration: int = 0) -> Iterator[None]:
    """Seed the global generators from a named stream, and put them back afterwards."""
    drawn = stream(seed, component, iteration).integers(0, 2**31, size=3)
    python_state, numpy_state = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        random.seed(int(drawn[0]))
        np.random.seed(int(drawn[1]))
        torch.manual_seed(int(drawn[2]))
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)
