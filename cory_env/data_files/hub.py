"""Data sets of the Hugging Face hub, through the library `datasets` (extra `data`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from cory_env.data_files.parquet import plain
from cory_env.data_files.rows import Row, Rows, check_columns
from cory_env.extras import optional

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HELP = "give the path of a local copy, or check the name and the network"


def is_hub_name(text: str) -> bool:
    """Whether a text looks like `owner/name`; a path that exists wins over it."""
    return _HUB_NAME.fullmatch(text) is not None


def hub_parts(name: str, subset: str | None, names: Sequence[str]) -> dict[str, Rows]:
    """Load a data set; what was loaded before comes from the library's cache.

    Args:
        name: `owner/name` (or whatever else `datasets.load_dataset` opens).
        subset: which of its configurations, or None.
        names: that the column of queries may have.

    Returns:
        Rows by the name of the split.

    Raises:
        ValueError: if the extra is missing, or it cannot be loaded.
    """
    datasets = optional("datasets", "data", f"data {name!r}: a data set of the hub")
    try:
        loaded = datasets.load_dataset(name, subset)
    except Exception as error:  # the library, the hub and the network raise many kinds
        reason = " ".join(str(error).split())[:200]
        raise ValueError(
            f"data {name!r} is no file or folder here and cannot be loaded from the hub "
            f"({type(error).__name__}: {reason}); {_HELP}"
        ) from error
    return {str(part): _rows(name, str(part), table, names) for part, table in loaded.items()}


def _rows(name: str, part: str, table: Any, names: Sequence[str]) -> Rows:
    check_columns(f"{name}, split {part}", table.column_names, names)
    for number, values in enumerate(table, start=1):
        place = {"split": part, "row": number}
        yield Row(f"{name}, split {part}, row {number}", plain(values), place)
