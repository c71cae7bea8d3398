"""Folders of data files that say by their names which split they hold."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import count
from pathlib import Path

_SPLIT_FILE = re.compile(
    r"(train|validation|valid|val|dev|test)"
    r"(?:[-_.](?P<part>[0-9]+)(?:-of-(?P<parts>[0-9]+))?(?:-[0-9a-f]+)?)?",
    re.IGNORECASE,
)
SPLIT_NAMES = {"valid": "validation", "val": "validation", "dev": "validation"}
"""Other names of splits."""


def split_files(
    folder: Path, suffixes: Iterable[str], subset: str | None = None
) -> dict[str, list[Path]]:
    """Find the files of each split, such as train.jsonl or test-00000-of-00002.parquet.

    Args:
        folder: the folder.
        suffixes: of the formats that can be read.
        subset: a folder inside which is looked at as well if there are no such files; `data` too.

    Returns:
        Files in order, by split.

    Raises:
        ValueError: if there are no such files, a split has files of several formats, or one of its
            numbered parts is missing.
    """
    for inside in (folder, *(folder / name for name in (subset, "data") if name is not None)):
        if found := _files(inside, suffixes):
            return found
    raise ValueError(
        f"{folder}: no data files that name their split, such as train.jsonl and test.jsonl or "
        f"train-00000-of-00001.parquet"
    )


def _files(folder: Path, suffixes: Iterable[str]) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    if not folder.is_dir():
        return found
    for path in sorted(folder.iterdir()):
        match = _SPLIT_FILE.fullmatch(path.stem)
        if match is not None and path.suffix.lower() in suffixes and path.is_file():
            name = match[1].lower()
            found.setdefault(SPLIT_NAMES.get(name, name), []).append(path)
    for split, files in found.items():
        _check_parts(folder, split, files)
    return found


def _check_parts(folder: Path, split: str, files: list[Path]) -> None:
    """One file, or all numbered parts of one set."""
    if len({path.suffix.lower() for path in files}) > 1:
        names = ", ".join(path.name for path in files)
        raise ValueError(f"{folder}: several formats for split {split!r}: {names}; name one file")
    matches = [_SPLIT_FILE.fullmatch(path.stem) for path in files]
    parts = [(m["part"], m["parts"]) for m in matches if m is not None]
    totals = {total for _, total in parts}
    if len(files) > 1 and (len(totals) > 1 or any(part is None for part, _ in parts)):
        names = ", ".join(path.name for path in files)
        raise ValueError(f"{folder}: files of split {split!r} that are no one set: {names}")
    there = {int(part) for part, _ in parts if part is not None}
    missing = next(number for number in count() if number not in there)
    for total in totals - {None}:
        if missing < int(total):
            raise ValueError(
                f"{folder}: part {missing} of the {int(total)} of split {split!r} is missing"
            )


def usual_names(parts: Iterable[str]) -> dict[str, str]:
    """Map a data set's names of splits to ours: valid, val and dev are validation."""
    return {name: SPLIT_NAMES.get(name.lower(), name.lower()) for name in parts}
