"""Policies that answer with whole responses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from tianshou.algorithm.algorithm_base import Policy
from tianshou.data import Batch
from torch import Tensor

from agents.bridge.records import policy_entry
from agents.distributed import ALONE, Processes
from agents.groups import Groups
from agents.models.language_model import ActorCritic, LanguageModel
from agents.sampling import Measured, Sampled, measure, sample
from agents.sharing import respond_together
from agents.streams import response_uniforms


class _QuickPolicy(Policy):
    """A policy without the wait: Tianshou's constructor compiles its numba returns for seconds.

    Ours are computed in torch, so nothing here ever calls them.
    """

    @staticmethod
    def _compile() -> None:
        """Compile nothing."""


@dataclass(frozen=True)
class Said:
    """What a reference says about the responses of an iteration."""

    iteration: int
    episodes: NDArray[np.int64]
    """Of the rows, ascending, [B]."""
    log_probs: Tensor
    """[B, T', V]."""


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
        processes: Processes = ALONE,
    ) -> None:
        super().__init__(action_space=action_space, action_bound_method=None)
        self.actor = actor
        self._reference = [reference]  # in a list: it is not part of the policy's state
        self.end_ids = tuple(end_ids)
        self.temperature = temperature
        self.keep_ref_hidden = keep_ref_hidden
        self.processes = processes
        self.said: Said | None = None
        """Beside the buffer, which would copy it row by row."""

    def take_said(self, iteration: int, episodes: NDArray[np.int64]) -> Tensor | None:
        """What the reference says about the responses of some episodes, [B, T', V], given once.

        None: it was not kept, or it was about others.
        """
        said, self.said = self.said, None
        if said is None or said.iteration != iteration:
            return None
        same = np.array_equal(said.episodes, episodes)
        return said.log_probs if same else None

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
        if self.processes.size == 1:
            return self._respond(prompts, uniforms)
        return respond_together(self.processes, self._respond, prompts, uniforms)

    def _respond(
        self, prompts: NDArray[np.int64], uniforms: NDArray[np.float64]
    ) -> tuple[Sampled, Measured]:
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

    def __init__(
        self,
        policies: dict[str, ResponsePolicy],
        *,
        seed: int,
        width: int,
        groups: Groups | None = None,
    ) -> None:
        """Join the agents' policies.

        Args:
            policies: by agent id.
            seed: of the run.
            width: T, longest response in tokens.
            groups: which episodes share a first response; None: none do.
        """
        first = next(iter(policies.values()))
        super().__init__(action_space=first.action_space, action_bound_method=None)
        self.policies = policies
        self._registered = torch.nn.ModuleDict(policies)  # so that train() and eval() reach them
        self._seed = seed
        self._width = width
        self._groups = Groups() if groups is None else groups
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
            episodes = np.asarray(batch.info.episode)[rows].astype(np.int64)
            # What several episodes share is drawn once.
            drawn, first, place = np.unique(
                self._groups.first(seat, episodes), return_index=True, return_inverse=True
            )
            prompts = np.asarray(batch.obs.obs)[rows[first]]
            sampled, measured = policy.respond(prompts, self.uniforms(seat, drawn))
            policy.said = None
            if measured.ref_log_probs is not None:
                policy.said = Said(self.iteration, drawn, measured.ref_log_probs)
            act[rows] = sampled.response_ids.cpu().numpy()[place]
            kept = policy_entry(sampled, measured, seat=seat, hidden_width=self._hidden_width)
            for name, values in kept.items():
                whole = entry.setdefault(name, np.zeros((n, *values.shape[1:]), values.dtype))
                whole[rows] = values[place]
        return Batch(act=act, policy=Batch(entry), state=None)

    def uniforms(self, seat: int, episodes: NDArray[np.int64]) -> NDArray[np.float64]:
        """The numbers that decide a seat's tokens in some episodes of the iteration, [B, T]."""
        numbers = [int(episode) for episode in episodes]
        return response_uniforms(
            self._seed, f"response/{seat}", self.iteration, numbers, self._width
        )
