"""The base of every learner: Tianshou's batches in, typed rollouts out.

A learner file implements `prepare` (its advantages) and `loss` (of a minibatch), and never sees a
`Batch`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

import numpy as np
import torch
from tianshou.algorithm.algorithm_base import OnPolicyAlgorithm, TrainingStats
from tianshou.algorithm.optim import TorchOptimizerFactory
from tianshou.data import ReplayBuffer
from torch import Tensor

from agents.bridge.policy import ResponsePolicy
from agents.bridge.records import rollout_from_batch
from agents.config import TrainConfig
from agents.distributed import PeerError, Processes
from agents.guards import NonFiniteError
from agents.maths.kl import ESTIMATORS_WITH_REF_HIDDEN, KLController
from agents.maths.losses import explained_variance, ratio_statistics
from agents.models.language_model import ActorCritic, LanguageModel, Scored, fitting_positions
from agents.rollout import Prepared, Rollout
from agents.sampling import trim_left
from agents.sharing import add_gradients
from agents.streams import stream
from agents.traits import Traits


@dataclass(kw_only=True)
class UpdateStats(TrainingStats):
    """What one agent's update did; means over its optimizer steps."""

    policy_loss: float | None = None
    value_loss: float | None = None
    approx_kl: float | None = None
    """Nats per token, from the policy that drew the responses; of the last pass."""
    clip_fraction: float | None = None
    explained_variance: float | None = None
    """Of the critic on this batch, before the update."""
    grad_norm: float | None = None
    """Before it is clipped."""
    optimizer_steps: int = 0
    logged: dict[str, float] = field(default_factory=dict)
    """What this learner logs beside, by name."""

    def get_loss_stats_dict(self) -> dict[str, float]:
        """The numbers by name, as Tianshou's trainer wants them."""
        values = super().get_loss_stats_dict()
        return {name: value for name, value in values.items() if name != "logged"} | self.logged


class LossParts(dict[str, Tensor]):
    """The terms of a loss by name: `policy_loss`, `value_loss`, and what else a learner logs."""


class Learner(OnPolicyAlgorithm[ResponsePolicy]):
    """One agent's weights, critic, optimizer and KL controller, and how they are updated.

    Roles come and go; everything here stays with the agent.
    """

    traits: ClassVar[Traits] = Traits()
    """What has to be known of the class before any work is done."""

    def __init__(
        self,
        *,
        agent: str,
        policy: ResponsePolicy,
        reference: LanguageModel,
        config: TrainConfig,
    ) -> None:
        """Build an agent.

        Args:
            agent: its id, which names its streams and logs.
            policy: with its actor-critic.
            reference: the frozen model that KL is measured against. Kept out of the module tree,
                or its weights would enter the agent's state.
            config: resolved settings.
        """
        super().__init__(policy=policy)
        self.agent = agent
        self.config = config
        self._reference = [reference]
        assert config.learning_rate is not None and config.kl_coef is not None
        self.kl_controller = KLController(
            coef=config.kl_coef, target=config.kl_target, horizon=config.kl_horizon
        )
        # Built once from this agent's own parameters and never again: role exchange cannot
        # touch it.
        self.parameters_in_training = self.actor.trainable_parameters()
        self.optim = self._create_optimizer(
            torch.nn.ParameterList(self.parameters_in_training),
            # Fused: one walk over weights, gradient and moments instead of a dozen.
            TorchOptimizerFactory(torch.optim.Adam, lr=config.learning_rate, fused=True),
            config.max_grad_norm,
        )
        self.iteration = 0

    @property
    def actor(self) -> ActorCritic:
        """The trained model."""
        return self.policy.actor

    @property
    def reference(self) -> LanguageModel:
        """The frozen model."""
        return self._reference[0]

    @property
    def processes(self) -> Processes:
        """Those that share each optimizer step."""
        return self.policy.processes

    # What a learner implements.

    @abstractmethod
    def prepare(self, rollout: Rollout) -> Prepared:
        """Advantages and returns of a whole batch; called once, before the update."""

    def minibatch(self, batch: Prepared) -> Prepared:
        """What has to be computed over a whole minibatch before it is cut into pieces."""
        return batch

    @abstractmethod
    def loss(self, scored: Scored, batch: Prepared) -> tuple[Tensor, LossParts]:
        """Loss of a piece of a minibatch, to be minimised, and its parts for the log.

        The pieces' losses are added, so a mean over tokens divides by `batch.tokens`, the number in
        the whole minibatch.

        Args:
            scored: what the policy says now about the responses, with gradient.
            batch: the piece, trimmed to its longest prompt and response.
        """

    def state(self) -> dict[str, float]:
        """What the learner keeps from iteration to iteration beside weights, optimizer and KL."""
        return {}

    def load_state(self, state: Mapping[str, float]) -> None:
        """Put back what `state` gave.

        Raises:
            ValueError: if it is something else.
        """
        if state:
            raise ValueError(f"{type(self).__name__} keeps no state, got {sorted(state)}")

    # What learners that stand for several agents implement.

    @classmethod
    def prepare_team(
        cls, learners: Mapping[str, Learner], rollouts: Mapping[str, Rollout]
    ) -> dict[str, Prepared]:
        """Advantages and returns of all agents; each by itself, unless a learner says otherwise.

        Args:
            learners: by agent id, all of this class.
            rollouts: the same; without nested groups their rows are the same episodes in order.
        """
        return {agent: learner.prepare(rollouts[agent]) for agent, learner in learners.items()}

    @classmethod
    def update_team(
        cls,
        learners: Mapping[str, Learner],
        batches: Mapping[str, Prepared],
        minibatch_size: int | None,
        epochs: int,
    ) -> dict[str, UpdateStats]:
        """Update all agents; one after the other, unless a learner says otherwise.

        Args:
            learners: by agent id, all of this class.
            batches: what `prepare_team` returned.
            minibatch_size: see `update_from`.
            epochs: see `update_from`.
        """
        return {
            agent: learner.update_from(batches[agent], minibatch_size, epochs)
            for agent, learner in learners.items()
        }

    # The plumbing that all of them share.

    def score(self, batch: Rollout) -> Scored:
        """What the policy says now about some responses, with gradient."""
        against = self.config.kl_estimator in ESTIMATORS_WITH_REF_HIDDEN
        return self.actor.score(
            batch.prompt_ids,
            batch.response_ids,
            self.config.temperature,
            reference=self.reference if against else None,
            ref_hidden=batch.ref_hidden if against else None,
            ref_log_probs=batch.ref_log_probs if isinstance(batch, Prepared) else None,
            with_entropy=self.config.ent_coef != 0,
        )

    def update_from(self, batch: Prepared, minibatch_size: int | None, epochs: int) -> UpdateStats:
        """Run the optimizer over one agent's batch.

        Args:
            batch: what `prepare` returned.
            minibatch_size: responses in an optimizer step; None for all.
            epochs: passes over the batch.
        """
        size = len(batch) if minibatch_size is None else min(minibatch_size, len(batch))
        batch = self._with_reference(batch, epochs)
        logged: list[dict[str, float]] = []
        last_pass: list[tuple[float, float]] = []
        for epoch in range(epochs):
            last_pass = []
            for part in self._minibatches(batch, size, epoch):
                if not bool(part.mask.any()):
                    continue  # only empty responses: there is no token to learn from
                parts, drift = self._step(part)
                logged.append(parts)
                last_pass.append(drift)
        return self._stats(batch, logged, last_pass)

    def _with_reference(self, batch: Prepared, epochs: int) -> Prepared:
        """Keep what the reference says over several passes, if that is small."""
        against = self.config.kl_estimator in ESTIMATORS_WITH_REF_HIDDEN
        small = batch.response_ids.numel() <= fitting_positions(self.actor.vocab_size)
        if not (against and small and epochs > 1):
            return batch
        said = self.policy.take_said(self.iteration, batch.episode.cpu().numpy())
        if said is None:
            said = self.reference.log_probs(batch.ref_hidden, self.config.temperature)
        return replace(batch, ref_log_probs=said)

    def _minibatches(self, batch: Prepared, size: int, epoch: int) -> Iterator[Prepared]:
        """The rows of each optimizer step, in an order of the agent's own stream."""
        if size >= len(batch):
            yield batch
            return
        name = f"minibatches/{self.agent}/{epoch}"
        order = stream(self.config.seed, name, self.iteration).permutation(len(batch))
        for rows in torch.as_tensor(order, device=batch.mask.device).split(size):
            yield batch.select(rows)

    def _pieces(self, part: Prepared) -> Iterator[Prepared]:
        """A minibatch cut into what one forward and backward pass takes, padding trimmed."""
        part = replace(self.minibatch(part), token_count=int(part.mask.sum()))
        if self.processes.size > 1:
            part = self._share(part)
        size = self.config.micro_batch_size or self._fitting_rows(part)
        for rows in torch.arange(len(part), device=part.mask.device).split(size):
            piece = part if size >= len(part) else part.select(rows)
            if bool(piece.mask.any()):
                yield trimmed(piece)

    def _fitting_rows(self, part: Prepared) -> int:
        """Responses whose logits fit into one piece of memory: then none are made twice."""
        longest = max(int(part.mask.sum(-1).max()), 1)
        return max(fitting_positions(self.actor.vocab_size) // longest, 1)

    def _step(self, part: Prepared) -> tuple[dict[str, float], tuple[float, float]]:
        self.optim._optim.zero_grad(set_to_none=True)
        sums = self._gradient(part) if self.processes.size == 1 else self._added_gradient(part)
        grad_norm = torch.nn.utils.clip_grad_norm_(
            self.parameters_in_training, self.config.max_grad_norm or float("inf")
        )
        if not bool(torch.isfinite(grad_norm)):
            # Stepping would make every weight NaN, and the next checkpoint worthless.
            raise self._diverged("gradient", part, sums)
        self.optim._optim.step()
        values = {name: float(value) for name, value in sums.items()}
        drift = (values.pop("approx_kl"), values.pop("clip_fraction"))
        values["grad_norm"] = float(grad_norm)
        return values, drift

    def _gradient(self, part: Prepared) -> dict[str, Tensor]:
        """Add the gradient of a minibatch, of which this process does its share."""
        sums: dict[str, Tensor] = {}
        for piece in self._pieces(part):
            for name, value in self._backward(piece).items():
                sums[name] = sums[name] + value if name in sums else value
        return sums

    def _share(self, part: Prepared) -> Prepared:
        """The rows of a minibatch that this process does; at least one with a token."""
        own = self.processes.share(len(part))
        mine = part.select(torch.arange(own.start, own.stop, device=part.mask.device))
        return mine if bool(mine.mask.any()) else part.select(part.mask.any(-1).nonzero()[:1, 0])

    def _added_gradient(self, part: Prepared) -> dict[str, Tensor]:
        """The gradient of a minibatch from the shares of all processes.

        One whose share holds no token does a row of another's, so that all know what is logged, and
        adds nothing.
        """
        try:
            with self.processes.section():
                sums = self._gradient(part)
        except PeerError as error:
            if error.kind == NonFiniteError.__name__:  # every process holds the whole minibatch
                raise self._diverged("loss", part, {}) from error
            raise
        counts = bool(part.mask[self.processes.share(len(part))].any())
        return add_gradients(self.processes, self.parameters_in_training, sums, counts=counts)

    def _backward(self, piece: Prepared) -> dict[str, Tensor]:
        """Add a piece's gradient; returns its part of what is logged."""
        scored = self.score(piece)
        loss, parts = self.loss(scored, piece)
        if not bool(torch.isfinite(loss)):
            raise self._diverged("loss", piece, parts)
        loss.backward()
        approx_kl, clip_fraction = ratio_statistics(
            scored.logprobs,
            piece.logprobs,
            piece.mask,
            clip_coef=self.config.clip_coef,
            count=piece.tokens,
        )
        logged = {name: value.detach() for name, value in parts.items()}
        return {**logged, "approx_kl": approx_kl, "clip_fraction": clip_fraction}

    def _diverged(self, what: str, part: Prepared, parts: Mapping[str, Tensor]) -> NonFiniteError:
        """The error that ends a run, with the minibatch in which it happened."""
        broken = [
            name
            for name, parameter in self.actor.named_parameters()
            if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all())
        ]
        return NonFiniteError(
            f"the update of {self.agent} in iteration {self.iteration} diverged: its {what} is "
            f"not finite; try a lower learning_rate or max_grad_norm",
            {
                f.name: getattr(part, f.name)
                for f in fields(part)
                if isinstance(getattr(part, f.name), Tensor) and f.name != "ref_log_probs"
            },
            {
                "agent": self.agent,
                "iteration": self.iteration,
                "not_finite": what,
                "seat": part.seat,
                # Text, since JSON has no NaN.
                "loss_parts": {name: str(float(value.detach())) for name, value in parts.items()},
                "gradients_not_finite": broken,
            },
        )

    def _clips(self) -> bool:
        """Whether the ratio's clip is a part of what this learner does."""
        return self.traits.reads is None or "clip_coef" in self.traits.reads

    def _stats(
        self,
        batch: Prepared,
        logged: list[dict[str, float]],
        last_pass: list[tuple[float, float]],
    ) -> UpdateStats:
        def mean(name: str) -> float | None:
            found = [values[name] for values in logged if name in values]
            return float(np.mean(found)) if found else None

        return UpdateStats(
            policy_loss=mean("policy_loss"),
            value_loss=mean("value_loss"),
            grad_norm=mean("grad_norm"),
            approx_kl=float(np.mean([d[0] for d in last_pass])) if last_pass else None,
            clip_fraction=float(np.mean([d[1] for d in last_pass]))
            if last_pass and self._clips()
            else None,
            explained_variance=explained_variance(batch.values, batch.returns, batch.mask),
            optimizer_steps=len(logged),
        )

    def set_iteration(self, iteration: int, iterations: int) -> None:
        """Tell the agent which iteration begins: it names streams and sets the learning rate."""
        self.iteration = iteration
        assert self.config.learning_rate is not None
        scale = 1.0
        if self.config.learning_rate_schedule == "linear":
            scale = 1.0 - (iteration - 1) / iterations
        for group in self.optim._optim.param_groups:
            group["lr"] = self.config.learning_rate * scale

    # Tianshou's own entry points, for an agent that is trained without a team.

    def _preprocess_batch(self, batch: Any, buffer: ReplayBuffer, indices: np.ndarray) -> Any:
        return self.prepare(self.rollout(batch, column=0))

    def _update_with_batch(self, batch: Any, batch_size: int | None, repeat: int) -> TrainingStats:
        return self.update_from(batch, batch_size, repeat)

    def rollout(self, batch: Any, column: int) -> Rollout:
        """Read this agent's rows of a buffer.

        Args:
            batch: rows in which the agent acted.
            column: of its reward.
        """
        rollout = rollout_from_batch(batch, column, self.actor.device, self.reference)
        # Episodes are the environments, so rows of two agents stand in the same order after this;
        # learners of several agents rely on it.
        return rollout.select(torch.argsort(rollout.episode))


def trimmed(batch: Prepared) -> Prepared:
    """Cut the columns that are padding in every row: they cost arithmetic and say nothing."""
    width = max(int(batch.mask.sum(-1).max()), 1)
    columns = ("response_ids", "logprobs", "values", "kl", "entropy", "ref_logprobs", "ref_hidden")
    cut = {name: getattr(batch, name)[:, :width] for name in (*columns, "advantages", "returns")}
    if batch.ref_log_probs is not None:
        cut["ref_log_probs"] = batch.ref_log_probs[:, :width]
    return replace(batch, prompt_ids=trim_left(batch.prompt_ids), **cut)
