"""`make bench-learners`: every learner of ours on `target` at one budget of responses.

Half of the queries are hidden from observers (`kappa` 0.5). The runs lie in the store of
`benchmarks.influence`; `--write` puts the tables into the pages of the learners.
"""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tyro

from agents.command_line import run_command
from agents.config import TrainConfig, resolved
from agents.learners import LEARNERS
from agents.learners.combinations import refusal
from benchmarks.pages import check_parts, markdown, write_part
from benchmarks.sweep import Run
from benchmarks.target_runs import (
    SEATS,
    StoredBenchmark,
    by_seed,
    cell,
    finished_runs,
    number,
    pair,
    settings_line,
    target_name,
    target_run,
)

COMMAND = "python -m benchmarks.learners"

KAPPA = 0.5
METHODS = ("independent", "cory")

COSTS = {
    "responses": ("scored_responses", "{:,.0f}"),
    "tokens": ("generated_tokens", "{:,.0f}"),
    "optimizer steps": ("optimizer_steps", "{:,.0f}"),
    "seconds": ("seconds", "{:.0f}"),
}
"""Column -> key of metrics.jsonl and how it is written; the median over the seeds."""


def reason(learner: str, method: str) -> str | None:
    """Why a learner is not defined for a method, without the method's part in it; None: it is."""
    traits = LEARNERS[learner].traits
    config = resolved(TrainConfig(algorithm=learner, method=method), {}, traits)
    why = refusal(traits, config)
    return None if why is None else why.partition(", and ")[0]


def wanted(seeds: int, **settings: Any) -> dict[str, TrainConfig]:
    """All runs that are defined, one seed after the other."""
    return dict(
        target_run(KAPPA, method, learner, seed, **settings)
        for seed in range(seeds)
        for learner in LEARNERS
        for method in METHODS
        if reason(learner, method) is None
    )


# Results.


def figures(runs: Mapping[str, Run], learner: str, method: str, seeds: int) -> list[str]:
    """Score and KL in both seats, means over the agents with intervals over the seeds."""
    return [
        cell(list(pair(by_seed(runs, f"{seat}/{name}", KAPPA, method, learner)).values()), seeds)
        for seat in SEATS.values()
        for name in ("score", "kl")
    ]


def costs(runs: Mapping[str, Run], learner: str, method: str) -> list[str]:
    """What a run took, the median over the seeds."""
    own = [
        run
        for run in runs.values()
        if run.name == target_name(KAPPA, method, learner, run.config["seed"])
    ]
    if not own:
        return ["–"] * len(COSTS)
    return [
        form.format(statistics.median(number(r, r.last, key) for r in own))
        for key, form in COSTS.values()
    ]


def table(runs: Mapping[str, Run], method: str, seeds: int) -> str:
    """A row for each learner; of one that is not defined, why."""
    head = [f"{what} {seat}" for seat in SEATS for what in ("score", "KL")]
    rows = []
    for learner in LEARNERS:
        why = reason(learner, method)
        cells = (
            [f"not defined: {why}", *[""] * (len(head) + len(COSTS) - 1)]
            if why is not None
            else figures(runs, learner, method, seeds) + costs(runs, learner, method)
        )
        rows.append([f"[`{learner}`]({learner}.md)", *cells])
    return markdown(["learner", *head, *COSTS], rows)


def report(runs: Mapping[str, Run], seeds: int) -> str:
    """The generated part of the page of all learners."""
    parts = [settings_line(runs)]
    for method in METHODS:
        parts += [f"Under `{method}`, {seeds} seeds:", table(runs, method, seeds)]
    return "\n\n".join(parts)


def result(runs: Mapping[str, Run], learner: str, seeds: int) -> str:
    """What a learner's own page says of its runs."""
    told = []
    for method in METHODS:
        why = reason(learner, method)
        if why is not None:
            told.append(f"Under `{method}` it is not defined: {why}.")
            continue
        score, kl, alone, kl_alone = figures(runs, learner, method, seeds)
        told.append(
            f"Under `{method}` its agents score {score} as observer at a KL of {kl} nats, and "
            f"{alone} alone at {kl_alone}."
        )
    text = (
        f"On `target` with `kappa` {KAPPA:g}, after as many iterations as all learners, the mean "
        f"of both agents over {seeds} seeds with its 95 % interval. {' '.join(told)} "
        f"[All learners](README.md#results)."
    )
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


# The command.


@dataclass(frozen=True, kw_only=True)
class Learners(StoredBenchmark):
    """Train `target` with every learner, under independent and under cory, at one budget.

    It can be interrupted at any time; the same command goes on.
    """


def run(asked: Learners) -> int:
    """Train, and say or write what came of it; returns the exit status."""
    folder = asked.docs / "learners"
    if asked.write:
        check_parts([folder / f"{name}.md" for name in ("README", *LEARNERS)], COMMAND)
    runs, status = finished_runs(asked, wanted(asked.seeds, iterations=asked.iterations))
    if not runs:
        return status
    text = report(runs, asked.seeds)
    print(text)
    if asked.write and status == 0:
        write_part(folder / "README.md", COMMAND, text)
        for learner in LEARNERS:
            write_part(folder / f"{learner}.md", COMMAND, result(runs, learner, asked.seeds))
    return status


def main() -> None:
    """Command line of `python -m benchmarks.learners`."""

    def command(arguments: list[str]) -> None:
        raise SystemExit(run(tyro.cli(Learners, args=arguments, prog=COMMAND)))

    run_command(command)


if __name__ == "__main__":
    main()
