"""Evaluation on held-out queries: each agent alone, and in the observer's seat.

Only the query-only prompt is what an agent meets after training, and only there are the KL of two
methods on one scale. The streams are fixed: all agents, methods and iterations answer the same
queries with the same random numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

import numpy as np

from agents.maths.diversity import distinct_n
from agents.players import Played, Responder, play
from agents.streams import stream
from cory_env.records import EpisodeRecord, Query, Turn
from cory_env.rewards.base import checked_scores
from cory_env.runner import LockStepRunner
from cory_env.tasks.base import Task

EVALUATION_SEED = 20_241
"""Of the streams of every evaluation, whatever the seed of the run."""

CHUNK_EPISODES = 256


@dataclass(frozen=True)
class Evaluation:
    """Means over the responses of one agent in one seat."""

    score: float
    hidden_score: float | None
    """By the task's second scorer, which training never sees; None where it has none."""
    kl: float
    """Summed over a response, full estimator, nats."""
    distinct_2: float | None
    """Different bigrams among all, pooled over responses, end token included."""
    response_tokens: float
    truncated: float
    """Share of responses cut by the length limit."""
    parts: Mapping[str, float] | None = None
    """Where the reward is a weighted sum: what each part says, unweighted."""

    def to_json(self) -> dict[str, float | None]:
        """The values by name; those of parts are called `score/NAME`."""
        values = asdict(self)
        parts = values.pop("parts") or {}
        return values | {f"score/{name}": score for name, score in parts.items()}


@dataclass(frozen=True)
class Evaluated:
    """An evaluation and the episodes it was made from."""

    evaluation: Evaluation
    records: list[EpisodeRecord]


def evaluate_alone(
    solo_runner: LockStepRunner, responder: Responder, queries: Sequence[Query]
) -> Evaluated:
    """Evaluate one agent with the query-only prompt.

    Args:
        solo_runner: a game of one agent, `agent_0`.
        responder: the agent, at temperature 1.
        queries: held-out queries, one response each.
    """
    return _evaluate(solo_runner, {"agent_0": responder}, queries, ("agent_0",), "evaluation/alone")


def evaluate_as_observer(
    runner: LockStepRunner,
    responders: Mapping[str, Responder],
    agent: str,
    queries: Sequence[Query],
) -> Evaluated:
    """Evaluate an agent in the last seat, behind the other agents of its team.

    Args:
        runner: the game that was trained in.
        responders: all agents.
        agent: the one to judge.
        queries: held-out queries.
    """
    order = (*(a for a in runner.rules.agents if a != agent), agent)
    return _evaluate(runner, responders, queries, order, "evaluation/observer")


def _evaluate(
    runner: LockStepRunner,
    responders: Mapping[str, Responder],
    queries: Sequence[Query],
    order: Sequence[str],
    stream_name: str,
) -> Evaluated:
    played = [
        play(
            runner,
            responders,
            part,
            order,
            seed=EVALUATION_SEED,
            stream_name=stream_name,
            first_episode=first,
        )
        for first, part in _chunks(queries)
    ]
    records = [record for p in played for record in p.records]
    return Evaluated(_summary(runner.rules.task, records, played), records)


def _chunks(queries: Sequence[Query]) -> Iterator[tuple[int, Sequence[Query]]]:
    """Parts of nearly equal size: a remainder of one episode could not be permuted."""
    n_parts = -(-len(queries) // CHUNK_EPISODES)
    bounds = [round(i * len(queries) / n_parts) for i in range(n_parts + 1)]
    for first, end in pairwise(bounds):
        yield first, queries[first:end]


def _summary(task: Task, records: list[EpisodeRecord], played: list[Played]) -> Evaluation:
    last = [record.turns[-1] for record in records]
    kl = np.concatenate([p.measured[-1].kl.double().sum(-1).cpu().numpy() for p in played])
    return Evaluation(
        score=float(np.mean([turn.score for turn in last])),
        hidden_score=hidden_score(task, records),
        kl=float(kl.mean()),
        distinct_2=distinct_n([turn.response_ids for turn in last]),
        response_tokens=float(np.mean([len(turn.response_ids) for turn in last])),
        truncated=float(np.mean([turn.truncated for turn in last])),
        parts=mean_parts(last),
    )


def mean_parts(turns: Sequence[Turn]) -> dict[str, float] | None:
    """Mean score by part of a weighted sum; None where the reward is a single one."""
    first = turns[0].parts
    if first is None:
        return None
    scores = {name: [turn.parts[name] for turn in turns if turn.parts] for name in first}
    return {name: float(np.mean(values)) for name, values in scores.items()}


def hidden_score(task: Task, records: Sequence[EpisodeRecord]) -> float | None:
    """Mean of the task's second scorer over the last responses; None where it has none."""
    if task.hidden_reward is None:
        return None
    queries = [task.scored_query(r.turns[-1].role, r.query) for r in records]
    scores = checked_scores(task.hidden_reward, queries, [r.turns[-1].response for r in records])
    return float(scores.mean())


def evaluation_queries(task: Task, split: str, n: int) -> list[Query]:
    """The first n queries of a split in a fixed shuffled order; all of them if there are fewer."""
    queries = task.queries(split)
    if not queries:
        raise ValueError(f"task {task.name!r} must have {split} queries to evaluate on, got none")
    order = stream(EVALUATION_SEED, f"queries/{split}").permutation(len(queries))
    return [queries[i] for i in order[:n]]
