"""Stock Tianshou algorithms, unmodified, in the token-level environment.

Ours are the adapters (a language model as Tianshou's actor and critic) and the credit hook, without
which Tianshou pays all but the last agent nothing. Suited to small vocabularies: Tianshou's
PettingZoo wrapper keeps a mask of the vocabulary in every row of its buffer, and every token is a
forward pass over its whole prefix.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from tianshou.algorithm.modelfree.ppo import PPO
from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
from tianshou.algorithm.multiagent.marl import MultiAgentOnPolicyAlgorithm
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Batch, Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv, PettingZooEnv
from tianshou.trainer import OnPolicyTrainer, OnPolicyTrainerParams
from torch import Tensor, nn

from agents.bridge.credit import CreditHook
from agents.bridge.trainer import MeanReturnStats
from agents.models.language_model import ActorCritic
from agents.sampling import trim_left
from agents.streams import stream
from cory_env import cory_v0


def token_ids(obs: Any, device: torch.device) -> Tensor:
    """The tokens of an observation, [B, L], whichever of its two shapes Tianshou hands over."""
    while isinstance(obs, Batch):  # with an action mask: agent_id, mask and obs; without: the array
        obs = obs.obs
    return trim_left(torch.as_tensor(np.asarray(obs), device=device))


class TokenActor(nn.Module):
    """Logits of the next token, in the form Tianshou's policies call: obs -> (logits, state)."""

    def __init__(self, model: ActorCritic) -> None:
        super().__init__()
        self.model = model

    def forward(self, obs: Any, state: Any = None, info: Any = None) -> tuple[Tensor, Any]:
        """Logits [B, V] and the state, which is passed through."""
        ids = token_ids(obs, self.model.device)
        hidden, _ = self.model.trunk(ids, ids >= 0)
        return self.model.logits(hidden[:, -1]), state


class TokenCritic(nn.Module):
    """Value before the next token, in the form Tianshou's algorithms call: obs -> values."""

    def __init__(self, model: ActorCritic) -> None:
        super().__init__()
        self.model = model

    def forward(self, obs: Any, **kwargs: Any) -> Tensor:
        """Values [B, 1]."""
        ids = token_ids(obs, self.model.device)
        hidden, _ = self.model.trunk(ids, ids >= 0)
        return self.model.values(hidden[:, -1]).unsqueeze(-1)


def categorical(logits: Tensor) -> torch.distributions.Distribution:
    """The distribution of the next token."""
    return torch.distributions.Categorical(logits=logits)


def token_vector_env(n: int, seed: int, **game: Any) -> DummyVectorEnv:
    """N token-level environments, stepped one by one, each with its own order of queries.

    Args:
        n: environments.
        seed: of the first; the others count on.
        game: keywords of `cory_v0.env`.
    """
    env = DummyVectorEnv([lambda: PettingZooEnv(cory_v0.env(action_level="token", **game))] * n)
    env.seed(seed)
    return env


def stock_ppo(
    models: Sequence[ActorCritic], env: PettingZooEnv, *, learning_rate: float, **settings: Any
) -> MultiAgentOnPolicyAlgorithm:
    """Tianshou's own PPO for every agent, under its own multi-agent algorithm.

    Args:
        models: one an agent.
        env: tells the agents and the action space.
        learning_rate: of Adam.
        settings: keywords of `tianshou.algorithm.PPO`, such as `eps_clip` or `gae_lambda`.
    """
    algorithms: list[Any] = []
    for model in models:
        policy = ProbabilisticActorPolicy(
            actor=TokenActor(model),  # type: ignore[arg-type]
            dist_fn=categorical,
            action_space=env.action_space,
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
    env: DummyVectorEnv,
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
