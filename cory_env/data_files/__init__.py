"""Users' own data: files, folders and data sets of a hub, read into queries by split.

One file is split by a hash of each query's text (80 / 10 / 10), so adding lines moves no other line
and the same text is never in two splits. Where splits were published they stay as they are; see
`cory_env.data_files.splits`. There is one reader a format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from cory_env.data_files.acl_imdb import acl_imdb_parts, is_acl_imdb
from cory_env.data_files.folders import split_files, usual_names
from cory_env.data_files.hub import hub_parts, is_hub_name
from cory_env.data_files.parquet import parquet_rows
from cory_env.data_files.rows import Reader, Row, Rows, plain_query
from cory_env.data_files.splits import (
    SPLITS,
    check_split,
    split_as_published,
    split_by_hash,
    split_of,
)
from cory_env.data_files.text import csv_rows, json_rows, text_rows
from cory_env.records import Query

__all__ = [
    "READERS",
    "SPLITS",
    "DataSet",
    "Row",
    "check_split",
    "is_hub_data",
    "load_data",
    "load_queries",
    "read_queries",
    "split_of",
]

READERS: dict[str, Reader] = {
    ".txt": text_rows,
    ".jsonl": json_rows,
    ".csv": csv_rows,
    ".parquet": parquet_rows,
}
"""Reader by the end of the file's name."""

ONE_FILE = ""
"""The name of the only part of a data set that has no published splits."""


@dataclass(frozen=True)
class DataSet:
    """Queries by split.

    Attributes:
        source: what errors begin with: the path or the name.
        splits: the queries of the splits that there are.
        published: the splits that came with the data; none where a hash decided.
    """

    source: str
    splits: Mapping[str, tuple[Query, ...]]
    published: tuple[str, ...]

    def queries(self, split: str) -> tuple[Query, ...]:
        """Return the queries of a split.

        Raises:
            ValueError: if the data has no such split, or no query falls into it.
        """
        check_split(split)
        if split not in self.splits:
            raise ValueError(
                f"{self.source}: there is no {split} split, only {', '.join(self.published)}; add "
                f"one, or give a single file, which is split 80/10/10 by a hash of the text"
            )
        if not self.splits[split]:
            total = sum(map(len, self.splits.values()))
            how = "80/10/10 by a hash of the text"
            if self.published:
                how = "validation is a tenth of train; what is in test or validation leaves train"
            raise ValueError(
                f"{self.source}: none of its {total} queries falls into split {split!r} "
                f"({how}); add more queries"
            )
        return self.splits[split]


def load_data(
    source: str | Path,
    names: Sequence[str],
    to_query: Callable[[Row], Query | None],
    *,
    usable: str = "usable",
    hub: bool = False,
    subset: str | None = None,
) -> DataSet:
    """Read a data set.

    Args:
        source: a file, a folder of files that name their split, an aclImdb folder, or (with hub)
            the name of a data set on the hub.
        names: that the column of queries may have, the usual one first.
        to_query: makes a query of a row; None leaves the row out.
        usable: what a row has to be to become a query, for the error when none is.
        hub: whether `owner/name` is looked up on the hub if there is no such path.
        subset: which configuration of a hub's data set, and which folder of a copy of it.

    Raises:
        ValueError: one sentence that names the file, and the line where there is one: if it is
            missing, empty, of another format, or broken.
    """
    parts = _parts(Path(source), names, hub, subset)
    queries = {
        split: [query for query in map(to_query, _some(source, split, rows)) if query is not None]
        for split, rows in parts.items()
    }
    if not any(queries.values()):
        raise ValueError(f"{source}: none of its rows is {usable}")
    if ONE_FILE in queries:
        return DataSet(str(source), split_by_hash(queries[ONE_FILE]), ())
    return DataSet(str(source), split_as_published(queries), tuple(queries))


def load_queries(path: str | Path, split: str) -> list[Query]:
    """Read the queries of one split from a file or folder with `query` (and `answer`) columns.

    Other columns or keys go to the query's metadata, and its line to `metadata["line"]`.

    Raises:
        ValueError: as `load_data`; or if no query falls into the split.
    """
    check_split(split)
    return list(load_data(path, ("query",), plain_query).queries(split))


def read_queries(path: str | Path) -> list[Query]:
    """Read all queries of a file, whatever their split.

    Raises:
        ValueError: as `load_data`.
    """
    rows = _file_rows(Path(path), ("query",))
    return [plain_query(row) for row in _some(path, ONE_FILE, rows)]


def _parts(source: Path, names: Sequence[str], hub: bool, subset: str | None) -> dict[str, Rows]:
    """Rows by split, or all of them as ONE_FILE."""
    if hub and is_hub_data(source):
        return _known_splits(source.as_posix(), hub_parts(source.as_posix(), subset, names))
    if not source.is_dir():
        return {ONE_FILE: _file_rows(source, names)}
    if is_acl_imdb(source):
        return acl_imdb_parts(source)
    files = split_files(source, READERS, subset)
    return {split: _folder_rows(found, names) for split, found in files.items()}


def is_hub_data(source: Path) -> bool:
    """Whether a source is the name of a data set on a hub: a path that exists wins."""
    looks_like_a_file = source.suffix.lower() in READERS
    return is_hub_name(source.as_posix()) and not looks_like_a_file and not source.exists()


def _known_splits(source: str, parts: dict[str, Rows]) -> dict[str, Rows]:
    named = usual_names(parts)
    known = {named[name]: rows for name, rows in parts.items() if named[name] in SPLITS}
    if not known:
        raise ValueError(f"{source}: none of its splits is train, validation or test: {[*parts]}")
    return known


def _file_rows(path: Path, names: Sequence[str]) -> Rows:
    if not path.is_file():
        raise ValueError(f"{path}: no such data file or folder")
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        *others, last = READERS
        raise ValueError(
            f"{path}: data must be a folder, or a file ending in {', '.join(others)} or {last}"
        )
    return reader(path, names)


def _folder_rows(files: Sequence[Path], names: Sequence[str]) -> Rows:
    for path in files:
        for row in _file_rows(path, names):
            yield Row(row.source, row.values, {"file": path.name, **row.place}, row.kind)


def _some(source: str | Path, split: str, rows: Rows) -> Iterator[Row]:
    """The rows; none at all is refused."""
    first = next(rows, None)
    if first is None:
        part = f" in split {split!r}" if split else ""
        raise ValueError(f"{source}: the data file has no queries{part}")
    yield from chain((first,), rows)
