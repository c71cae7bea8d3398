"""Tests of cory_env/tasks/gsm8k.py."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cory_env.data_files import SPLITS
from cory_env.records import Query
from cory_env.rewards.exact_number import extract_number
from cory_env.tasks.gsm8k import WORKED_EXAMPLE, Gsm8kTask
from tests.cory_env.data_files.test_parquet import table
from tests.cory_env.tasks.small_data import problem_rows, write_jsonl

PUBLISHED = {
    "question": "A farm sells 1,200 eggs on Monday and 130 on Tuesday. How many in all? ",
    "answer": "On both days it sells 1200 + 130 = <<1200+130=1330>>1,330 eggs.\n#### 1,330",
}


def task_of(tmp_path: Path, *rows: dict[str, Any]) -> Gsm8kTask:
    return Gsm8kTask(data=write_jsonl(tmp_path / "gsm.jsonl", list(rows)))


def all_of(task: Gsm8kTask) -> list[Query]:
    return [query for queries in task._data_set.splits.values() for query in queries]


def test_a_published_line(tmp_path: Path) -> None:
    (query,) = all_of(task_of(tmp_path, PUBLISHED))
    assert query.text == PUBLISHED["question"].strip()
    assert query.answer == "1330"
    assert query.metadata == {
        "solution": "On both days it sells 1200 + 130 = 1,330 eggs.\n#### 1,330",
        "line": 1,
    }


def test_the_published_solution_scores_one_and_a_wrong_one_nothing(tmp_path: Path) -> None:
    task = task_of(tmp_path, PUBLISHED)
    queries = all_of(task) * 4
    responses = [
        str(PUBLISHED["answer"]),
        " It sells 1200 + 130 = 1330.0 eggs.",
        " It sells 1200 + 130 = 1340 eggs.",
        "",
    ]
    assert task.reward is not None
    assert list(task.reward(queries, responses)) == [1.0, 1.0, 0.0, 0.0]


def folder(tmp_path: Path) -> Path:
    write_jsonl(tmp_path / "train.jsonl", problem_rows(range(40)))
    write_jsonl(tmp_path / "test.jsonl", problem_rows(range(35, 50)))
    # The published folder has the other form of the problems as well.
    write_jsonl(tmp_path / "train_socratic.jsonl", [{"question": "x", "answer": "no number"}])
    return tmp_path


def parquet(tmp_path: Path) -> Path:
    """A copy of the hub's files: a folder for each configuration."""
    for part, numbers in (("train", range(40)), ("test", range(35, 50))):
        rows = problem_rows(numbers)
        columns = {name: [row[name] for row in rows] for name in ("question", "answer")}
        table(tmp_path / "main" / f"{part}-00000-of-00001.parquet", **columns)
        table(tmp_path / "socratic" / f"{part}-00000-of-00001.parquet", question=["x"])
    return tmp_path


@pytest.mark.parametrize("write", [folder, parquet])
def test_published_folders_keep_their_test_split(write: Any, tmp_path: Path) -> None:
    task = Gsm8kTask(data=write(tmp_path))
    texts = {split: [query.text for query in task.queries(split)] for split in SPLITS}
    assert texts["test"] == [row["question"] for row in problem_rows(range(35, 50))]
    kept = {row["question"] for row in problem_rows(range(35))}  # the others are in the test
    assert {*texts["train"], *texts["validation"]} == kept
    assert not set(texts["train"]) & set(texts["validation"])
    assert 1 <= len(texts["validation"]) <= 10


def test_one_file_of_any_format_is_split_by_the_hash(tmp_path: Path) -> None:
    rows = problem_rows(range(60))
    columns = {name: [row[name] for row in rows] for name in ("question", "answer")}
    counts = []
    for path in (
        write_jsonl(tmp_path / "gsm.jsonl", rows),
        table(tmp_path / "gsm.parquet", **columns),
    ):
        task = Gsm8kTask(data=path)
        counts.append([len(task.queries(split)) for split in SPLITS])
    assert counts[0] == counts[1]
    assert sum(counts[0]) == 60


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "q", "answer": "It is 7."}, "line 2: 'answer' must end in '#### ' and a num"),
        ({"question": "q", "answer": "#### none"}, "line 2: 'answer' must end in '#### ' and a"),
        ({"question": "q", "answer": "#### 3:45"}, "line 2: 'answer' must end in '#### ' and a"),
        ({"question": "q", "answer": 7}, "line 2: 'answer' must be text, got 7"),
        ({"question": "q"}, r"line 2: no 'answer', got keys \['question'\]"),
        ({"query": "q", "answer": "7"}, r"line 2: no 'question', got keys \['query', 'answer'\]"),
        ({"question": "", "answer": "#### 7"}, "line 2: 'question' must be text, got ''"),
    ],
)
def test_a_broken_line_is_named(row: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"gsm\.jsonl, {message}"):
        task_of(tmp_path, PUBLISHED, row).queries("train")


@pytest.mark.case(27)
def test_prompts_written_out() -> None:
    task, query = Gsm8kTask(), Query("How many?", "3")
    assert task.prompt("pioneer", query, ()) == WORKED_EXAMPLE + "\nQuestion: How many?\nAnswer:"
    assert task.prompt("observer", query, (" 1 + 2 = 3.\n\nSo 3.",)) == (
        WORKED_EXAMPLE + "\nQuestion: How many?\nReference: 1 + 2 = 3. So 3.\nAnswer:"
    )
    assert task.prompt("observer_2", query, (" 3", " 4")) == (
        WORKED_EXAMPLE + "\nQuestion: How many?\nReference: 3\nReference: 4\nAnswer:"
    )


def test_the_worked_example_is_right_and_in_the_form_of_the_prompt() -> None:
    question, answer = re.fullmatch(
        r"Question: (.*)\nAnswer: (.*)\n", WORKED_EXAMPLE, re.DOTALL
    ).groups()  # type: ignore[union-attr]
    assert "\n" not in question + answer
    for left, sign, right, result in re.findall(r"(\d+) ([*+-]) (\d+) = (\d+)", answer):
        a, b = int(left), int(right)
        assert {"*": a * b, "+": a + b, "-": a - b}[sign] == int(result)
    assert extract_number(answer) == 15
