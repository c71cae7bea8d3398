"""The numbers of an iteration, by the fixed names of `metrics.jsonl`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from agents.bridge.learner import UpdateStats
from agents.bridge.replay import Extra
from agents.evaluation import Evaluation, mean_parts
from agents.maths.masking import masked_mean, masked_sum
from agents.rollout import Rollout
from cory_env.records import EpisodeRecord

Metrics = dict[str, float | int | str | None]


@dataclass
class Counters:
    """Cumulative over training; part of the checkpoint."""

    episodes: int = 0
    generated_tokens: int = 0
    scored_responses: int = 0
    optimizer_steps: int = 0
    seconds: float = 0.0

    def add(
        self,
        records: Sequence[EpisodeRecord],
        steps: int,
        seconds: float,
        extra: Extra | None = None,
    ) -> None:
        """Count an iteration; `extra` is what it cost beside its episodes."""
        extra = Extra() if extra is None else extra
        self.episodes += len(records)
        self.scored_responses += sum(len(r.turns) for r in records) + extra.responses
        self.generated_tokens += extra.tokens
        self.generated_tokens += sum(len(t.response_ids) for r in records for t in r.turns)
        self.optimizer_steps += steps
        self.seconds += seconds


def agent_metrics(
    agent: str, records: Sequence[EpisodeRecord], rollout: Rollout, stats: UpdateStats
) -> Metrics:
    """One agent's part of an iteration; a value that its learner has not is None."""
    turns = [turn for record in records for turn in record.turns if turn.agent == agent]
    values: Metrics = {
        "role": turns[0].role,
        "score": float(np.mean([t.score for t in turns])),
        **{f"score/{name}": score for name, score in (mean_parts(turns) or {}).items()},
        "reward": float(np.mean([t.payoff for t in turns])),
        "kl": float(masked_sum(rollout.kl, rollout.mask).mean()),
        "entropy": float(masked_mean(rollout.entropy, rollout.mask))
        if bool(rollout.mask.any())
        else None,
        "response_tokens": float(np.mean([len(t.response_ids) for t in turns])),
        "truncated": float(np.mean([t.truncated for t in turns])),
        "policy_loss": stats.policy_loss,
        "value_loss": stats.value_loss,
        "approx_kl": stats.approx_kl,
        "clip_fraction": stats.clip_fraction,
        "explained_variance": stats.explained_variance,
        "grad_norm": stats.grad_norm,
        **stats.logged,
    }
    return {f"{agent}/{name}": value for name, value in values.items()}


def iteration_metrics(iteration: int, counters: Counters) -> Metrics:
    """The part that belongs to no agent."""
    return {"iteration": iteration, **asdict(counters)}


def evaluation_metrics(prefix: str, evaluations: dict[str, Evaluation]) -> Metrics:
    """`eval/A/...` or `observer_eval/A/...`."""
    return {
        f"{prefix}/{agent}/{name}": value
        for agent, evaluation in evaluations.items()
        for name, value in evaluation.to_json().items()
    }
