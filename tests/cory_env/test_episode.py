"""Tests of cory_env/episode.py: the rules of one episode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cory_env.episode import Episode
from cory_env.records import Query
from cory_env.rewards.base import RewardError
from cory_env.tasks.target import letter_tokenizer
from cory_env.tokens import as_tokenizer
from tests.cory_env.games import AD, END, HIDDEN_AD, TOKEN, action, ids, rules

ORDER = ("agent_0", "agent_1")
BEGIN = TOKEN["<s>"]


def episode(query: Query = AD, order: tuple[str, ...] = ORDER, **settings: Any) -> Episode:
    return Episode(rules(**settings), query, order)


def test_turns_follow_the_turn_order_and_roles_the_seats() -> None:
    game = episode(order=("agent_1", "agent_0"))
    assert game.roles == {"agent_0": "observer", "agent_1": "pioneer"}
    seen = []
    for _ in range(2):
        seen.append((game.seat, game.agent, game.role, game.over))
        game.submit(action("a"))
    assert seen == [(0, "agent_1", "pioneer", False), (1, "agent_0", "observer", False)]
    assert game.over
    assert (game.seat, game.agent, game.role) == (1, "agent_0", "observer")  # who acted last


def test_what_each_agent_sees_and_when() -> None:
    game = episode()
    bare = (BEGIN, *ids("a d |"))
    assert game.observe("agent_0") == game.observe("agent_1") == bare
    game.submit(action("b c"))
    assert game.observe("agent_0") == bare  # goes on seeing its prompt
    assert game.observe("agent_1") == (BEGIN, *ids("a d | b c |"))
    game.submit(action("a"))
    assert game.observe("agent_1") == (BEGIN, *ids("a d | b c |"))


def test_the_third_of_a_chain_reads_both_others() -> None:
    game = episode(order=("agent_2", "agent_0", "agent_1"), n_agents=3)
    game.submit(action("b"))
    game.submit(action("c </s>"))
    assert game.prompt().text == "a d | b | c |"
    assert game.role == "observer_2"


def test_without_knowledge_transfer_everybody_sees_the_query_only() -> None:
    game = episode(knowledge_transfer=False)
    game.submit(action("b c"))
    assert game.observe("agent_1") == (BEGIN, *ids("a d |"))


def test_an_observer_of_a_hidden_query_never_sees_its_letters() -> None:
    game = episode(HIDDEN_AD)
    assert game.observe("agent_1") == (BEGIN, *ids("? ? |"))
    game.submit(action("a d"))
    assert game.observe("agent_1") == (BEGIN, *ids("? ? | a d |"))
    assert [query.answer for query in game.scored_queries()] == ["a"]
    game.submit(action("d"))
    assert [query.answer for query in game.scored_queries()] == ["a", "d"]


@pytest.mark.parametrize(
    ("written", "kept", "text", "truncated"),
    [
        ("a d b", "a d b", "a d b", True),  # T tokens and no end: cut
        ("a d </s>", "a d </s>", "a d", False),
        ("a", "a", "a", False),  # ended by -1, not by the limit
        ("", "", "", False),
        ("</s>", "</s>", "", False),
        ("a </s> b", "a </s>", "a", False),
        ("<s> <pad> a", "<s> <pad> a", "a", True),  # special tokens leave no text
    ],
)
def test_a_response_and_whether_it_was_cut(
    written: str, kept: str, text: str, truncated: bool
) -> None:
    game = episode()
    game.submit(action(written))
    (turn,) = game.turns
    assert (turn.response_ids, turn.response) == (ids(kept), text)
    assert turn.truncated is truncated


def test_an_end_token_that_is_an_ordinary_word_is_not_in_the_text() -> None:
    tokenizer = as_tokenizer(letter_tokenizer(), end_ids=[TOKEN["f"]])
    game = episode(tokenizer=tokenizer)
    game.submit(action("a f b"))
    assert (game.turns[0].response, game.turns[0].response_ids) == ("a", ids("a f"))
    assert game.prompt().text == "a d | a |"


def test_token_level_turns_end_with_the_end_token_or_at_the_limit() -> None:
    game = episode(action_level="token")
    assert not game.touched
    game.submit(TOKEN["b"])
    assert game.touched
    assert (game.seat, game.partial_response) == (0, "b")
    assert game.observe("agent_0") == (BEGIN, *ids("a d | b"))
    game.submit(END)
    assert game.seat == 1
    assert game.observe("agent_0") == (BEGIN, *ids("a d | b </s>"))
    assert game.observe("agent_1") == (BEGIN, *ids("a d | b |"))
    for word in ("c", "d", "e"):
        game.submit(TOKEN[word])
    assert game.over
    assert [turn.truncated for turn in game.turns] == [False, True]


@given(st.lists(st.lists(st.integers(0, 11), min_size=3, max_size=3), min_size=2, max_size=2))
def test_both_levels_give_the_same_record(responses: list[list[int]]) -> None:
    whole, single = episode(), episode(action_level="token")
    for response in responses:
        whole.submit(response)
        for token in whole.turns[-1].response_ids:
            single.submit(token)
    for game in (whole, single):
        game.settle([0.5, 1.0])
    assert whole.record() == single.record()


def test_settling_writes_scores_and_payoffs_by_seat() -> None:
    game = episode(order=("agent_1", "agent_0"), reward_mixing=[[1, 2], [0, 1]])
    game.submit(action("a"))
    game.submit(action("b"))
    assert game.payoffs() == {"agent_0": 0.0, "agent_1": 0.0}
    assert not game.settled
    game.settle([1.0, 0.5])
    assert game.settled
    # the pioneer is agent_1: 1 + 2 * 0.5
    assert game.payoffs() == {"agent_0": 0.5, "agent_1": 2.0}
    assert [(turn.agent, turn.score, turn.payoff) for turn in game.record().turns] == [
        ("agent_1", 1.0, 2.0),
        ("agent_0", 0.5, 0.5),
    ]
    assert all(type(turn.payoff) is float for turn in game.turns)


def test_other_scores_in_the_mixing_replace_those_of_the_other_seats_only() -> None:
    game = episode(reward_mixing=[[1, 10], [100, 1]])
    game.submit(action("a"))
    game.submit(action("b"))
    game.settle([1.0, 2.0], others=[3.0, 4.0])
    # seat 0: own 1 + 10 * the other episode's 4; seat 1: own 2 + 100 * the other episode's 3
    assert [turn.payoff for turn in game.turns] == [41.0, 302.0]
    assert [turn.score for turn in game.turns] == [1.0, 2.0]


@pytest.mark.case(66)
def test_a_pioneers_info_is_there_from_the_first_moment() -> None:
    # case 66; and the keys are the same at every moment, with fixed types
    game = episode()
    first = game.info("agent_0")
    assert first == {
        "role": "pioneer",
        "query": "a d",
        "prompt": "a d |",
        "response": "",
        "score": 0.0,
        "truncated": False,
        "dropped_tokens": 0,
    }
    assert game.info("agent_1") == {**first, "role": "observer", "prompt": ""}


def test_infos_say_what_was_dropped_cut_and_scored() -> None:
    game = episode(max_prompt_tokens=6)
    game.submit(action("b c e"))
    assert game.info("agent_1")["dropped_tokens"] == 2
    assert game.info("agent_1")["prompt"] == "a d | e |"
    assert game.info("agent_0") | {"score": 0.5} == game.info("agent_0") | {
        "response": "b c e",
        "truncated": True,
        "score": 0.5,
    }
    game.submit(action("a"))
    game.settle([0.0, 1.0])
    assert game.info("agent_1")["score"] == 1.0
    assert game.turns[1].dropped_tokens == 2
    assert game.turns[1].prompt_tokens == 6


def test_a_placebo_lets_the_observer_read_something_else() -> None:
    game = episode()
    game.submit(action("b c"))
    game.replace_references(["e f"])
    assert game.prompt().text == "a d | e f |"
    game.submit(action("a"))
    assert game.responses() == ["b c", "a"]


def test_references_are_replaced_before_a_turn_is_seen_and_in_the_right_number() -> None:
    game = episode()
    game.submit(action("b"))
    with pytest.raises(ValueError, match="seat 1 reads 1 texts, got 2"):
        game.replace_references(["a", "b"])
    game.observe("agent_1")
    with pytest.raises(ValueError, match="before a turn is observed"):
        game.replace_references(["a"])


def test_an_illegal_action_changes_nothing() -> None:
    game = episode()
    with pytest.raises(ValueError, match="action must"):
        game.submit([99, 0, 0])
    assert not game.touched
    assert game.seat == 0


def test_what_can_not_be_done_is_refused() -> None:
    with pytest.raises(ValueError, match="turn_order must be a permutation"):
        episode(order=("agent_0",))
    with pytest.raises(ValueError, match="max_prompt_tokens=4"):
        episode(max_prompt_tokens=4)
    game = episode()
    with pytest.raises(ValueError, match="agent must be one of"):
        game.observe("agent_7")
    with pytest.raises(ValueError, match="not over"):
        game.settle([1.0, 1.0])
    game.submit(action(""))
    game.submit(action(""))
    with pytest.raises(ValueError, match="the episode is over"):
        game.submit(action(""))
    for scores in ([1.0], [1.0, 2.0, 3.0], np.zeros((2, 1))):
        with pytest.raises(ValueError, match="scores must be one for each of 2 seats"):
            game.settle(scores)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("matrix", "others", "message"),
    [
        ([[1e300, 1], [0, 1]], None, r"must be finite numbers, got \[inf, 1e\+90\]"),
        ([[1e300, -1e300], [0, 1]], None, r"must be finite numbers, got \[nan, 1e\+90\]"),
        ([[1, 0], [0, 1e20]], None, r"must be numbers up to 1e\+100, got \[1e\+90, 1e\+110\]"),
        ([[1, 1e300], [0, 1]], [1e90, 1e90], r"must be finite numbers, got \[inf, 1e\+90\]"),
    ],
)
def test_payoffs_too_large_to_be_averaged_are_named(
    matrix: list[list[float]], others: list[float] | None, message: str
) -> None:
    game = episode(reward_mixing=matrix)
    game.submit(action("a"))
    game.submit(action("b"))
    with pytest.raises(RewardError, match=message):
        game.settle([1e90, 1e90], others=others)
    assert not game.settled


def test_solo_is_over_after_one_turn() -> None:
    game = episode(order=("agent_0",), n_agents=1)
    game.submit(action("a"))
    game.settle([1.0])
    assert game.over
    assert game.payoffs() == {"agent_0": 1.0}
    assert game.roles == {"agent_0": "pioneer"}
