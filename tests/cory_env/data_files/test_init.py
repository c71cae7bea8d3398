"""Tests of cory_env/data_files/__init__.py and text.py: users' own query files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cory_env.data_files import SPLITS, load_queries, read_queries, split_of


def write(tmp_path: Path, name: str, content: str | bytes) -> Path:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def texts(path: Path) -> list[tuple[str, str | None]]:
    return [(query.text, query.answer) for query in read_queries(path)]


def test_a_text_file_has_one_query_a_line(tmp_path: Path) -> None:
    path = write(tmp_path, "q.txt", "\ufeffThe film\r\n\n a play \nThe film")
    assert texts(path) == [("The film", None), (" a play ", None), ("The film", None)]


def test_a_json_file_has_queries_answers_and_more(tmp_path: Path) -> None:
    lines = '{"query": "2 + 2", "answer": 4, "level": 1}\n\n{"query": "x", "answer": null}\n'
    path = write(tmp_path, "q.jsonl", lines)
    assert texts(path) == [("2 + 2", "4"), ("x", None)]
    assert read_queries(path)[0].metadata == {"line": 1, "level": 1}


def test_a_csv_file_may_quote_commas_and_new_lines(tmp_path: Path) -> None:
    path = write(tmp_path, "q.csv", 'answer,query\r\n4,"2, or ""two"""\n,"two\nlines"\n')
    assert texts(path) == [('2, or "two"', "4"), ("two\nlines", None)]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("q.txt", "", "q.txt: the data file has no queries"),
        ("q.txt", "\n \n", "q.txt: the data file has no queries"),
        ("q.txt", b"good\nb\xffad\n", "q.txt, line 2: not UTF-8 text"),
        ("q.jsonl", '{"query": "a"}\n{"query": "b"\n', "q.jsonl, line 2: broken JSON"),
        ("q.jsonl", '["a"]\n', "q.jsonl, line 1: expected a JSON object"),
        ("q.jsonl", '{"query": "a"}\n{"text": "b"}\n', "q.jsonl, line 2: no 'query', got keys"),
        ("q.jsonl", '{"query": 3}\n', "q.jsonl, line 1: 'query' must be text, got 3"),
        ("q.jsonl", '{"query": " "}\n', "q.jsonl, line 1: 'query' must be text"),
        ("q.jsonl", '{"query": "a", "answer": [1]}\n', "q.jsonl, line 1: 'answer' must be text"),
        ("q.csv", "text,answer\na,b\n", "q.csv, line 1: no column 'query', got columns"),
        ("q.csv", "query,answer\na,b\n,c\n", "q.csv, line 3: 'query' must be text"),
        ("q.csv", "query\na,b\n", "q.csv, line 2: more fields than columns"),
        ("q.csv", "query,answer,x\na,b,c\n\na,b\n", "q.csv, line 4: fewer fields than columns"),
        ("q.csv", "answer,query\n1\n", "q.csv, line 2: fewer fields than columns"),
        ("q.csv", 'query\nb\n"a\n', "line 4: broken CSV"),  # where the open field ends
        ("q.csv", "query,query\na,b\n", "line 1: column 'query' is there twice"),
        ("q.csv", "query;x\na;b\n", "columns are separated by commas"),
        ("q.csv", "query\n", "q.csv: the data file has no queries"),
        ("q.json", "[]", "must be a folder, or a file ending in .txt, .jsonl, .csv or .parquet"),
    ],
)
def test_what_is_wrong_is_said_with_file_and_line(
    tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    path = write(tmp_path, name, content)
    with pytest.raises(ValueError, match=re.escape(message)):
        load_queries(path, "train")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere\.txt: no such data file"):
        load_queries(tmp_path / "nowhere.txt", "train")


def test_a_split_that_got_nothing_is_said(tmp_path: Path) -> None:
    path = write(tmp_path, "q.txt", next(str(i) for i in range(99) if split_of(str(i)) == "train"))
    with pytest.raises(ValueError, match="none of its 1 queries falls into split 'test'"):
        load_queries(path, "test")


def test_an_unknown_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="split must be one of"):
        load_queries(write(tmp_path, "q.txt", "a"), "dev")


def test_splits_are_about_80_10_10_and_together_everything(tmp_path: Path) -> None:
    lines = [f"query {i}" for i in range(2000)]
    path = write(tmp_path, "q.txt", "\n".join(lines))
    parts = {split: [q.text for q in load_queries(path, split)] for split in SPLITS}
    assert sorted(text for part in parts.values() for text in part) == sorted(lines)
    # binomial: standard deviations are 18 and 13 queries; four of them
    assert abs(len(parts["train"]) - 1600) < 72
    assert abs(len(parts["validation"]) - 200) < 54


@given(st.text())
def test_every_text_has_a_split(text: str) -> None:
    assert split_of(text) in SPLITS


def test_splits_of_some_texts_for_ever() -> None:
    # written down once: sha256 of the text, first eight bytes, modulo 10; 0-7, 8, 9
    assert [split_of(text) for text in ("0", "11", "6")] == ["train", "validation", "test"]
