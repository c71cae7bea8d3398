"""A row of a data set, of whatever format, and how a query is made of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from cory_env.records import Query


@dataclass(frozen=True)
class Row:
    """One row.

    Attributes:
        source: where it stands, for people: "my.csv, line 3".
        values: by column.
        place: the same for a query's metadata: {"line": 3}, {"row": 3}, {"file": "..."}.
        kind: what its names are called: "columns" or, in JSON, "keys".
    """

    source: str
    values: Mapping[str, Any]
    place: Mapping[str, Any]
    kind: str = "columns"

    def name_of(self, names: Sequence[str]) -> str:
        """Return the first of the names that the row has.

        Raises:
            ValueError: if it has none of them.
        """
        found = next((name for name in names if name in self.values), None)
        if found is None:
            wanted = " or ".join(map(repr, names))
            raise ValueError(f"{self.source}: no {wanted}, got {self.kind} {list(self.values)}")
        return found

    def text(self, *names: str) -> str:
        """Return the text under the first of the names that the row has.

        Raises:
            ValueError: if it has none of them, or what stands there is no text or a blank one.
        """
        name = self.name_of(names)
        value = self.values[name]
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"{self.source}: {name!r} must be text, got {value!r:.200}")
        self._check_characters(value)
        return value

    def answer(self, name: str) -> str | None:
        """Return a text or a number as text; None where the row has nothing under that name.

        An empty field means "no answer" too: a CSV file has the column for the other lines.

        Raises:
            ValueError: if it is something else.
        """
        value = self.values.get(name)
        allowed = str | int | float | Decimal | None
        if isinstance(value, bool) or not isinstance(value, allowed):
            raise ValueError(
                f"{self.source}: {name!r} must be text or a number, got {value!r:.200}"
            )
        self._check_characters(str(value))
        return None if value in (None, "") else str(value)

    def metadata(self, *used: str) -> dict[str, Any]:
        """Return what is under other names, and the place of the row."""
        others = {name: value for name, value in self.values.items() if name not in used}
        return {**others, **self.place}

    def _check_characters(self, text: str) -> None:
        # JSON can spell half a surrogate pair, which no file and no tokenizer can.
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise ValueError(f"{self.source}: half of a surrogate pair, which is no character")


Rows = Iterator[Row]
Reader = Callable[[Path, Sequence[str]], Rows]
"""(file, names that the column of queries may have, the usual one first) -> its rows."""


def check_columns(source: str, columns: Iterable[str], names: Sequence[str]) -> None:
    """Refuse a table without a column of queries before its rows are read.

    Raises:
        ValueError: if there is no column of any of the names.
    """
    if not set(names) & set(columns):
        wanted = " or ".join(map(repr, names))
        found = list(columns)
        semicolons = len(found) == 1 and ";" in found[0]
        way = "; columns are separated by commas" if semicolons else ""
        raise ValueError(
            f"{source}: no column {wanted}, got columns {found}{way} (task custom takes another "
            f"name: --task-args query_column=NAME)"
        )


def plain_query(row: Row) -> Query:
    """Make a query of the columns `query` and, where there is one, `answer`."""
    return Query(row.text("query"), row.answer("answer"), row.metadata("query", "answer"))
