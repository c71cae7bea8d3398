"""What benchmarks write into the documentation: intervals over seeds, and tables between marks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agents.files import write_text

DOCS = Path(__file__).resolve().parent.parent / "docs"
END = "<!-- end -->"
T_975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""The 97.5 % point of Student's t with 1, 2, ... degrees of freedom; beyond, the last is wider."""


@dataclass(frozen=True)
class Interval:
    """The mean over seeds and half of its 95 % t-interval."""

    mean: float
    half: float
    """Infinite for one value, from which nothing can be said about the spread."""
    n: int

    def __str__(self) -> str:
        spread = "?" if math.isinf(self.half) else f"{self.half:.2f}"
        return f"{round(self.mean, 2) + 0.0:.2f} ± {spread}"  # no -0.00


def interval(values: Sequence[float]) -> Interval:
    """The mean of independent values with its 95 % interval: mean ± t s / sqrt(n).

    Args:
        values: one for each seed.

    Raises:
        ValueError: if there are none.
    """
    n = len(values)
    if n == 0:
        raise ValueError("values must hold at least one number, got none")
    mean = statistics.fmean(values)
    if n == 1:
        return Interval(mean, math.inf, 1)
    t = T_975[min(n - 1, len(T_975)) - 1]
    return Interval(mean, t * statistics.stdev(values) / math.sqrt(n), n)


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; every row must be as long as the head."""
    lines = [head, ["---"] * len(head), *rows]
    if odd := [row for row in lines if len(row) != len(head)]:
        raise ValueError(f"rows must have {len(head)} cells, got {len(odd[0])}")
    return "\n".join(f"| {' | '.join(row)} |" for row in lines)


def begin_mark(command: str) -> str:
    """The line above what a command writes."""
    return f"<!-- made by {command}: begin -->"


def between_marks(text: str, command: str, body: str) -> str:
    """A page with what a command writes in place of what it wrote before.

    Args:
        text: of the page.
        command: that makes the part.
        body: the new part.

    Raises:
        ValueError: if the marks are not there, each once and in order.
    """
    mark = begin_mark(command)
    before, begin, rest = text.partition(mark)
    _, end, after = rest.partition(END)
    if not begin or not end or mark in after or mark in rest.partition(END)[0]:
        raise ValueError(f"the page must hold {mark!r} once, and {END!r} behind it")
    return f"{before}{mark}\n\n{body.strip()}\n\n{END}{after}"


def check_parts(pages: Sequence[Path], command: str) -> None:
    """Refuse pages that a command could not write to, before it works for hours.

    Raises:
        ValueError: if a page or its marks are not there.
    """
    for page in pages:
        _written(page, command, "")


def write_part(page: Path, command: str, body: str) -> None:
    """Put what a command makes between its marks on a page.

    Raises:
        ValueError: if the page or the marks are not there.
    """
    text, new = _written(page, command, body)
    if new != text:
        write_text(page, new)


def _written(page: Path, command: str, body: str) -> tuple[str, str]:
    """A page before and after."""
    try:
        text = page.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"page {page} cannot be read: {error.strerror}") from error
    try:
        return text, between_marks(text, command, body)
    except ValueError as error:
        raise ValueError(f"{page}: {error}") from error
