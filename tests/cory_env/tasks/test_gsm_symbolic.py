"""Tests of cory_env/tasks/gsm_symbolic.py, and of what its generator's own scorer gets wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from decimal import Decimal

import pytest
import reasoning_gym

from cory_env.data_files import SPLITS
from cory_env.records import Query
from cory_env.tasks.gsm8k import Gsm8kTask
from cory_env.tasks.gsm_symbolic import SEEDS, SIZES, GsmSymbolicTask, problems

TASK = GsmSymbolicTask()


@pytest.fixture
def _drawn_anew() -> Iterator[None]:
    problems.cache_clear()
    yield
    problems.cache_clear()


def test_splits_are_large_and_share_no_text() -> None:
    texts = [query.text for split in SPLITS for query in TASK.queries(split)]
    assert len(texts) == len(set(texts))
    for split in SPLITS:  # a few repeat each other
        assert 0.95 * SIZES[split] < len(TASK.queries(split)) <= SIZES[split]


@pytest.mark.usefixtures("_drawn_anew")
def test_another_drawing_gives_the_same() -> None:
    first = problems()
    problems.cache_clear()
    assert problems() == first
    assert len(set(SEEDS.values())) == len(SPLITS)


def test_every_solution_comes_to_its_answer() -> None:
    for split in SPLITS:
        for query in TASK.queries(split)[:400]:
            assert query.answer is not None
            assert f"#### {query.answer}" in query.metadata["solution"]
            assert Decimal(query.answer).is_finite()


def test_prompts_are_those_of_gsm8k() -> None:
    query = TASK.queries("train")[0]
    assert TASK.prompt("observer", query, (" 3",)) == Gsm8kTask().prompt("observer", query, (" 3",))


def scores(answer: str, *responses: str) -> list[float]:
    assert TASK.reward is not None
    return list(TASK.reward([Query("q", answer)] * len(responses), responses))


def theirs(answer: str, response: str) -> float:
    data = reasoning_gym.create_dataset("gsm_symbolic", size=1, seed=0)
    return float(data.score_answer(response, {**data[0], "answer": answer}))


def test_the_traps_of_the_generators_scorer_do_not_bite() -> None:
    # It reads the first number of a solution that is worked out step by step.
    steps = "She has 5 and gets 3, so 5 + 3 = 8."
    assert theirs("8", steps) < 0.5
    assert scores("8", steps) == [1.0]
    assert theirs("5", steps) == 1.0
    assert scores("5", steps) == [0.0]
    # It pays a little for any number.
    assert theirs("8", "4") > 0.0
    assert scores("8", "4", "no idea", "") == [0.0, 0.0, 0.0]
    # It sees no minus sign.
    assert theirs("-8", "The answer is -8.") < 0.5
    assert scores("-8", "The answer is -8.", "The answer is 8.") == [1.0, 0.0]
    assert scores("8", "The answer is -8.") == [0.0]


@pytest.mark.usefixtures("_drawn_anew")
def test_without_the_extra_the_sentence_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    message = r"task 'gsm_symbolic' needs the extra 'gsm-symbolic': pip install 'cory-env\[gsm-sym"
    with pytest.raises(ValueError, match=message):
        GsmSymbolicTask().queries("train")
