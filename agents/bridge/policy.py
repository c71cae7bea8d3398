"""Policies that answer with whole responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from tianshou.algorithm.algorithm_base import Policy
from tianshou.data import Batch

from agents.bridge.records import policy_entry
from agents.models.language_model import ActorCritic, LanguageModel
from agents.sampling import Measured, Sampled, measure, sample
from agents.streams import response_uniforms


class _QuickPolicy(Policy):
    """A policy without the wait: Tianshou's constructor compiles its numba returns for seconds.

    Ours are computed in torch, so nothing here ever calls them.
    """

    @staticmethod
    def _compile() -> None:
        """Compile nothing."""


class ResponsePolicy(_QuickPolicy):
    """One agent's policy: draws a response and records what an update needs."""

    def __init__(
        self,
        *,
        actor: ActorCritic,
        reference: LanguageModel,
        action_space: gym.Space[Any],
        end_ids: Sequence[int],
        temperature: float,
        keep_ref_hidden: bool,
    ) -> None:
        super().__init__(action_space=action_space, action_bound_method=None)
        self.actor = actor
        self._reference = [reference]  # in a list: it is not part of the policy's state
        self.end_ids = tuple(end_ids)
        self.temperature = temperature
        self.keep_ref_hidden = keep_ref_hidden

    @property
    def reference(self) -> LanguageModel:
        """The frozen model that KL is measured against."""
        return self._reference[0]

    def respond(
        self, prompts: NDArray[np.int64], uniforms: NDArray[np.float64]
    ) -> tuple[Sampled, Measured]:
        """Draw one response per prompt and measure it against the reference.

        Args:
            prompts: left-padded with -1, [B, L].
            uniforms: in [0, 1), [B, T].
        """
        device = self.actor.device
        prompt_ids = torch.as_tensor(prompts, device=device)
        sampled = sample(
            self.actor,
            prompt_ids,
            torch.as_tensor(uniforms, device=device),
            end_ids=self.end_ids,
            temperature=self.temperature,
        )
        measured = measure(
            self.actor,
            self.reference,
            prompt_ids,
            sampled,
            temperature=self.temperature,
            keep_ref_hidden=self.keep_ref_hidden,
        )
        return sampled, measured

    def forward(self, batch: Batch, state: Any = None, **kwargs: Any) -> Batch:
        """Not used: the team's policy knows which stream belongs to which episode."""
        raise NotImplementedError("a ResponsePolicy is called through its TeamPolicy")


class TeamPolicy(_QuickPolicy):
    """Sends each row to the agent whose turn it is.

    Tianshou's own multi-agent policy fails while collecting with actions that are not Discrete, and
    drops what the agents' policies record.
    """

    def __init__(self, policies: dict[str, ResponsePolicy], *, seed: int, width: int) -> None:
        """Join the agents' policies.

        Args:
            policies: by agent id.
            seed: of the run.
            width: T, longest response in tokens.
        """
        first = next(iter(policies.values()))
        super().__init__(action_space=first.action_space, action_bound_method=None)
        self.policies = policies
        self._registered = torch.nn.ModuleDict(policies)  # so that train() and eval() reach them
        self._seed = seed
        self._width = width
        self._hidden_width = max(policy.reference.hidden_size for policy in policies.values())
        self.iteration = 0

    def forward(self, batch: Batch, state: Any = None, **kwargs: Any) -> Batch:
        """Responses for the rows of a vector environment.

        Args:
            batch: `obs.agent_id` [B], `obs.obs` [B, L], `info.episode` and `info.seat` [B].
            state: unused.
            kwargs: unused.

        Returns:
            `act` [B, T] and `policy` (see `agents.bridge.records`), in the order of the rows.
        """
        n = len(batch.obs.agent_id)
        act = np.full((n, self._width), -1, dtype=np.int64)
        entry: dict[str, NDArray[Any]] = {}
        for agent, policy in self.policies.items():
            rows = np.flatnonzero(batch.obs.agent_id == agent)
            if not len(rows):
                continue
            seat = int(batch.info.seat[rows[0]])
            uniforms = response_uniforms(
                self._seed,
                f"response/{seat}",
                self.iteration,
                [int(e) for e in batch.info.episode[rows]],
                self._width,
            )
            sampled, measured = policy.respond(np.asarray(batch.obs.obs)[rows], uniforms)
            act[rows] = sampled.response_ids.cpu().numpy()
            kept = policy_entry(sampled, measured, seat=seat, hidden_width=self._hidden_width)
            for name, values in kept.items():
                whole = entry.setdefault(name, np.zeros((n, *values.shape[1:]), values.dtype))
                whole[rows] = values
        return Batch(act=act, policy=Batch(entry), state=None)
