"""Tests of cory_env/tasks/base.py and __init__.py, and of every task in TASKS."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cory_env.data_files import SPLITS
from cory_env.records import Query
from cory_env.rewards import RewardError, checked_scores
from cory_env.rewards.target import FirstLetter
from cory_env.roles import role_names
from cory_env.rules import GameRules
from cory_env.tasks import TASKS, Task, make_task
from cory_env.tasks.target import TargetTask, letter_tokenizer
from cory_env.tokens import TextTokenizer
from tests.cory_env.tasks.small_data import settings as needed
from tests.cory_env.tasks.small_data import task_keywords

ALL = sorted(TASKS)
OWN_QUERIES = ("gsm_symbolic", "reviews", "sums", "target")
COMPLETIONS = ("imdb", "reviews", "sums", "target")
MODELS = {
    "imdb": "builtin:reviews",
    "reviews": "builtin:reviews",
    "sums": "builtin:sums",
    "target": "builtin:target",
}
REWARDS_OF = {
    "gsm8k": "exact_number",
    "gsm_symbolic": "exact_number",
    "reviews": "vader",
    "sums": "exact_number",
    "target": "target",
}


def made(name: str, **settings: Any) -> Task:
    """A task with small data where it has none of its own."""
    return make_task(name, **{**task_keywords(name), **settings})


class Shout(Task):
    """A task that a user might write."""

    name = "shout"
    default_model = "builtin:target"
    default_reward = "target"
    max_prompt_tokens = 8
    max_response_tokens = 2

    def queries(self, split: str) -> list[Query]:
        return self.user_queries(split)

    def prompt(self, role: str, query: Query, earlier_responses: Sequence[str]) -> str:
        return " ".join([query.text, *earlier_responses])

    def tokenizer(self) -> TextTokenizer:
        return letter_tokenizer()


@pytest.mark.parametrize("name", ALL)
def test_every_task_states_its_facts(name: str) -> None:
    task = make_task(name)
    assert isinstance(task, Task)
    assert task.name == name
    assert task.default_model == MODELS.get(name)
    assert task.default_reward == REWARDS_OF.get(name)
    assert task.completion == (name in COMPLETIONS)
    assert task.max_prompt_tokens > 0
    assert task.max_response_tokens > 0
    assert {"data", "reward"} <= set(inspect.signature(TASKS[name]).parameters)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("split", SPLITS)
def test_every_split_has_the_same_queries_each_time(name: str, split: str) -> None:
    queries = made(name).queries(split)
    assert len(queries) >= (100 if name in OWN_QUERIES else 4)
    assert list(made(name).queries(split)) == list(queries)
    assert all(isinstance(query, Query) and query.text.strip() for query in queries)


@pytest.mark.parametrize("name", sorted(set(ALL) - {"target"}))  # 36 pairs: see its docstring
def test_no_query_is_in_two_splits(name: str) -> None:
    task = made(name)
    parts = [{query.text for query in task.queries(split)} for split in SPLITS]
    assert sum(map(len, parts)) == len(set.union(*parts))


@pytest.mark.parametrize("name", ALL)
def test_an_unknown_split_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="split must be"):
        made(name).queries("dev")


@pytest.mark.parametrize("name", ALL)
def test_every_query_fits_in_every_seat_of_two(name: str) -> None:
    rules = GameRules.make(name, **needed(name))
    for split in SPLITS:
        longest = sorted(rules.task.queries(split), key=lambda query: len(query.text))[-100:]
        for query in longest:
            rules.check_query(query)


@pytest.mark.parametrize("name", ALL)
def test_the_observer_of_every_task_reads_the_pioneer_and_the_pioneer_nobody(name: str) -> None:
    task = made(name)
    query = task.queries("train")[0]
    pioneer, observer = role_names(2)
    bare = task.prompt(pioneer, query, ())
    assert query.text in bare
    assert task.prompt(observer, query, ()) == bare
    read = task.prompt(observer, query, (" a 7 b",))
    assert "a 7 b" in read
    assert query.text in read


@pytest.mark.parametrize("name", ALL)
def test_every_reward_scores_its_own_queries(name: str) -> None:
    task = made(name)
    queries = task.queries("train")[:3]
    for reward in filter(None, (task.reward, task.hidden_reward)):
        assert checked_scores(reward, queries, [" a", "", " 12"]).shape == (3,)


@pytest.mark.parametrize("name", [*OWN_QUERIES, "custom"])
def test_users_queries_and_reward_replace_the_tasks_own(name: str, tmp_path: Path) -> None:
    own = [query for split in SPLITS for query in made(name).queries(split)[:20]]
    path = tmp_path / "own.csv"
    rows = [f"{query.text},{query.answer or ''}" for query in own if "," not in query.text]
    path.write_text("\n".join(["query,answer", *rows]))
    task = make_task(name, data=path, reward=lambda queries, responses: [0.25] * len(responses))
    queries = task.queries("train")
    assert 0 < len(queries) < len(rows)
    assert {query.text for query in queries} <= {query.text for query in own}
    assert checked_scores(task.reward, queries[:1], ["x"]).tolist() == [0.25]


def test_a_task_comes_from_anywhere(tmp_path: Path) -> None:
    (tmp_path / "q.txt").write_text("\n".join(f"a b {i}" for i in range(20)))
    task = make_task(f"{__name__}:Shout", data=tmp_path / "q.txt")
    assert len(task.queries("train")) > 5
    assert isinstance(task.reward, FirstLetter)
    assert task.hidden_reward is None
    assert dict(task.training_defaults) == {}


def test_defaults_of_the_base_class() -> None:
    task = make_task(f"{__name__}:Shout")
    query = Query("a")
    assert task.scored_query("observer", query) is query
    assert task.query_from_text("hello") == Query("hello")
    with pytest.raises(ValueError, match="task 'shout' was made without data"):
        task.queries("train")


def test_a_task_refuses_a_reward_that_can_not_be_read() -> None:
    with pytest.raises(ValueError, match="unknown reward"):
        TargetTask(reward="nope")
    assert not issubclass(ValueError, RewardError)


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("nope", {}, "unknown task 'nope'; known are custom, gsm8k, gsm_symbolic, imdb, "),
        ("target", {"colour": 1}, "task 'target' takes kappa, data, reward, got colour"),
        ("builtins:dict", {}, "must be a subclass of Task, got dict"),
        ("target", {"data": "nowhere.txt"}, "nowhere.txt: no such data file"),
    ],
)
def test_what_is_no_task_is_said(name: str, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_task(name, **kwargs).queries("train")


# What a task has not, the user is asked for in one sentence.


@pytest.mark.parametrize("name", sorted(set(ALL) - set(OWN_QUERIES)))
def test_a_task_without_queries_asks_for_data(name: str) -> None:
    with pytest.raises(ValueError, match=rf"task '{name}' has no queries of its own: give data"):
        make_task(name).queries("train")


@pytest.mark.parametrize("name", sorted(set(ALL) - set(REWARDS_OF)))
def test_a_task_without_reward_asks_for_one(name: str) -> None:
    keywords = {key: value for key, value in needed(name).items() if key != "reward"}
    with pytest.raises(ValueError, match=rf"task '{name}' has no reward of its own: name one"):
        GameRules.make(name, **keywords)
    assert GameRules.make(name, **keywords, reward="vader").reward is not None


@pytest.mark.parametrize("name", sorted(set(ALL) - set(MODELS)))
def test_a_task_without_model_asks_for_one(name: str) -> None:
    task = make_task(name)
    with pytest.raises(ValueError, match=rf"task '{name}' has no model of its own: name one"):
        task.needed_model(None)
    assert task.needed_model("gpt2") == "gpt2"


@pytest.mark.parametrize("name", MODELS)
def test_the_users_model_comes_before_the_tasks_own(name: str) -> None:
    assert make_task(name).needed_model(None) == MODELS[name]
    assert make_task(name).needed_model("./mine") == "./mine"


@pytest.mark.parametrize("name", sorted(set(ALL) - set(MODELS)))
def test_a_task_without_tokenizer_asks_for_one(name: str) -> None:
    keywords = {key: value for key, value in needed(name).items() if key != "tokenizer"}
    message = rf"task '{name}' has no tokenizer of its own: give tokenizer="
    with pytest.raises(ValueError, match=message):
        GameRules.make(name, **keywords)


def test_a_query_that_does_not_fit_is_named_with_its_line() -> None:
    rules = GameRules.make("gsm8k", **needed("gsm8k"), max_prompt_tokens=230)
    query = rules.task.queries("train")[0]
    long = Query("How " * 400 + "many?", "1", {"file": "train.jsonl", "line": 7})
    rules.check_query(query)
    with pytest.raises(ValueError, match=r"for query 'How How .* \(train.jsonl, line 7\) has "):
        rules.check_query(long)
