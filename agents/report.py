"""Tables for the terminal."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from agents.train import TrainResult

COLUMNS = (
    ("score", "score", "{:.3f}"),
    ("hidden_score", "hidden score", "{:.3f}"),
    ("kl", "KL (nats)", "{:.2f}"),
    ("response_tokens", "tokens", "{:.1f}"),
    ("distinct_2", "distinct-2", "{:.3f}"),
    ("truncated", "cut", "{:.2f}"),
)


def evaluation_table(rows: Sequence[tuple[str, Mapping[str, Any]]], title: str) -> str:
    """A table of evaluations.

    Args:
        rows: label and values by the names of `Evaluation`.
        title: above the table.
    """
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("")
    # Parts of a weighted reward stand beside their sum.
    parts = dict.fromkeys(k for _, values in rows for k in values if k.startswith("score/"))
    shown = (COLUMNS[0], *((k, k.partition("/")[2], "{:.3f}") for k in parts), *COLUMNS[1:])
    for _, label, _ in shown:
        table.add_column(label, justify="right")
    for label, values in rows:
        cells = [
            "-" if values.get(name) is None else form.format(values[name])
            for name, _, form in shown
        ]
        table.add_row(label, *cells)
    return rendered(table)


def rendered(table: Table) -> str:
    """A table as text, wide enough for its content wherever it goes."""
    console = Console(file=io.StringIO(), width=120, force_terminal=False)
    console.print(table)
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue().rstrip()


def evaluation_of(row: Mapping[str, Any], agent: str, prefix: str = "eval") -> dict[str, Any]:
    """One agent's evaluation out of a row of metrics or of eval_initial.json."""
    start = f"{prefix}/{agent}/"
    return {k.removeprefix(start): v for k, v in row.items() if k.startswith(start)}


def run_rows(result: TrainResult) -> list[tuple[str, dict[str, Any]]]:
    """Before and after for each agent of a run, on held-out queries with the query-only prompt."""
    agents = [f"agent_{i}" for i in range(result.config.agents_in_game)]
    rows = []
    for agent in agents:
        rows.append((f"{agent} before", evaluation_of(result.initial, agent)))
        rows.append((f"{agent} after", evaluation_of(result.metrics[-1], agent)))
    return rows


def run_table(result: TrainResult) -> str:
    """The table that ends `cory-train`."""
    title = f"{result.config.method}: validation queries, query-only prompt"
    return f"{evaluation_table(run_rows(result), title)}\nRun: {result.out}"
