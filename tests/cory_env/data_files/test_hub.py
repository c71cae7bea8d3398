"""Tests of cory_env/data_files/hub.py: the library's own loader, on local folders.

Only the last two ask the hub: HF_HUB_OFFLINE=0 pytest -m hub.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from cory_env.data_files import is_hub_data, load_data
from cory_env.data_files.hub import hub_parts, is_hub_name
from cory_env.data_files.rows import plain_query
from cory_env.tasks import make_task
from tests.cory_env.data_files.test_parquet import table

asks_the_hub = pytest.mark.skipif(
    os.environ.get("HF_HUB_OFFLINE") != "0", reason="asks the hub; HF_HUB_OFFLINE=0 allows it"
)


@pytest.fixture
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("stanfordnlp/imdb", True),
        ("openai/gsm8k", True),
        ("a/b.c-d_e", True),
        ("imdb", False),
        ("./a/b", False),
        ("/a/b", False),
        ("a/b/c", False),
        ("a/", False),
        ("~/b", False),
        ("", False),
    ],
)
def test_what_looks_like_a_name_of_a_hub(text: str, expected: bool) -> None:
    assert is_hub_name(text) == expected


def test_a_path_wins_over_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_hub_data(Path("openai/gsm8k"))
    assert not is_hub_data(Path("openai/gsm8k.csv"))  # a file that is missing
    (tmp_path / "openai/gsm8k").mkdir(parents=True)
    assert not is_hub_data(Path("openai/gsm8k"))


@pytest.mark.usefixtures("_own_cache")
def test_the_library_loads_splits_and_columns(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    table(folder / "train-00000-of-00001.parquet", query=["a", "b"], answer=["1", None])
    table(folder / "test-00000-of-00001.parquet", query=["c"], answer=["3"])
    parts = {name: list(rows) for name, rows in hub_parts(str(folder), None, ("query",)).items()}
    assert {name: [row.values for row in rows] for name, rows in parts.items()} == {
        "train": [{"query": "a", "answer": "1"}, {"query": "b", "answer": None}],
        "test": [{"query": "c", "answer": "3"}],
    }
    assert parts["train"][1].source == f"{folder}, split train, row 2"
    assert parts["train"][1].place == {"split": "train", "row": 2}
    with pytest.raises(ValueError, match=r"split train: no column 'text', got columns \['query'"):
        list(hub_parts(str(folder), None, ("text",))["train"])


@pytest.mark.usefixtures("_own_cache")
def test_a_configuration_is_chosen_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    table(folder / "main" / "train-0.parquet", query=["a"])
    table(folder / "socratic" / "train-0.parquet", query=["b"])
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: main\n  data_files: main/*.parquet\n"
        "- config_name: socratic\n  data_files: socratic/*.parquet\n---\n"
    )
    rows = hub_parts(str(folder), "main", ("query",))
    assert [row.values["query"] for row in rows["train"]] == ["a"]


def loaded(monkeypatch: pytest.MonkeyPatch, found: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Replace the loader; the calls are kept."""
    import datasets

    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *args: calls.append(args) or found)
    return calls


def test_published_splits_of_a_hub_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    from datasets import Dataset

    found = {
        "train": Dataset.from_dict({"query": ["0", "6", "11"]}),
        "dev": Dataset.from_dict({"query": ["6"]}),
        "unsupervised": Dataset.from_dict({"query": ["z"]}),
    }
    calls = loaded(monkeypatch, found)
    data = load_data("some/set", ("query",), plain_query, hub=True, subset="main")
    assert calls == [("some/set", "main")]
    assert [query.text for query in data.queries("train")] == ["0", "11"]
    assert [query.text for query in data.queries("validation")] == ["6"]
    with pytest.raises(ValueError, match="some/set: there is no test split, only train, validat"):
        data.queries("test")


def test_a_data_set_without_known_splits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from datasets import Dataset

    loaded(monkeypatch, {"everything": Dataset.from_dict({"query": ["0"]})})
    with pytest.raises(ValueError, match=r"none of its splits is train, .* \['everything'\]"):
        load_data("some/set", ("query",), plain_query, hub=True)


@pytest.mark.usefixtures("_own_cache")
@pytest.mark.parametrize("task", ["imdb", "gsm8k", "custom"])
def test_offline_a_name_ends_in_one_sentence(task: str) -> None:
    made = make_task(task, data="nobody/no-such-data")
    with pytest.raises(ValueError, match=r"data 'nobody/no-such-data' is no file .* hub") as error:
        made.queries("train")
    assert "give the path of a local copy" in str(error.value)
    assert "\n" not in str(error.value)


def test_tasks_with_queries_of_their_own_look_up_nothing() -> None:
    with pytest.raises(ValueError, match="nobody/no-such-data: no such data file or folder"):
        make_task("reviews", data="nobody/no-such-data").queries("train")


def test_without_the_extra_the_sentence_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r"data 'a/b': a data set of the hub needs the extra 'da"):
        hub_parts("a/b", None, ("query",))


@pytest.mark.hub
@asks_the_hub
def test_imdb_of_the_hub() -> None:
    queries = make_task("imdb", data="stanfordnlp/imdb").queries("test")
    assert len(queries) > 10_000
    assert all(2 <= len(query.text.split()) <= 7 for query in queries)


@pytest.mark.hub
@asks_the_hub
def test_gsm8k_of_the_hub() -> None:
    task = make_task("gsm8k", data="openai/gsm8k")
    assert len(task.queries("test")) == 1319
    assert task.queries("test")[0].answer == "18"
