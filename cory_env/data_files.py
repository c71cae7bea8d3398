"""Users' own query files.

`.txt` has one query a line; `.jsonl` and `.csv` have `query`, and `answer` where there is one. A
query's split depends on its text alone (80 / 10 / 10 by a hash), so adding lines moves no other
line and the same text is never in two splits.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cory_env.records import Query

SPLITS = ("train", "validation", "test")
_Rows = Iterator[tuple[int, dict[str, Any]]]


def check_split(split: str) -> str:
    """Return the split if there is one of that name.

    Raises:
        ValueError: otherwise.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {list(SPLITS)}, got {split!r}")
    return split


def split_of(text: str) -> str:
    """Return the split that a query text belongs to."""
    bucket = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % 10
    return "train" if bucket < 8 else SPLITS[bucket - 7]


def load_queries(path: str | Path, split: str) -> list[Query]:
    """Read a query file and return the queries of one split, in the order of the file.

    Other columns or keys go to the query's metadata, and its line to `metadata["line"]`.

    Raises:
        ValueError: if the file is missing, empty or of another kind, a line is broken or lacks its
            query (the message names file and line), or no query falls into the split.
    """
    check_split(split)
    path = Path(path)
    queries = read_queries(path)
    chosen = [query for query in queries if split_of(query.text) == split]
    if not chosen:
        raise ValueError(
            f"{path}: none of its {len(queries)} queries falls into split {split!r} "
            "(80/10/10 by a hash of the text); add more queries"
        )
    return chosen


def read_queries(path: str | Path) -> list[Query]:
    """Read all queries of a file, whatever their split.

    Raises:
        ValueError: as `load_queries`.
    """
    path = Path(path)
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise ValueError(f"{path}: data must be a file ending in .txt, .jsonl or .csv")
    if not path.is_file():
        raise ValueError(f"{path}: no such data file")
    queries = [_query(path, line, row) for line, row in reader(path)]
    if not queries:
        raise ValueError(f"{path}: the data file has no queries")
    return queries


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    for number, raw in enumerate(path.read_bytes().split(b"\n"), start=1):
        try:
            yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}, line {number}: not UTF-8 text ({error.reason})") from error


def _text_rows(path: Path) -> _Rows:
    for number, line in _lines(path):
        if line.strip():
            yield number, {"query": line}


def _json_rows(path: Path) -> _Rows:
    for number, line in _lines(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (RecursionError, ValueError) as error:  # too deep, a number too long, or no JSON
            reason = error.msg if isinstance(error, json.JSONDecodeError) else error
            raise ValueError(f"{path}, line {number}: broken JSON ({reason})") from error
        if not isinstance(row, dict):
            raise ValueError(f"{path}, line {number}: expected a JSON object, got {line[:60]!r}")
        yield number, row


def _csv_rows(path: Path) -> _Rows:
    reader = csv.DictReader((f"{line}\n" for _, line in _lines(path)), strict=True)
    try:
        columns = reader.fieldnames
        if columns is not None and "query" not in columns:
            raise ValueError(f"{path}, line 1: no column 'query', got columns {list(columns)}")
        for row in reader:
            if None in row:
                raise ValueError(f"{path}, line {reader.line_num}: more fields than columns")
            yield reader.line_num, dict(row)
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: broken CSV ({error})") from error


READERS: dict[str, Callable[[Path], _Rows]] = {
    ".txt": _text_rows,
    ".jsonl": _json_rows,
    ".csv": _csv_rows,
}


def _has_half_character(text: str) -> bool:
    """Whether a text holds half a surrogate pair: JSON can spell it, no file and tokenizer can."""
    return any("\ud800" <= character <= "\udfff" for character in text)


def _query(path: Path, line: int, row: dict[str, Any]) -> Query:
    if "query" not in row:
        raise ValueError(f"{path}, line {line}: no 'query', got keys {list(row)}")
    text, answer = row["query"], row.get("answer")
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{path}, line {line}: 'query' must be text, got {text!r}")
    if isinstance(answer, bool) or not isinstance(answer, str | int | float | None):
        raise ValueError(f"{path}, line {line}: 'answer' must be text or a number, got {answer!r}")
    if _has_half_character(text) or _has_half_character(str(answer)):
        raise ValueError(f"{path}, line {line}: half of a surrogate pair, which is no character")
    known = {"query", "answer"}
    metadata = {"line": line, **{key: value for key, value in row.items() if key not in known}}
    # An empty CSV field means "no answer": the column is there for the other lines.
    return Query(text, None if answer in (None, "") else str(answer), metadata)
