"""The tables of learners and methods in `docs/learners/README.md`, made from the code.

`python -m tools.combinations` writes them; with `--check` it only says whether they are up to date.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agents.config import TrainConfig, resolved
from agents.learners import LEARNERS
from agents.learners.combinations import refusal
from agents.methods import METHODS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "learners" / "README.md"
BEGIN = "<!-- made by python -m tools.combinations: begin -->"
END = "<!-- end -->"

SETTINGS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("rloo", "cory", {"group_size": 1}),
    ("ppo", "solo", {"group_structure": "nested"}),
    ("rloo", "independent", {"group_structure": "nested"}),
    ("rloo", "placebo_sum", {"group_structure": "nested"}),
    ("happo", "cory", {"group_structure": "nested"}),
    ("mappo", "cory", {"kl_scope": "own"}),
    ("mappo", "cory", {"kl_estimator": "k3"}),
    ("happo", "cory_exact", {"cooperation": 0.5}),
    ("magrpo", "cory", {"magrpo_pairing": "cross"}),
)
"""Combinations that a setting makes ill-defined: learner, method, settings."""


def sentence(learner: str, method: str, **settings: Any) -> str | None:
    """Why a combination is refused; None: it is not."""
    traits = LEARNERS[learner].traits
    config = TrainConfig(algorithm=learner, method=method, **settings)
    return refusal(traits, resolved(config, {}, traits))


def tables() -> str:
    """The generated part of the page."""
    refused: dict[str, int] = {}
    lines = [
        f"| `--algorithm` | {' | '.join(f'`{m}`' for m in METHODS)} |",
        f"| --- |{' --- |' * len(METHODS)}",
    ]
    for learner in LEARNERS:
        cells = []
        for method in METHODS:
            why = sentence(learner, method)
            number = refused.setdefault(why, len(refused) + 1) if why is not None else None
            cells.append("yes" if number is None else f"no ({number})")
        lines.append(f"| `{learner}` | {' | '.join(cells)} |")
    lines += ["", "Why not:", ""]
    lines += [f"{number}. {why}." for why, number in refused.items()]
    lines += ["", "Settings that make a combination ill-defined:", ""]
    lines += [
        "| `--algorithm` | `--method` | setting | refused, since |",
        "| --- | --- | --- | --- |",
    ]
    for learner, method, settings in SETTINGS:
        why = sentence(learner, method, **settings)
        named = ", ".join(f"{name} {value}" for name, value in settings.items())
        lines.append(f"| `{learner}` | `{method}` | {named} | {why} |")
    return "\n".join(lines)


def page(text: str) -> str:
    """The page with fresh tables.

    Raises:
        ValueError: if the marks are not there.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE.name} must hold {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n\n{tables()}\n\n{END}{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the tables, or with --check compare them; 0 where all is well."""
    parser = argparse.ArgumentParser(prog="python -m tools.combinations", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail if out of date")
    options = parser.parse_args(arguments)
    old = PAGE.read_text(encoding="utf-8")
    new = page(old)
    if not options.check:
        PAGE.write_text(new, encoding="utf-8")
    elif new != old:
        print(
            "error: docs/learners/README.md is out of date: run python -m tools.combinations",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
