"""Tests of cory_env/rules.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from tokenizers import Tokenizer, models

from cory_env.records import Query
from cory_env.rewards.target import FirstLetter
from cory_env.rules import GameRules
from cory_env.tasks.target import TargetTask
from tests.cory_env.games import AD


def test_none_means_the_tasks_own() -> None:
    rules = GameRules.make()
    assert rules.task.name == "target"
    assert (rules.max_prompt_tokens, rules.max_response_tokens) == (12, 3)
    assert rules.tokenizer is rules.task.tokenizer()
    assert rules.reward is rules.task.reward
    assert (rules.n_agents, rules.knowledge_transfer, rules.action_level) == (2, True, "response")
    assert rules.mixing(np.array([1.0, 0.5])).tolist() == [1.5, 1.5]


def test_what_is_given_is_used() -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "</s>": 1}))
    rules = GameRules.make(
        TargetTask(kappa=0.5),
        tokenizer=tokenizer,
        max_prompt_tokens=5,
        max_response_tokens=7,
        reward="2*target",
        n_agents=3,
    )
    assert rules.tokenizer.vocab_size == 2
    assert (rules.max_prompt_tokens, rules.max_response_tokens) == (5, 7)
    assert rules.reward != FirstLetter()
    assert rules.agents == ("agent_0", "agent_1", "agent_2")
    assert rules.roles == ("pioneer", "observer_1", "observer_2")


def test_spaces_at_response_level() -> None:
    rules = GameRules.make()
    assert rules.observation_space == spaces.Box(-1, 11, (12,), np.int64)
    assert rules.action_space == spaces.MultiDiscrete([13] * 3, start=[-1] * 3)
    assert rules.observation_width == 12


def test_spaces_at_token_level_have_room_for_the_response() -> None:
    rules = GameRules.make(action_level="token")
    assert rules.observation_space == spaces.Box(-1, 11, (15,), np.int64)
    assert rules.action_space == spaces.Discrete(12)
    assert rules.observation_width == 15


def test_spaces_are_the_same_objects_each_time() -> None:
    rules = GameRules.make()
    assert rules.observation_space is rules.observation_space
    assert rules.action_space is rules.action_space


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "nope"}, "unknown task 'nope'"),
        ({"task": TargetTask(), "data": "q.txt"}, "data can only be given with a task's name"),
        ({"action_level": "word"}, "action_level must be one of"),
        ({"n_agents": 0}, "n_agents must be"),
        ({"knowledge_transfer": 1}, "knowledge_transfer must be True or False, got 1"),
        ({"reward_mixing": "mean"}, "reward_mixing must be"),
        ({"reward_mixing": [[1.0]]}, "finite 2 x 2 matrix"),
        ({"max_response_tokens": 0}, "max_response_tokens must be a whole number of at least 1"),
        ({"max_prompt_tokens": 2.5}, "max_prompt_tokens must be a whole number"),
        ({"max_prompt_tokens": True}, "max_prompt_tokens must be a whole number"),
        ({"reward": "nope"}, "unknown reward 'nope'"),
        ({"tokenizer": 3}, "tokenizer must be"),
    ],
)
def test_each_setting_is_refused_by_its_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GameRules.make(**settings)


@pytest.mark.parametrize("action", [[6, 2, -1], (6, 2, 11), np.array([6, 2, 0], dtype=np.int32)])
def test_a_response_action_ends_with_its_end_token(action: Any) -> None:
    assert GameRules.make().parse_action(action) == (6, 2)


@pytest.mark.parametrize("action", [5, np.int64(5), np.int32(5), np.array(5)])
def test_a_token_action_is_one_token(action: Any) -> None:
    assert GameRules.make(action_level="token").parse_action(action) == (5,)


@pytest.mark.parametrize(
    "action",
    [
        [6, 2],
        [6, 2, 3, 4],
        [[6, 2, 3]],
        6,
        None,
        "abc",
        [6.0, 2.0, 3.0],
        [True, False, True],
        [12, 0, 0],
        [-2, 0, 0],
        [2, -1, 12],  # behind the end, but still no action
    ],
)
def test_other_response_actions_are_value_errors(action: Any) -> None:
    with pytest.raises(ValueError, match="action must"):
        GameRules.make().parse_action(action)


@pytest.mark.parametrize("action", [-1, 12, [5], np.array([5]), None, True, 5.0, "5"])
def test_other_token_actions_are_value_errors(action: Any) -> None:
    with pytest.raises(ValueError, match="action must"):
        GameRules.make(action_level="token").parse_action(action)


def test_a_query_must_fit_in_every_seat_before_anybody_writes() -> None:
    # `<s> a d |` has four tokens, with an empty reference five
    GameRules.make(max_prompt_tokens=5).check_query(AD)
    with pytest.raises(ValueError, match="max_prompt_tokens=4"):
        GameRules.make(max_prompt_tokens=4).check_query(AD)
    GameRules.make(max_prompt_tokens=4, n_agents=1).check_query(AD)
    GameRules.make(max_prompt_tokens=4, knowledge_transfer=False).check_query(AD)
    with pytest.raises(ValueError, match="query 'a b c' has 5 tokens"):
        GameRules.make(max_prompt_tokens=4, n_agents=1).check_query(Query("a b c"))
