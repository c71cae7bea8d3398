"""Tests of cory_env/tasks/custom.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cory_env.data_files import SPLITS
from cory_env.records import Query
from cory_env.rewards.vader import VaderReward
from cory_env.tasks.custom import CustomTask
from tests.cory_env.data_files.test_parquet import table

ROWS = [(f"What is {i} + 1?", str(i + 1), f"set {i % 2}") for i in range(80)]


def write(path: Path) -> Path:
    if path.suffix == ".txt":
        path.write_text("".join(f"{q}\n" for q, _, _ in ROWS))
    elif path.suffix == ".csv":
        path.write_text("question,solution,from\n" + "".join(f"{','.join(row)}\n" for row in ROWS))
    elif path.suffix == ".jsonl":
        path.write_text(
            "".join(f'{{"question": "{q}", "solution": {a}, "from": "{s}"}}\n' for q, a, s in ROWS)
        )
    else:
        question, solution, source = (list(column) for column in zip(*ROWS, strict=True))
        table(path, **{"question": question, "solution": solution, "from": source})
    return path


def all_of(task: CustomTask) -> list[Query]:
    return [query for split in SPLITS for query in task.queries(split)]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_columns_are_named_by_the_user(suffix: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"my{suffix}")
    task = CustomTask(data=path, query_column="question", answer_column="solution")
    found = sorted((q.text, q.answer, q.metadata["from"]) for q in all_of(task))
    assert found == sorted(ROWS)
    place = {"row" if suffix == ".parquet" else "line", "from"}
    assert {name for query in all_of(task) for name in query.metadata} == place


def test_a_text_file_has_queries_only(tmp_path: Path) -> None:
    task = CustomTask(data=write(tmp_path / "my.txt"), query_column="whatever")
    assert sorted((q.text, q.answer) for q in all_of(task)) == sorted((q, None) for q, _, _ in ROWS)


def test_without_a_name_the_columns_are_query_and_answer_where_there_is_one(tmp_path: Path) -> None:
    path = tmp_path / "my.csv"
    path.write_text("query,answer\n0,3\n1,\n")
    assert [q.answer for q in CustomTask(data=path).queries("train")] == ["3", None]
    path.write_text("query\n0\n1\n")
    assert [q.answer for q in CustomTask(data=path).queries("train")] == [None, None]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("question,answer\nq,1\n", r"line 2: no 'solution', got columns \['question', 'answer'\]"),
        ("question,solution\nq,1\nr,\n", "line 3: 'solution' is empty"),
        ("query,solution\nq,1\n", r"line 1: no column 'question', got columns"),
    ],
)
def test_columns_that_the_user_named_have_to_be_there(
    content: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "my.csv").write_text(content)
    task = CustomTask(data=tmp_path / "my.csv", query_column="question", answer_column="solution")
    with pytest.raises(ValueError, match=rf"my\.csv, {message}"):
        task.queries("train")


@pytest.mark.case(27)
def test_prompts_written_out() -> None:
    query, earlier = Query("2 + 2"), (" 4", " 5")
    task = CustomTask()
    assert task.prompt("pioneer", query, ()) == "2 + 2"
    assert task.prompt("observer", query, earlier[:1]) == "Reference:  4\n2 + 2"
    task = CustomTask(
        pioneer_template=r"Q: {query}\nA:",
        observer_template="Q: {query} Others: {references} A:",
    )
    assert task.prompt("pioneer", query, ()) == "Q: 2 + 2\nA:"
    assert task.prompt("observer", query, ()) == "Q: 2 + 2\nA:"
    assert task.prompt("observer_2", query, earlier) == "Q: 2 + 2 Others:  4\n 5 A:"


def test_what_a_query_or_a_response_spells_is_no_place() -> None:
    task = CustomTask(observer_template='{"q": "{query}", "r": "{references}"}')
    query = Query("{references}")
    assert task.prompt("observer", query, ("{query}",)) == '{"q": "{references}", "r": "{query}"}'


def test_braces_of_other_languages_stay_as_they_are() -> None:
    template = r'{query} {"n": 3} {x, y} \boxed{} \boxed{answer} \frac{a}{b}'
    task = CustomTask(pioneer_template=template)
    assert task.prompt("pioneer", Query("2 + 2"), ()) == f"2 + 2{template.removeprefix('{query}')}"


def test_a_template_may_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "ask.txt"
    path.write_text("Question, please: {query}\nAnswer:\n")
    task = CustomTask(pioneer_template=str(path))
    assert task.prompt("pioneer", Query("2 + 2"), ()) == "Question, please: 2 + 2\nAnswer:"
    assert task.prompt("observer", Query("2 + 2"), ("4",)) == (
        "Reference: 4\nQuestion, please: 2 + 2\nAnswer:"
    )


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        (
            {"pioneer_template": "Answer!"},
            r"must contain \{query\}, or name a file that does, got 'Answer!'$",
        ),
        ({"pioneer_template": "nowhere.txt"}, r"got 'nowhere.txt', and there is no such file"),
        ({"pioneer_template": "{query} {references}"}, "must not contain {references}"),
        ({"pioneer_template": 3}, "pioneer_template must be text, got 3"),
        ({"pioneer_template": "{query} {0}"}, r"no other words .* than \{query\}, got '\{0\}'"),
        ({"pioneer_template": "{query} {}"}, r"pioneer_template may have no .*, got '\{\}' in"),
        ({"pioneer_template": "{query} { query }"}, r"got '\{ query \}' in '\{query\} \{ query"),
        ({"pioneer_template": "{query} {query!r}"}, r"got '\{query!r\}'"),
        ({"pioneer_template": "{query} {Query}"}, r"got '\{Query\}'"),
        (
            {"observer_template": "{query} {references} {reference}"},
            r"observer_template may have .* \{query\} and \{references\}, got '\{reference\}'",
        ),
        ({"observer_template": "{query}"}, r"observer_template must contain \{references\}, or"),
        ({"observer_template": "x"}, r"must contain \{query\} and \{references\}, or"),
        ({"query_column": 3}, "query_column must be text, got 3"),
        ({"query_column": None}, "query_column must be text, got None"),
        ({"answer_column": ""}, "answer_column must be text, got ''"),
        ({"reward": "likes"}, "unknown reward 'likes'"),
    ],
)
def test_a_keyword_that_does_not_fit_is_said(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CustomTask(**keywords)


def test_a_template_file_that_is_no_text_is_said(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes(b"\xff{query}")
    with pytest.raises(ValueError, match=r"pioneer_template '.*t\.txt' cannot be read"):
        CustomTask(pioneer_template=str(path))


def test_a_second_scorer_is_only_reported() -> None:
    task = CustomTask(reward="exact_number", hidden_reward="vader")
    assert isinstance(task.hidden_reward, VaderReward)
    assert not isinstance(task.reward, VaderReward)
    assert CustomTask().hidden_reward is None
