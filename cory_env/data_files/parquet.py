"""Reader of parquet tables, through pyarrow (extra `data`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cory_env.data_files.rows import Row, Rows, check_columns
from cory_env.extras import optional

BATCH = 1024


def parquet_rows(path: Path, names: Sequence[str]) -> Rows:
    """Yield the rows; columns that JSON could not hold are left out.

    Raises:
        ValueError: if the extra is missing, the file is no parquet table, or it has no column of
            queries.
    """
    parquet = optional("pyarrow.parquet", "data", f"{path}: a parquet file")
    with path.open("rb") as stream:
        try:
            table = parquet.ParquetFile(stream)
        except Exception as error:  # its own errors share no base but Exception
            raise ValueError(f"{path}: cannot be read as parquet ({_first_line(error)})") from error
        check_columns(str(path), table.schema_arrow.names, names)
        for number, values in enumerate(_values(path, table), start=1):
            yield Row(f"{path}, row {number}", plain(values), {"row": number})


def _values(path: Path, table: Any) -> Iterator[dict[str, Any]]:
    try:
        for batch in table.iter_batches(batch_size=BATCH):
            yield from batch.to_pylist()
    except Exception as error:
        raise ValueError(f"{path}: cannot be read as parquet ({_first_line(error)})") from error


def plain(values: dict[str, Any]) -> dict[str, Any]:
    """Keep the columns of texts, numbers and nothing."""
    return {k: v for k, v in values.items() if isinstance(v, str | int | float | None)}


def _first_line(error: Exception) -> str:
    return f"{str(error).strip() or type(error).__name__}\n".splitlines()[0]
