"""Runs of `cory-train` on users' own data and model folders, and what bad data gets."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agents.config import TrainConfig, from_mapping
from agents.evaluate import EvalCommand, evaluate
from agents.models.load import load_model
from agents.play import PlayCommand, play
from agents.session import _task_keywords, resolve_config
from agents.train import main
from tests.agents.runs import lines
from tests.cory_env.data_files.test_parquet import table
from tests.cory_env.tasks.small_data import problem_rows, review_rows, write_jsonl
from tests.cory_env.tasks.test_imdb import acl

FAST = [
    "--iterations", "2", "--batch-size", "4", "--eval-queries", "2", "--no-progress",
    "--no-tensorboard", "--update-epochs", "1", "--max-response-tokens", "6",
]  # fmt: skip
Train = Callable[..., Path]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's model: an ordinary folder."""
    folder = tmp_path_factory.mktemp("model") / "my-model"
    loaded = load_model("builtin:reviews", seed=0)
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Path:
        monkeypatch.setattr(sys, "argv", ["cory-train", *FAST, "--out", "run", *arguments])
        main()
        return tmp_path / "run"

    return run


def settings(run: Path) -> dict[str, object]:
    values: dict[str, object] = json.loads((run / "config.json").read_text())
    return values


def test_a_hub_name_stays_a_name_and_a_path_becomes_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolved(task: str, data: str) -> str:
        keywords = {"model": "builtin:reviews", "reward": "vader"}
        config, _ = resolve_config(TrainConfig(task=task, data=Path(data), **keywords))
        again = from_mapping(json.loads(json.dumps(config.to_json())))  # as a run stores it
        return str(TrainConfig(**again).data)

    monkeypatch.chdir(tmp_path)
    for task in ("imdb", "gsm8k", "custom"):
        assert resolved(task, "stanfordnlp/imdb") == "stanfordnlp/imdb"
    assert resolved("reviews", "stanfordnlp/imdb") == str(tmp_path / "stanfordnlp/imdb")
    assert resolved("custom", "my/file.csv") == str(tmp_path / "my/file.csv")
    (tmp_path / "stanfordnlp/imdb").mkdir(parents=True)  # a path that exists wins
    assert resolved("imdb", "stanfordnlp/imdb") == str(tmp_path / "stanfordnlp/imdb")


def test_templates_among_the_keywords_of_a_task_stay_text() -> None:
    keywords = _task_keywords(TrainConfig(task_args='n=3, a = Q: "{query}": , b={query},c=x: y'))
    assert keywords == {"n": 3, "a": 'Q: "{query}":', "b": "{query}", "c": {"x": "y"}}


def test_imdb_from_the_published_folder(train: Train, tmp_path: Path) -> None:
    acl(tmp_path / "aclImdb")
    run = train("--task", "imdb", "--data", "aclImdb", "--reward", "vader")
    assert len(lines(run / "metrics.jsonl")) == 2
    assert settings(run)["data"] == str(tmp_path / "aclImdb")
    assert settings(run)["model"] == "builtin:reviews"
    prompts = prompts_of(run)
    assert any(re.fullmatch(r"Review \d+( \S+){0,5}", prompt) for prompt in prompts)
    assert any(re.match(r'I can make this sentence "Review', prompt) for prompt in prompts)
    rows = evaluate(EvalCommand(run=run, queries=2))  # the published test split
    assert set(rows) >= {"agent_0", "agent_1"}


def prompts_of(run: Path) -> list[str]:
    rows = lines(run / "samples.jsonl")
    return [prompt for row in rows for prompt in row["prompts"].values()]


def test_gsm8k_from_jsonl_with_a_local_model(
    train: Train, tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_jsonl(tmp_path / "gsm.jsonl", problem_rows())
    run = train(
        *("--task", "gsm8k", "--data", str(data), "--model", str(model)),
        *("--max-prompt-tokens", "240"),
    )
    assert len(lines(run / "metrics.jsonl")) == 2
    assert play(PlayCommand(run=run, random=1)) == 1
    assert "Query: Tom has" in capsys.readouterr().out


def test_custom_from_a_csv_with_a_local_model(train: Train, tmp_path: Path, model: Path) -> None:
    rows = "".join(f"{i} + {i},{2 * i}\n" for i in range(60))
    (tmp_path / "my.csv").write_text("question,solution\n" + rows)
    keywords = (
        "query_column=question,answer_column=solution,"
        r"pioneer_template=Question: {query}\nAnswer:,"
        r"observer_template=Question: {query}\nHint: {references}\nAnswer:"
    )
    run = train(
        *("--task", "custom", "--data", "my.csv", "--task-args", keywords),
        *("--reward", "exact_number", "--model", str(model), "--max-prompt-tokens", "64"),
    )
    prompts = prompts_of(run)
    assert any(re.fullmatch(r"Question: \d+ \+ \d+\nAnswer:", prompt) for prompt in prompts)
    assert any("\nHint: " in prompt for prompt in prompts)
    rows_of = evaluate(
        EvalCommand(
            model=str(run / "final/agent_0"),
            task="custom",
            task_args="query_column=question,answer_column=solution",
            data=tmp_path / "my.csv",
            reward="exact_number",
            queries=2,
            max_prompt_tokens=64,
            max_response_tokens=6,
        )
    )
    assert set(rows_of) == {"agent_0"}


def test_a_template_that_was_changed_is_another_run(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "".join(f"{i} + {i},{2 * i}\n" for i in range(60))
    (tmp_path / "my.csv").write_text("query,answer\n" + rows)
    (tmp_path / "ask.txt").write_text("Say it, please: {query}")
    train(
        *("--task", "custom", "--data", "my.csv", "--task-args", "pioneer_template=ask.txt"),
        *("--reward", "exact_number", "--model", "builtin:reviews", "--max-prompt-tokens", "64"),
    )
    (tmp_path / "ask.txt").write_text("Tell me: {query}")
    with pytest.raises(SystemExit):
        train("--resume", "--iterations", "3")
    assert "its sha256 of the prompts" in capsys.readouterr().err


def write_nothing(path: Path) -> None:
    (path / "data").mkdir()


def write_reviews(path: Path) -> None:
    write_jsonl(path / "data" / "train.jsonl", review_rows())


def write_broken(path: Path) -> None:
    (path / "data").mkdir()
    (path / "data" / "train.jsonl").write_text('{"question": "a", "answer": "#### 1"}\n{"quest')


def write_long(path: Path) -> None:
    rows = problem_rows()
    rows[3] = {**rows[3], "question": "How " * 300 + "many?"}
    write_jsonl(path / "data" / "train.jsonl", rows)


def write_no_answers(path: Path) -> None:
    rows = "".join(f"{i} + {i},{2 * i or ''}\n" for i in range(60))
    (path / "my.csv").write_text("query,answer\n" + rows)


def write_another_table(path: Path) -> None:
    table(path / "my.parquet", prompt=["x"])


def write_model_only(path: Path) -> None:
    """No data."""


GSM = ["--task", "gsm8k", "--data", "data", "--max-prompt-tokens", "240"]
CUSTOM = ["--task", "custom", "--reward", "exact_number", "--max-prompt-tokens", "64", "--data"]
REFUSED: dict[str, tuple[Callable[[Path], None], list[str], str]] = {
    "missing": (write_model_only, GSM, "data: no such data file or folder"),
    "missing file": (write_model_only, [*CUSTOM, "my.csv"], r"my\.csv: no such data file"),
    "empty": (write_nothing, GSM, "data: no data files that name their split"),
    "another format": (write_reviews, GSM, r"train\.jsonl, line 1: no 'question', got keys"),
    "broken line": (write_broken, GSM, r"train\.jsonl, line 2: broken JSON"),
    "too long": (
        write_long,
        GSM,
        r"for query 'How How .*' \(train\.jsonl, line 4\) has \d+ tokens without any reference",
    ),
    "no answer": (
        write_no_answers,
        [*CUSTOM, "my.csv"],
        r"exact_number needs queries with a number as answer, got None for query '0 \+ 0' \(line 2",
    ),
    "another table": (
        write_another_table,
        [*CUSTOM, "my.parquet"],
        r"my\.parquet: no column 'query', got columns \['prompt'\]",
    ),
    "hub offline": (
        write_model_only,
        [*CUSTOM, "nobody/nothing"],
        "data 'nobody/nothing' is no file or folder here and cannot be loaded from the hub",
    ),
    "no data": (write_model_only, CUSTOM[:-1], "task 'custom' has no queries of its own: give da"),
    "no reward": (write_model_only, ["--task", "imdb"], "task 'imdb' has no reward of its own"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_bad_data_ends_with_one_sentence_before_the_run(
    what: str,
    train: Train,
    tmp_path: Path,
    model: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write, arguments, message = REFUSED[what]
    write(tmp_path)
    with pytest.raises(SystemExit) as stop:
        train(*arguments, "--model", str(model))
    assert stop.value.code == 1
    (shown,) = capsys.readouterr().err.strip().splitlines()
    assert shown.startswith("error: ")
    assert re.search(message, shown), shown
    assert not (tmp_path / "run").exists()


def test_a_task_without_a_model_of_its_own_asks_for_one(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        train("--task", "gsm8k", "--data", "x.jsonl")
    assert "task 'gsm8k' has no model of its own" in capsys.readouterr().err


def test_the_test_split_is_asked_for_and_there_is_none(
    train: Train, tmp_path: Path, model: Path
) -> None:
    write_jsonl(tmp_path / "data/train.jsonl", problem_rows())
    run = train(*GSM, "--model", str(model))  # training needs none
    with pytest.raises(ValueError, match=r"data: there is no test split, only train; add one"):
        evaluate(EvalCommand(run=run, queries=2))
