"""`python -m agents.influence`: how much the pioneer's words matter for what the observer scores.

Nested sampling: several pioneer responses to a query, several observer responses to each of those.
Where the influence is near 0 there is nothing to share, and a comparison of CORY with independent
agents says nothing about CORY.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from agents.command_line import ChatFlags
from agents.config import TrainConfig
from agents.evaluation import EVALUATION_SEED, evaluation_queries
from agents.files import write_json
from agents.maths.influence import Influence, influence_statistics
from agents.players import Responder
from agents.streams import response_uniforms
from agents.trained import open_agents
from cory_env.records import EpisodeRecord, Query
from cory_env.runner import LockStepRunner

UNINFORMATIVE = 0.02
"""Influence below which a report says "uninformative about CORY"."""


def measure_influence(
    runner: LockStepRunner,
    responders: Mapping[str, Responder],
    turn_order: Sequence[str],
    queries: Sequence[Query],
    *,
    first: int,
    second: int,
    chunk_queries: int = 8,
) -> Influence:
    """Sample a two-agent game in nests.

    Args:
        runner: a game of two agents at response level.
        responders: by agent id, at temperature 1.
        turn_order: pioneer and observer.
        queries: Q of them.
        first: pioneer responses to each query.
        second: observer responses to each of those.
        chunk_queries: queries in a batch.

    Raises:
        ValueError: if the game has not two agents, or first or second is below 2.
    """
    if runner.rules.n_agents != 2:
        raise ValueError(f"influence needs a game of 2 agents, got {runner.rules.n_agents}")
    if not queries:
        raise ValueError("queries must be at least 1, got 0")
    if min(first, second) < 2:
        raise ValueError(f"first and second must be at least 2, got {first} and {second}")
    scores1, scores2, texts1, texts2 = [], [], [], []
    for start in range(0, len(queries), chunk_queries):
        part = queries[start : start + chunk_queries]
        records = _play_nest(runner, responders, turn_order, part, start, first, second)
        shape = (len(part), first, second)
        scores1.append(np.array([r.turns[0].score for r in records]).reshape(shape)[:, :, 0])
        scores2.append(np.array([r.turns[1].score for r in records]).reshape(shape))
        texts1.append(_texts(records, 0).reshape(shape)[:, :, 0])
        texts2.append(_texts(records, 1).reshape(shape))
    return influence_statistics(
        np.concatenate(scores1).astype(np.float64),
        np.concatenate(scores2).astype(np.float64),
        np.concatenate(texts1),
        np.concatenate(texts2),
    )


def _texts(records: Sequence[EpisodeRecord], seat: int) -> np.ndarray:
    return np.array([record.turns[seat].response for record in records], dtype=object)


def _play_nest(
    runner: LockStepRunner,
    responders: Mapping[str, Responder],
    turn_order: Sequence[str],
    queries: Sequence[Query],
    start: int,
    first: int,
    second: int,
) -> list[EpisodeRecord]:
    """Play Q * first * second episodes; `second` neighbours share the pioneer's response."""
    pioneer, observer = turn_order
    width = runner.rules.max_response_tokens
    nested = [q for q in queries for _ in range(first * second)]
    ids = list(range(len(nested)))
    runner.begin(nested, turn_order)
    _, observations = runner.observe(ids)
    numbers = [start * first + i for i in range(len(queries) * first)]
    uniforms = response_uniforms(EVALUATION_SEED, "influence/0", 0, numbers, width)
    drawn, _ = responders[pioneer].respond(observations[::second], uniforms)
    runner.step(np.repeat(drawn.response_ids.cpu().numpy(), second, axis=0), ids)
    _, observations = runner.observe(ids)
    numbers = [start * first * second + i for i in ids]
    uniforms = response_uniforms(EVALUATION_SEED, "influence/1", 0, numbers, width)
    drawn, _ = responders[observer].respond(observations, uniforms)
    runner.step(drawn.response_ids.cpu().numpy(), ids)
    return [record for record in runner.finished if record is not None]


@dataclass(frozen=True, kw_only=True)
class InfluenceCommand(ChatFlags):
    """Measure the pioneer's influence on the observer's score by nested sampling."""

    run: Path | None = None
    """Folder of a finished run of two agents."""
    model: str | None = None
    """builtin:NAME, a model folder or a hub name, in both seats, instead of a run."""
    task: str = "reviews"
    """Task for a model; a run has its own."""
    queries: int = 48
    """Test queries."""
    first: int = 6
    """Pioneer responses to each query."""
    second: int = 6
    """Observer responses to each pioneer response."""
    out: Path | None = None
    """JSON file."""


def influence(command: InfluenceCommand) -> Influence:
    """Measure, print, and write the JSON if asked."""
    config = TrainConfig(task=command.task, method="cory", **command.chat)
    opened = open_agents(run=command.run, model=command.model, config=config, reference=None)
    measured = measure_influence(
        LockStepRunner(opened.rules),
        opened.responders,
        opened.rules.agents,
        evaluation_queries(opened.task, "test", command.queries),
        first=command.first,
        second=command.second,
    )
    for name, value in asdict(measured).items():
        print(f"{name:>17}  {'-' if value is None else f'{value:.3f}'}")
    if measured.influence < UNINFORMATIVE:
        print(f"influence below {UNINFORMATIVE}: uninformative about CORY")
    if command.out is not None:
        write_json(command.out, asdict(measured))
    return measured


def main() -> None:
    """Command line of `python -m agents.influence`."""
    import tyro

    from agents.command_line import run_command

    def command(arguments: list[str]) -> None:
        influence(tyro.cli(InfluenceCommand, args=arguments, prog="python -m agents.influence"))

    run_command(command)


if __name__ == "__main__":
    main()
