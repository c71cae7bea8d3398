"""An agent whose updates a stock Tianshou algorithm makes, and what such an agent cannot honour."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from tianshou.algorithm.algorithm_base import Algorithm, TrainingStats
from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from torch import Tensor

from agents.bridge.learner import Learner, LossParts, UpdateStats
from agents.bridge.stock.networks import TokenActor, categorical
from agents.config import TrainConfig
from agents.methods import METHODS
from agents.models.language_model import Scored
from agents.rollout import Prepared, Rollout

PREFIX = "tianshou:"
"""Before the name of a stock algorithm after `--algorithm`."""


class StockLearner(Learner):
    """One agent: its weights, critic and KL weight are ours, its update is Tianshou's.

    A subclass is one algorithm: `build`, and the facts below.
    """

    off_policy: ClassVar[bool] = False
    """Whether it learns from a replay of earlier iterations."""
    greedy: ClassVar[bool] = False
    """Whether the network's outputs are values, of whose largest its policy writes the token."""
    twice_differentiated: ClassVar[bool] = False
    """Whether its gradients are differentiated again, which fused kernels of attention cannot."""
    clips_gradient: ClassVar[bool] = False
    """Whether it has a largest norm of the gradient."""
    policy_loss: ClassVar[str | None] = "actor_loss"
    """What Tianshou's statistics call it; None: it has none."""
    value_losses: ClassVar[tuple[str, ...]] = ()
    """The same of its critics."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.token_actor = TokenActor(self.actor)

    @abstractmethod
    def build(self, action_space: gym.spaces.Discrete[Any]) -> Algorithm[Any, Any]:
        """The stock algorithm on this agent's networks; called once.

        Args:
            action_space: of the token-level game.
        """

    def built(self, action_space: gym.spaces.Discrete[Any]) -> Algorithm[Any, Any]:
        """`build`, and take over its optimizer, which checkpoints then keep."""
        algorithm: Any = self.build(action_space)
        self.optim = (
            algorithm.policy_optim if hasattr(algorithm, "policy_optim") else algorithm.optim
        )
        return algorithm  # type: ignore[no-any-return]

    @property
    def turn(self) -> int:
        """Tokens of the longest response: as many steps as a payoff may be away."""
        assert self.config.max_response_tokens is not None
        return self.config.max_response_tokens

    def adam(self) -> AdamOptimizerFactory:
        """The optimizer of each network."""
        assert self.config.learning_rate is not None
        return AdamOptimizerFactory(lr=self.config.learning_rate)

    def token_policy(self, action_space: gym.spaces.Discrete[Any]) -> ProbabilisticActorPolicy:
        """The policy of those that draw from the network's logits."""
        return ProbabilisticActorPolicy(
            actor=self.token_actor,  # type: ignore[arg-type]
            dist_fn=categorical,
            action_space=action_space,
            action_scaling=False,
            action_bound_method=None,
            deterministic_eval=False,
        )

    # What a run asks before it starts.

    @classmethod
    def filled(cls, config: TrainConfig) -> TrainConfig:
        """Settings whose default no stock algorithm has: what it has instead.

        Args:
            config: as the user gave it.
        """
        changes: dict[str, Any] = {}
        if config.kl_estimator == "exact":  # the default, whose current token's KL is in the loss
            changes["kl_estimator"] = "k1"
        if cls.off_policy and config.kl_coef is None:
            changes["kl_coef"] = 0.0
        return dataclasses.replace(config, **changes)

    @classmethod
    def check(cls, config: TrainConfig, n_processes: int) -> None:
        """Refuse what this algorithm cannot honour.

        Args:
            config: resolved.
            n_processes: that share the work.

        Raises:
            ValueError: with the sentence that says why.
        """
        for why in (
            cls._game(config),
            cls._kl(config),
            cls._unread(config),
            cls._run(config, n_processes),
        ):
            if why is not None:
                raise ValueError(f"algorithm {config.algorithm}: {why}")

    @classmethod
    def _game(cls, config: TrainConfig) -> str | None:
        method = METHODS[config.method]
        if "permuted" in (method.transfer, method.scores):
            return (
                f"it plays token by token, and method {config.method} permutes whole responses "
                f"between episodes"
            )
        if config.group_structure != "query":
            return "it draws every response by itself: group_structure must be query, got nested"
        if config.temperature != 1.0:
            return f"it draws at temperature 1: temperature must be 1.0, got {config.temperature}"
        return None

    @classmethod
    def _kl(cls, config: TrainConfig) -> str | None:
        if config.kl_coef == 0:
            return None
        if cls.off_policy:
            return (
                f"its replay holds rewards of older policies, whose KL is not that of the policy "
                f"it trains: kl_coef must be 0, got {config.kl_coef}"
            )
        if config.kl_estimator != "k1":
            return (
                f"its loss is its own, so the KL is paid in the rewards: kl_estimator must be k1, "
                f"got {config.kl_estimator}"
            )
        if config.kl_scope == "team":
            return "each agent pays its own KL: kl_scope must be own, got team"
        return None

    @classmethod
    def _unread(cls, config: TrainConfig) -> str | None:
        names = ["micro_batch_size", "gradient_checkpointing", "compile", "lora_rank"]
        names += [] if cls.clips_gradient else ["max_grad_norm"]
        names += ["learning_rate_schedule"] if cls.off_policy else []
        defaults = {f.name: f.default for f in dataclasses.fields(TrainConfig)}
        for name in names:
            value = getattr(config, name)
            if value != defaults[name] and not (name == "lora_rank" and value == 0):
                return f"it does not read {name}, which must stay {defaults[name]}, got {value}"
        return None

    @classmethod
    def _run(cls, config: TrainConfig, n_processes: int) -> str | None:
        if n_processes > 1:
            return f"it runs in one process, got {n_processes}"
        if cls.off_policy and config.resume:
            return "its replay is not kept, so it cannot be resumed: begin again in a new folder"
        if cls.off_policy and (named := policy_guard_in(config.stop_on)):
            return f"it measures no {named} while it trains: stop_on must not name it"
        if cls.twice_differentiated and config.dtype == "float64":
            return (
                "its attention is the library's plain one, which makes NaN of padding in double "
                "precision: dtype must be another than float64"
            )
        return None

    # What is logged.

    def update_stats_of(self, found: Sequence[TrainingStats], steps: int) -> UpdateStats:
        """Our names for what Tianshou says of an iteration's updates.

        Args:
            found: of this agent; means are taken over them.
            steps: optimizer steps of the policy.
        """
        if not found:
            return UpdateStats()
        values = [_mean(found, name) for name in self.value_losses]
        return UpdateStats(
            policy_loss=None if self.policy_loss is None else _mean(found, self.policy_loss),
            value_loss=float(np.mean(values)) if values else None,
            approx_kl=_mean(found, "kl") if hasattr(found[0], "kl") else None,
            optimizer_steps=steps,
        )

    # Ours, which no stock algorithm calls.

    def prepare(self, rollout: Rollout) -> Prepared:
        """Never called: the algorithm makes its own advantages."""
        raise NotImplementedError("a stock algorithm prepares its own batches")

    def loss(self, scored: Scored, batch: Prepared) -> tuple[Tensor, LossParts]:
        """Never called: the algorithm has its own loss."""
        raise NotImplementedError("a stock algorithm has its own loss")


def policy_guard_in(stop_on: str | None) -> str | None:
    """The first guard of `stop_on` that looks at the policy's distribution, if it is named."""
    names = [name.strip() for name in (stop_on or "").split(",")]
    return next((name for name in names if name in ("kl", "entropy")), None)


def _mean(found: Sequence[TrainingStats], name: str) -> float:
    values = [getattr(stats, name) for stats in found]
    return float(np.mean([getattr(value, "mean", value) for value in values]))
