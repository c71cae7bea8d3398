"""Heterogeneous-agent PPO: agents are updated in turn, each corrected for those before it.

    M             = 1 for the agent that is updated first; after each agent's whole update
                    M <- M * exp(clamp(sum over its tokens of log pi_new - log pi_old, +-log 2))
    policy loss   = mean max(-M A_t rho_t, -M A_t clip(rho_t, 1 - clip_coef, 1 + clip_coef))

A is PPO's advantage of a return that all agents share, whitened before M. M is one number an
episode: `Prepared.factor`. The observer is updated first, so that the pioneer's credit is that of
the observer as it has become; the other way round M would only weigh the observer's prompts.

Source: Kuba et al. 2022, "Trust Region Policy Optimisation in Multi-Agent Reinforcement Learning",
equation 11 and algorithm 4 (HAPPO).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from agents.bridge.learner import Learner, UpdateStats
from agents.learners.ppo import PPO
from agents.maths.ratios import effective_sample_size, next_factor
from agents.rollout import Prepared
from agents.traits import Traits

ROWS = 64
"""Responses scored at a time between two agents' updates."""


class HAPPO(PPO):
    """PPO in sequence, with the factor M."""

    traits: ClassVar[Traits] = Traits(
        reads=(PPO.traits.reads or frozenset()) | {"happo_order"},
        nested=False,
        plain_transfer=True,
        common_return=True,
    )

    @classmethod
    def update_team(
        cls,
        learners: Mapping[str, Learner],
        batches: Mapping[str, Prepared],
        minibatch_size: int | None,
        epochs: int,
    ) -> dict[str, UpdateStats]:
        """Update one agent after the other and carry M along."""
        order = sorted(learners, key=lambda agent: batches[agent].seat)
        first = learners[order[0]]
        if first.config.happo_order == "observer_first":
            order.reverse()
        found: dict[str, UpdateStats] = {}
        factor = torch.ones(len(batches[order[0]]), dtype=torch.float64, device=first.actor.device)
        clamped = torch.zeros_like(factor, dtype=torch.bool)
        for place, agent in enumerate(order):
            learner, batch = learners[agent], batches[agent]
            assert isinstance(learner, HAPPO)
            stats = learner.update_from(replace(batch, factor=factor), minibatch_size, epochs)
            stats.logged = {
                "factor_sample_size": effective_sample_size(factor),
                "factor_clamped": float(clamped.double().mean()),
            }
            found[agent] = stats
            if place + 1 < len(order):
                factor, kept = next_factor(
                    factor, learner.logprobs_now(batch), batch.logprobs.double(), batch.mask
                )
                clamped |= kept
        return {agent: found[agent] for agent in learners}

    def minibatch(self, batch: Prepared) -> Prepared:
        """Whitened as PPO's, then weighted with M."""
        batch = super().minibatch(batch)
        if batch.factor is None:  # an agent by itself: nobody was updated before it
            return batch
        weight = batch.factor.to(batch.advantages.dtype).unsqueeze(-1)
        return replace(batch, advantages=batch.advantages * weight)

    def logprobs_now(self, batch: Prepared) -> Tensor:
        """Of a batch's tokens after the update, [B, T], float64, no gradient."""
        own = self.processes.share(len(batch))
        with self.processes.section():
            rows = torch.arange(own.start, own.stop, device=batch.mask.device).split(ROWS)
            parts = [self._logprobs(batch.select(some)) for some in rows if len(some)]
            none = batch.logprobs.new_zeros((0, batch.mask.shape[1]), dtype=torch.float64)
            found = torch.cat([none, *parts])
        return self.processes.gather(found, len(batch))

    @torch.no_grad()
    def _logprobs(self, batch: Prepared) -> Tensor:
        return self.actor.score(
            batch.prompt_ids, batch.response_ids, self.config.temperature, with_entropy=False
        ).logprobs.double()
