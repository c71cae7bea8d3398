"""Tests of cory_env/data_files/parquet.py."""

from __future__ import annotations

import datetime
import random
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from cory_env.data_files import load_queries, read_queries
from cory_env.data_files.parquet import BATCH, parquet_rows


def table(path: Path, **columns: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


def test_rows_have_texts_numbers_and_their_place(tmp_path: Path) -> None:
    path = table(
        tmp_path / "q.parquet",
        query=["one", "two"],
        answer=[1, None],
        level=[0.5, 1.5],
        when=[datetime.date(2024, 1, 2)] * 2,
    )
    first, second = read_queries(path)
    assert (first.text, first.answer) == ("one", "1")
    assert first.metadata == {"level": 0.5, "row": 1}  # JSON has no dates
    assert (second.text, second.answer) == ("two", None)


def test_rows_beyond_the_first_batch_are_counted_on(tmp_path: Path) -> None:
    path = table(tmp_path / "q.parquet", query=[f"q{i}" for i in range(BATCH + 2)])
    rows = list(parquet_rows(path, ("query",)))
    assert len(rows) == BATCH + 2
    assert rows[-1].source == f"{path}, row {BATCH + 2}"
    assert rows[-1].values == {"query": f"q{BATCH + 1}"}


def test_what_is_no_parquet_is_said(tmp_path: Path) -> None:
    path = tmp_path / "q.parquet"
    path.write_text("query\nx\n")
    with pytest.raises(ValueError, match=r"q\.parquet: cannot be read as parquet \(") as error:
        read_queries(path)
    assert "\n" not in str(error.value)


def test_a_damaged_file_is_said(tmp_path: Path) -> None:
    path = table(tmp_path / "q.parquet", query=[f"query {i}" * 50 for i in range(5000)])
    whole = bytearray(path.read_bytes())
    whole[200:5000] = b"\xff" * 4800  # the pages, not the footer
    path.write_bytes(whole)
    with pytest.raises(ValueError, match=r"q\.parquet: cannot be read as parquet \("):
        read_queries(path)


def error_of(path: Path) -> str | None:
    try:
        read_queries(path)
    except ValueError as error:
        return str(error)
    return None


def test_whatever_is_damaged_the_error_names_the_file(tmp_path: Path) -> None:
    path = table(tmp_path / "q.parquet", query=[f"q {i}" for i in range(50)], answer=["1"] * 50)
    good, rng, refused = path.read_bytes(), random.Random(0), 0
    for _ in range(200):
        broken = bytearray(good[: rng.choice((len(good), rng.randrange(len(good))))])
        for _ in range(rng.randrange(1, 5)):
            if broken:
                broken[rng.randrange(len(broken))] = rng.randrange(256)
        path.write_bytes(broken)
        said = error_of(path)
        assert said is None or said.startswith(str(path))
        refused += said is not None
    assert refused > 50


def test_another_table_is_said(tmp_path: Path) -> None:
    path = table(tmp_path / "q.parquet", prompt=["x"], label=[1])
    with pytest.raises(ValueError, match=r"no column 'query', got columns \['prompt', 'label'\]"):
        read_queries(path)


@pytest.mark.parametrize("value", [3, None, " ", ["a"]])
def test_a_row_without_text_is_named(tmp_path: Path, value: Any) -> None:
    kind = pyarrow.array([value])
    path = table(tmp_path / "q.parquet", query=kind)
    with pytest.raises(ValueError, match=r"q\.parquet, row 1: "):
        read_queries(path)


def test_a_table_without_rows_is_empty(tmp_path: Path) -> None:
    path = table(tmp_path / "q.parquet", query=pyarrow.array([], pyarrow.string()))
    with pytest.raises(ValueError, match=r"q\.parquet: the data file has no queries"):
        load_queries(path, "train")


def test_without_the_extra_the_sentence_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = table(tmp_path / "q.parquet", query=["x"])
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    message = r"q\.parquet: a parquet file needs the extra 'data': pip install 'cory-env\[data\]'"
    with pytest.raises(ValueError, match=message):
        read_queries(path)
