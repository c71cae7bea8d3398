"""Readers of text files: `.txt` (a query a line), `.jsonl` and `.csv`."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from cory_env.data_files.rows import Row, Rows, check_columns


def text_rows(path: Path, names: Sequence[str]) -> Rows:
    """Yield the lines that are not blank, as the column of queries."""
    for number, line in _lines(path):
        if line.strip():
            yield _row(path, number, {names[0]: line})


def json_rows(path: Path, names: Sequence[str]) -> Rows:
    """Yield one object a line."""
    for number, line in _lines(path):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except (RecursionError, ValueError) as error:  # too deep, a number too long, or no JSON
            reason = error.msg if isinstance(error, json.JSONDecodeError) else error
            raise ValueError(f"{path}, line {number}: broken JSON ({reason})") from error
        if not isinstance(values, dict):
            raise ValueError(f"{path}, line {number}: expected a JSON object, got {line[:60]!r}")
        yield _row(path, number, values, kind="keys")


def csv_rows(path: Path, names: Sequence[str]) -> Rows:
    """Yield the rows below the header; a row's line is its last, fields may hold line breaks."""
    reader = csv.DictReader((f"{line}\n" for _, line in _lines(path)), strict=True)
    try:
        columns = reader.fieldnames
        if columns is not None:
            check_columns(f"{path}, line 1", columns, names)
            twice = [name for i, name in enumerate(columns) if name in columns[:i]]
            if twice:
                raise ValueError(f"{path}, line 1: column {twice[0]!r} is there twice")
        for values in reader:
            if None in values or None in values.values():
                more_or_fewer = "more" if None in values else "fewer"
                raise ValueError(
                    f"{path}, line {reader.line_num}: {more_or_fewer} fields than columns"
                )
            yield _row(path, reader.line_num, dict(values))
    except csv.Error as error:
        # The outer reader counts a row only when it was whole.
        line = reader.reader.line_num
        raise ValueError(f"{path}, line {line}: broken CSV ({error})") from error


def _row(path: Path, line: int, values: dict[str, object], kind: str = "columns") -> Row:
    return Row(f"{path}, line {line}", values, {"line": line}, kind)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    for number, raw in enumerate(path.read_bytes().split(b"\n"), start=1):
        try:
            yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}, line {number}: not UTF-8 text ({error.reason})") from error
