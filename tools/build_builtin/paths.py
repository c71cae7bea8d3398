"""Where the scripts read and write: one place for every path."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "build_builtin"
"""Downloads and stages that need not be repeated; git ignores it."""

DATA = ROOT / "cory_env" / "data"
MODELS = ROOT / "agents" / "models" / "builtin"


def write_text(path: Path, text: str) -> None:
    """Write a text file so that a reader sees the old or the new content, never a part."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old or the new content, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes(content)
    temporary.replace(path)
