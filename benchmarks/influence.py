"""`make bench-influence`: when does cooperation pay? The score against how much there is to tell.

Trains `target` at several values of its influence knob `kappa` under four methods, with five seeds,
and makes tables and figure of `docs/influence.md` from the stored runs (`--write`). With `--report`
it trains nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from agents.command_line import run_command
from agents.config import TrainConfig
from benchmarks.pages import Interval, check_parts, interval, markdown, write_part
from benchmarks.sweep import Run
from benchmarks.target_runs import (
    AGENTS,
    SEATS,
    StoredBenchmark,
    by_seed,
    cell,
    finished_runs,
    pair,
    settings_line,
    target_run,
)

COMMAND = "python -m benchmarks.influence"
FIGURE = "figures/influence.png"

KAPPAS = (0.0, 0.25, 0.5, 0.75, 1.0)
METHODS = ("independent", "cory_exact", "cory", "placebo_sum")
"""The first is what the others are compared with."""


def wanted(seeds: int, **settings: Any) -> dict[str, TrainConfig]:
    """All runs, one seed after the other, so that what there is of them is always balanced."""
    return dict(
        target_run(kappa, method, "ppo", seed, **settings)
        for seed in range(seeds)
        for kappa in KAPPAS
        for method in METHODS
    )


PAY = ("cory", "placebo_sum")
"""Differ in this alone: whether an agent is paid for what the other makes of its words."""


# Results.


def gains(one: Mapping[int, float], other: Mapping[int, float]) -> list[float]:
    """Differences seed by seed: runs of one seed begin with the same weights and queries."""
    return [one[seed] - other[seed] for seed in sorted(one.keys() & other.keys())]


def without_words(kappa: float) -> float:
    """The most an observer can score where nothing is told: it guesses what is hidden."""
    return 1 - kappa + kappa / 6


def score_table(runs: Mapping[str, Run], seat: str, seeds: int) -> str:
    """Score of each agent and of the pair, a row for each kappa and method."""
    rows = []
    for kappa in KAPPAS:
        for method in METHODS:
            found = by_seed(runs, f"{seat}/score", kappa, method)
            own = [cell([v[i] for v in found.values()], seeds) for i in range(len(AGENTS))]
            both = cell(list(pair(found).values()), seeds)
            rows.append([f"{kappa:g}", f"`{method}`", *own, both])
    return markdown(["kappa", "method", *(f"`{a}`" for a in AGENTS), "pair"], rows)


def ahead(
    runs: Mapping[str, Run], seat: str, kappa: float, method: str, of: str = METHODS[0]
) -> list[float]:
    """What a method's pair is ahead of another's, seed by seed."""
    own, base = (pair(by_seed(runs, f"{seat}/score", kappa, m)) for m in (method, of))
    return gains(own, base)


def gain_table(runs: Mapping[str, Run], seat: str, seeds: int) -> str:
    """What each method's pair is ahead of `independent`, by kappa; and the pay by itself."""
    compared = [*((m, METHODS[0]) for m in METHODS[1:]), PAY]
    rows = [
        [f"{kappa:g}", *(cell(ahead(runs, seat, kappa, *two), seeds) for two in compared)]
        for kappa in KAPPAS
    ]
    return markdown(
        ["kappa", *(f"`{m}`" for m in METHODS[1:]), " - ".join(f"`{m}`" for m in PAY)], rows
    )


def verdict(runs: Mapping[str, Run], seat: str) -> str:
    """Where a difference to `independent` is larger than its interval."""
    found: dict[str, list[str]] = {"ahead": [], "behind": []}
    for method in METHODS[1:]:
        kappas: dict[str, list[str]] = {"ahead": [], "behind": []}
        for kappa in KAPPAS:
            values = ahead(runs, seat, kappa, method)
            if len(values) > 1 and abs((gain := interval(values)).mean) > gain.half:
                kappas["ahead" if gain.mean > 0 else "behind"].append(f"{kappa:g}")
        for side, where in kappas.items():
            if where:
                found[side].append(f"`{method}` at {', '.join(where)}")
    told = {side: "; ".join(where) or "nowhere" for side, where in found.items()}
    return f"Intervals without 0, ahead: {told['ahead']}. Behind: {told['behind']}."


def report(runs: Mapping[str, Run], seeds: int) -> str:
    """The generated part of the page."""
    parts = [settings_line(runs), f"![Score against kappa]({FIGURE})"]
    for name, seat in SEATS.items():
        parts += [
            f"Score {name}, mean over {seeds} seeds with its 95 % interval:",
            score_table(runs, seat, seeds),
            f"Score {name} of the pair minus that of `{METHODS[0]}`, seed by seed:",
            gain_table(runs, seat, seeds),
            verdict(runs, seat),
        ]
    return "\n\n".join(parts)


def draw(runs: Mapping[str, Run], path: Path) -> None:
    """Mean score of the pair against kappa, with intervals: a panel for each seat."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    for place, (name, seat) in enumerate(SEATS.items(), start=1):
        axes = figure.add_subplot(1, len(SEATS), place)
        for number, method in enumerate(METHODS):
            points = _points(runs, method, seat)
            axes.errorbar(
                # Side by side, so that intervals can be told apart.
                [kappa + 0.012 * (number - 1.5) for kappa in points],
                [p.mean for p in points.values()],
                [p.half if p.n > 1 else 0.0 for p in points.values()],
                fmt="o-",
                markersize=4,
                capsize=2,
                color=f"C{number}",
                label=method,
            )
        if name == "as observer":
            limit = [without_words(k) for k in KAPPAS]
            axes.plot(KAPPAS, limit, "--", color="0.5", label="most without words")
        axes.set(xlabel="kappa", ylabel=f"score {name}", ylim=(0, 1.05), xticks=KAPPAS)
        axes.grid(alpha=0.3)
    figure.axes[0].legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90, metadata={"Software": None})


def _points(runs: Mapping[str, Run], method: str, seat: str) -> dict[float, Interval]:
    found = {kappa: pair(by_seed(runs, f"{seat}/score", kappa, method)) for kappa in KAPPAS}
    return {kappa: interval(list(values.values())) for kappa, values in found.items() if values}


# The command.


@dataclass(frozen=True, kw_only=True)
class Influence(StoredBenchmark):
    """Train `target` at five values of kappa under four methods: when does cooperation pay?

    It can be interrupted at any time; the same command goes on.
    """


def run(asked: Influence) -> int:
    """Train, and say or write what came of it; returns the exit status."""
    page = asked.docs / "influence.md"
    if asked.write:
        check_parts([page], COMMAND)
    runs, status = finished_runs(asked, wanted(asked.seeds, iterations=asked.iterations))
    if not runs:
        return status
    text = report(runs, asked.seeds)
    print(text)
    if asked.write and status == 0:
        draw(runs, asked.docs / FIGURE)
        write_part(page, COMMAND, text)
    return status


def main() -> None:
    """Command line of `python -m benchmarks.influence`."""

    def command(arguments: list[str]) -> None:
        raise SystemExit(run(tyro.cli(Influence, args=arguments, prog=COMMAND)))

    run_command(command)


if __name__ == "__main__":
    main()
