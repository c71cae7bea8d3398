"""Files that are whole or not there: written beside, then moved into place."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

TEMPORARY = re.compile(r"\.(?P<name>.+)\.[a-z0-9_]{8}\.(?P<kind>tmp|old)")
"""What lies beside a place while it is written: the new content, or the folder it replaces."""


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)  # mkstemp makes it private; results are for sharing
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically; NaN and infinity are refused, as JSON has none."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def write_folder(path: Path, fill: Callable[[Path], None]) -> None:
    """Fill a folder beside `path` and move it into place, replacing what was there.

    A process that is killed between the two moves of a replacement leaves the old folder aside;
    `mend_folder` puts it back.

    Args:
        path: the folder to be.
        fill: writes the files into the folder it is given.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{path.name}."
    fresh = Path(tempfile.mkdtemp(dir=path.parent, prefix=prefix, suffix=".tmp"))
    try:
        _filled(fill, fresh)
        for file in fresh.rglob("*"):
            if file.is_file():
                with file.open("rb") as opened:
                    os.fsync(opened.fileno())
        fresh.chmod(0o755)
        if path.exists():  # a folder that is not empty cannot be replaced in one step
            old = Path(tempfile.mkdtemp(dir=path.parent, prefix=prefix, suffix=".old"))
            path.replace(old / "was")
            try:
                fresh.replace(path)
            except BaseException:
                (old / "was").replace(path)
                old.rmdir()
                raise
            shutil.rmtree(old)
        else:
            fresh.replace(path)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    _sync_folder(path.parent)


def remove_folder(path: Path) -> None:
    """Remove a folder in one step: a killed process leaves it whole or not there."""
    aside = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp"))
    path.replace(aside / "was")
    shutil.rmtree(aside)


def _filled(fill: Callable[[Path], None], folder: Path) -> None:
    """Fill a folder; libraries written in Rust report a full disk by exceptions of their own."""
    try:
        fill(folder)
    except OSError:
        raise
    except Exception as error:
        found = re.search(r"\(os error (\d+)\)", str(error))
        if found is None:
            raise
        number = int(found[1])
        raise OSError(number, os.strerror(number), str(folder)) from error


def _sync_folder(path: Path) -> None:
    """Make the moves in a folder last through a power cut, where the system can."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:  # pragma: no cover  (systems that open no folders)
        return
    try:
        os.fsync(handle)
    except OSError:  # the move itself has happened; some file systems sync no folders
        pass
    finally:
        os.close(handle)


def mend_folder(folder: Path) -> None:
    """Remove what a killed process left half-written, and put back what it had moved aside.

    Only for a folder in which nobody writes at the moment.
    """
    if not folder.is_dir():
        return
    left = [(path, TEMPORARY.fullmatch(path.name)) for path in sorted(folder.iterdir())]
    for path, match in left:
        if match is None:
            continue
        was = path / "was"
        if match["kind"] == "old" and was.is_dir() and not (folder / match["name"]).exists():
            was.replace(folder / match["name"])
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def append_line(path: Path, value: Any) -> None:
    """Append one JSON object as a line."""
    line = json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n"
    with path.open("a", encoding="utf-8") as file:
        file.write(line)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read a file of one JSON object a line; a last line that was cut is left out."""
    if not path.is_file():
        return []
    rows = []
    # Bytes, since a cut may fall inside a character; and not splitlines, which also breaks at
    # U+2028 and its like, which model texts may hold.
    for line in path.read_bytes().split(b"\n"):
        if not line:
            continue
        try:
            rows.append(json.loads(line))
        except (RecursionError, ValueError):
            break  # a process that was killed while writing leaves half a line at the end
    return rows
