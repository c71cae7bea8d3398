"""Tests of cory_env/tasks/target.py."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cory_env.env import CoryEnv
from cory_env.episode import Episode
from cory_env.records import Query
from cory_env.tasks.target import LETTERS, VOCABULARY, TargetTask
from tests.cory_env.games import AD, HIDDEN_AD, action, ids, rules


def final_scores(query: Query, first: str, second: str, **settings: Any) -> list[float | None]:
    episode = Episode(rules(**settings), query, ("agent_0", "agent_1"))
    episode.submit(action(first))
    episode.submit(action(second))
    queries = episode.scored_queries()
    episode.settle(np.asarray(episode.rules.reward(queries, episode.responses())))
    return [turn.score for turn in episode.turns]


def test_the_vocabulary_is_twelve_words_with_fixed_special_tokens() -> None:
    tokenizer = TargetTask().tokenizer()
    assert (tokenizer.vocab_size, tokenizer.end_ids) == (12, (2,))
    assert VOCABULARY[:3] == ("<pad>", "<s>", "</s>")
    assert tokenizer.encode_prompt("a d |") == [1, *ids("a d |")]
    assert tokenizer.decode([0, 1, 3, *ids("a | ?"), 2]) == "a | ?"


@pytest.mark.parametrize(("split", "copies"), [("train", 10), ("validation", 3), ("test", 3)])
def test_each_pair_of_letters_comes_equally_often(split: str, copies: int) -> None:
    queries = TargetTask().queries(split)
    texts = [query.text for query in queries]
    assert sorted(texts) == sorted([f"{a} {b}" for a, b in product(LETTERS, LETTERS)] * copies)
    assert all(query.answer == query.text[0] for query in queries)
    assert sorted(query.metadata["index"] for query in queries) == list(range(len(queries)))


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_the_first_queries_of_a_split_are_a_fair_sample(split: str) -> None:
    # hypergeometric for half of the validation split: mean 0.5, standard deviation at most 0.07
    queries = TargetTask(kappa=0.5).queries(split)
    sample = queries[: len(queries) // 2]
    assert abs(np.mean([query.metadata["hidden"] for query in sample]) - 0.5) < 0.15
    assert len({query.text for query in sample}) > 20


@pytest.mark.case(27)
def test_prompts_written_out() -> None:
    task = TargetTask()
    assert task.prompt("pioneer", AD, ()) == "a d |"
    assert task.prompt("observer", AD, ()) == "a d |"
    assert task.prompt("observer", AD, ("b c",)) == "a d | b c |"
    assert task.prompt("observer_2", AD, ("b", "", "c d a")) == "a d | b | | c d a |"
    assert task.prompt("pioneer", HIDDEN_AD, ()) == "a d |"
    assert task.prompt("observer", HIDDEN_AD, ()) == "? ? |"
    assert task.prompt("observer", HIDDEN_AD, ("a d",)) == "? ? | a d |"


@pytest.mark.parametrize(
    ("query", "first", "second", "scores"),
    [
        (AD, "a", "a", [1.0, 1.0]),
        (AD, "a d", "d", [1.0, 0.0]),
        (AD, "d", "a </s>", [0.0, 1.0]),
        (AD, "", "", [0.0, 0.0]),
        # hidden: the pioneer is judged by the first letter, the observer by the second
        (HIDDEN_AD, "a d", "d", [1.0, 1.0]),
        (HIDDEN_AD, "d", "a", [0.0, 0.0]),
    ],
)
def test_scores_in_both_seats_known_answers(
    query: Query, first: str, second: str, scores: list[float]
) -> None:
    assert final_scores(query, first, second) == scores


def test_the_goal_does_not_depend_on_the_agent_but_on_the_role() -> None:
    task = TargetTask()
    assert task.scored_query("pioneer", HIDDEN_AD).answer == "a"
    for role in ("observer", "observer_1", "observer_2"):
        assert task.scored_query(role, HIDDEN_AD).answer == "d"
        assert task.scored_query(role, AD).answer == "a"


def test_the_channel_carries_the_second_letter_for_every_pair() -> None:
    # the optimum is 1.0 in both seats for every kappa: say your own letter, then the other's
    for query in TargetTask(kappa=1.0).queries("validation"):
        prompt = TargetTask().prompt("observer", query, (query.text,))
        assert final_scores(query, query.text, prompt.split()[-2]) == [1.0, 1.0]


@pytest.mark.parametrize("split", ["train", "validation", "test"])
@pytest.mark.parametrize("kappa", [0.0, 0.25, 0.5, 1.0])
def test_kappa_is_the_share_of_hidden_queries(split: str, kappa: float) -> None:
    queries = TargetTask(kappa=kappa).queries(split)
    assert sum(query.metadata["hidden"] for query in queries) == kappa * len(queries)
    assert queries == TargetTask(kappa=kappa).queries(split)


def test_a_larger_kappa_hides_more_and_uncovers_nothing() -> None:
    few, many = (TargetTask(kappa=kappa).queries("train") for kappa in (0.2, 0.7))
    assert all(b.metadata["hidden"] for a, b in zip(few, many, strict=True) if a.metadata["hidden"])


@pytest.mark.parametrize("kappa", [-0.1, 1.1, float("nan")])
def test_other_shares_are_refused(kappa: float) -> None:
    with pytest.raises(ValueError, match=r"kappa must be in \[0, 1\]"):
        TargetTask(kappa=kappa)


def test_a_random_policy_starts_far_below_the_optimum() -> None:
    # 7/64 = 0.109 without -1 in the action; three standard errors of 1500 draws are 0.024
    env = CoryEnv(reward_mixing="own")
    rng = np.random.default_rng(0)
    scores = []
    for _ in range(1500):
        env.reset(seed=None)
        for _ in env.possible_agents:
            env.step(rng.integers(0, 12, size=3))
        scores += [turn.score or 0.0 for turn in env.episode.turns]
    assert np.mean(scores) == pytest.approx(7 / 64, abs=0.024)


def test_typed_queries_get_their_answer_and_others_are_refused() -> None:
    assert TargetTask().query_from_text(" c  f ") == Query("c f", "c", {"hidden": False})
    for text in ("a", "a b c", "a z", ""):
        with pytest.raises(ValueError, match=r"two letters of a\.\.f"):
            TargetTask().query_from_text(text)


def test_users_own_pairs(tmp_path: Path) -> None:
    path = tmp_path / "own.txt"
    path.write_text("\n".join(f"{a} {b}" for a, b in product("abc", "def")))
    queries = TargetTask(data=path, kappa=1.0).queries("train")
    assert {query.answer for query in queries} <= set("abc")
    assert all(query.metadata["hidden"] for query in queries)
