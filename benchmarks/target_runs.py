"""Runs on `target` that benchmarks share: names, budget, what they scored, the commands' flags."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents.config import TrainConfig
from benchmarks.pages import DOCS, interval
from benchmarks.sweep import Run, Store, Tally

STORE = Path("runs/benchmarks/target")
"""Shared with `benchmarks.learners`: what both want is trained once."""
AGENTS = ("agent_0", "agent_1")
SEEDS = 5
ITERATIONS = 120

BUDGET: dict[str, Any] = {
    "task": "target",
    "learning_rate_schedule": "linear",
    "eval_interval": 40,
    "checkpoint_interval": 40,
}
"""Settings of all runs beside the task's defaults. Its learning rate is made for 20 iterations; in
six times as many, scores go up and down by tenths at the end unless it falls."""

SEATS = {"as observer": "observer_eval/A", "alone": "eval/A"}
"""How agents are judged -> beginning of the metrics; the first is the main measure."""


def target_name(kappa: float, method: str, algorithm: str, seed: int) -> str:
    """The folder of a run."""
    return f"kappa{kappa:g}-{method}-{algorithm}-seed{seed}"


def target_run(
    kappa: float, method: str, algorithm: str, seed: int, **settings: Any
) -> tuple[str, TrainConfig]:
    """Name and settings of a run; the settings override the budget."""
    config = TrainConfig(
        task_args=f"kappa={kappa:g}",
        method=method,
        algorithm=algorithm,
        seed=seed,
        **{**BUDGET, "iterations": ITERATIONS, **settings},
    )
    return target_name(kappa, method, algorithm, seed), config


# Results.


def by_seed(
    runs: Mapping[str, Run], metric: str, kappa: float, method: str, algorithm: str = "ppo"
) -> dict[int, tuple[float, ...]]:
    """What the last row of each finished run says of the agents, by seed.

    Args:
        runs: by name.
        metric: key of metrics.jsonl, with A for the agent.
        kappa: of the task.
        method: of the runs.
        algorithm: of the runs.
    """
    found = {}
    for run in runs.values():
        seed = run.config["seed"]
        if run.name == target_name(kappa, method, algorithm, seed):
            keys = [metric.replace("A", agent, 1) for agent in AGENTS]
            found[seed] = tuple(number(run, run.last, key) for key in keys)
    return found


def number(run: Run, row: Mapping[str, Any], key: str) -> float:
    """A number that a run's folder must hold.

    Raises:
        ValueError: naming the run, if it is not there.
    """
    value = row.get(key)
    if not isinstance(value, int | float):
        raise ValueError(
            f"run {run.name} must hold a number {key}, got {value!r}: remove its folder from the "
            f"store, and the same command trains it again"
        )
    return float(value)


def pair(found: Mapping[int, Sequence[float]]) -> dict[int, float]:
    """The mean over the agents, by seed."""
    return {seed: sum(values) / len(values) for seed, values in found.items()}


def cell(values: Sequence[float], seeds: int) -> str:
    """Mean and interval; how many seeds where some are missing."""
    if not values:
        return "–"
    text = str(interval(values))
    return text if len(values) == seeds else f"{text} (n = {len(values)})"


def settings_line(runs: Mapping[str, Run]) -> str:
    """The budget as the stored runs say it, and where they began."""
    configs = [run.config for run in runs.values()]
    names = ("iterations", "batch_size", "learning_rate", "learning_rate_schedule", "kl_coef")
    shown = {n: sorted({str(config[n]) for config in configs}) for n in names}
    told = ", ".join(f"`{name}` {' or '.join(values)}" for name, values in shown.items())
    responses = sorted({number(r, r.last, "scored_responses") for r in runs.values()})
    seconds = sum(number(r, r.last, "seconds") for r in runs.values())
    before = {
        name: statistics.fmean(
            number(r, r.initial, f"{seat.replace('A', agent, 1)}/score")
            for r in runs.values()
            for agent in AGENTS
        )
        for name, seat in SEATS.items()
    }
    scored = ", ".join(f"{value:.2f} {name}" for name, value in before.items())
    return (
        f"{len(runs)} runs with {told}; {' or '.join(f'{r:,.0f}' for r in responses)} scored "
        f"responses each; {seconds / 60:.0f} minutes of one thread in all. "
        f"Before training the agents score {scored}."
    )


# The command.


@dataclass(frozen=True, kw_only=True)
class StoredBenchmark:
    """Flags of the benchmarks that read their numbers from stored runs."""

    store: Path = STORE
    """Folder of the runs; benchmarks.influence and benchmarks.learners share it."""
    workers: int = 2
    """Runs side by side, each with one thread."""
    seeds: int = SEEDS
    """Runs of each cell, at least 2: seeds 0, 1, ..."""
    iterations: int = ITERATIONS
    """Iterations of each run."""
    report: bool = False
    """Train nothing; read what is stored."""
    write: bool = False
    """Write the tables into the documentation, once all runs are finished."""
    docs: Path = DOCS
    """Folder of the documentation."""

    def __post_init__(self) -> None:
        if self.seeds < 2:
            raise ValueError(f"seeds must be at least 2, for an interval, got {self.seeds}")
        if self.store.exists() and not self.store.is_dir():
            raise ValueError(f"store must be a folder, got the file {self.store}")
        if self.write and not self.docs.is_dir():
            raise ValueError(f"docs must be the folder of the documentation, got {self.docs}")


def finished_runs(
    asked: StoredBenchmark, wanted: Mapping[str, TrainConfig]
) -> tuple[dict[str, Run], int]:
    """The finished runs, after training the others unless only a report is asked for.

    Returns:
        The runs by name, and the exit status so far: 0 where all are finished.
    """
    store, tally = Store(asked.store, wanted), Tally()
    if asked.report:
        store.check()
    else:
        tally = store.train(asked.workers)
    for name, failure in tally.failures.items():
        print(f"FAILED: {name}: {failure}")
    runs = store.runs()
    if len(runs) == len(wanted):
        return runs, 0
    print(
        f"{len(runs)} of {len(wanted)} runs are finished, nothing is written; the same command "
        f"without --report goes on, and fewer --seeds ask for fewer"
    )
    return runs, 130 if tally.interrupted else 1
