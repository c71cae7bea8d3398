"""The Markdown pages of the repository and the fenced blocks in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
_FENCE = re.compile(r"^```(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the line of the page on which the text begins."""

    language: str
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(match[1], match[2], text[: match.start(2)].count("\n") + 1)
        for match in _FENCE.finditer(text)
    ]


def page_id(page: Path) -> str:
    """A short test id."""
    return str(page.relative_to(ROOT))


def table_rows(text: str, head: str) -> list[list[str]]:
    """The cells of the table whose first column has a heading, without its two first lines."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {head} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        # A bar inside a cell is written \|.
        cells = re.split(r"(?<!\\)\|", line)[1:-1]
        rows.append([cell.strip() for cell in cells])
    return rows
