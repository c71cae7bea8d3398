"""Tests of cory_env/env.py: what PettingZoo asks for, on every task at both action levels.

Of PettingZoo's own tests `max_cycles_test` and `state_test` do not apply (they need an environment
with `max_cycles`, or with a parallel form and a global state), nor do those for images.
"""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pettingzoo
import pytest
from gymnasium import spaces
from pettingzoo.test import (
    api_test,
    parallel_api_test,
    render_test,
    seed_test,
)
from pettingzoo.utils.conversions import aec_to_parallel, turn_based_aec_to_parallel

from cory_env import cory_v0
from cory_env.env import CoryEnv, env
from cory_env.records import Query
from cory_env.registration import environment_id
from cory_env.rewards import RewardError
from cory_env.tasks import TASKS
from cory_env.tasks.custom import CustomTask
from cory_env.tasks.target import letter_tokenizer
from tests.cory_env.games import AD, HIDDEN_AD, TOKEN, action, observed, play
from tests.cory_env.tasks import small_data

A0, A1 = "agent_0", "agent_1"
LEVELS = ("response", "token")
every_game = pytest.mark.parametrize("action_level", LEVELS)
every_task = pytest.mark.parametrize("task", sorted(TASKS))


def maker(task: str, **settings: Any) -> Callable[..., Any]:
    """What PettingZoo's tests take: a constructor through the registry."""
    needed = {**small_data.settings(task), **settings}
    return lambda **more: pettingzoo.make("aec", environment_id(task), **needed, **more)


def started(**settings: Any) -> CoryEnv:
    made = cory_v0.raw_env(**settings)
    made.reset(seed=0, options={"query": AD})
    return made


# PettingZoo's own tests


@pytest.mark.case(60)
@every_task
@every_game
@pytest.mark.parametrize("n_agents", [1, 2, 3])
def test_pettingzoo_api(task: str, action_level: str, n_agents: int) -> None:
    settings: dict[str, Any] = {"action_level": action_level, "n_agents": n_agents}
    api_test(maker(task, **settings)(), num_cycles=40)
    api_test(cory_v0.raw_env(task, **small_data.settings(task), **settings), num_cycles=40)


@pytest.mark.case(61)
@every_task
@every_game
@pytest.mark.parametrize("role_schedule", ["fixed", "alternate", "random"])
def test_pettingzoo_seed(task: str, action_level: str, role_schedule: str) -> None:
    seed_test(maker(task, action_level=action_level, role_schedule=role_schedule), num_cycles=50)


@every_task
@every_game
def test_pettingzoo_render(
    task: str, action_level: str, capsys: pytest.CaptureFixture[str]
) -> None:
    render_test(maker(task, action_level=action_level))
    assert "Query: " in capsys.readouterr().out


@pytest.mark.case(62)
@every_task
@every_game
def test_pettingzoo_turn_based_parallel(task: str, action_level: str) -> None:
    parallel_api_test(
        turn_based_aec_to_parallel(maker(task, action_level=action_level)()), num_cycles=60
    )


@pytest.mark.case(62)
def test_the_ordinary_parallel_conversion_is_refused() -> None:
    # case 62: agents do not move at once here, so the flag says so
    with pytest.raises(AssertionError, match="is_parallelizable"):
        aec_to_parallel(env())


# Signatures and spaces


def test_the_keywords_are_those_of_the_specification() -> None:
    expected = {
        "task": "target",
        "tokenizer": None,
        "split": "train",
        "data": None,
        "action_level": "response",
        "n_agents": 2,
        "knowledge_transfer": True,
        "reward_mixing": "sum",
        "role_schedule": "fixed",
        "max_response_tokens": None,
        "max_prompt_tokens": None,
        "reward": None,
        "chat": None,
        "render_mode": None,
    }
    for function in (cory_v0.env, cory_v0.raw_env):
        parameters = inspect.signature(function).parameters
        assert {name: p.default for name, p in parameters.items()} == expected
        assert [p.kind.name for p in parameters.values()] == [
            "POSITIONAL_OR_KEYWORD",
            *["KEYWORD_ONLY"] * 13,
        ]


def test_metadata() -> None:
    assert CoryEnv.metadata == {
        "name": "cory_v0",
        "render_modes": ["human", "ansi"],
        "is_parallelizable": False,
        "render_fps": 1,
    }
    assert str(env()) == "cory_v0"


@pytest.mark.case(59)
@every_game
def test_spaces_are_equal_for_all_agents_but_each_has_its_own(action_level: str) -> None:
    made = env(action_level=action_level)
    for space in (made.observation_space, made.action_space):
        assert space(A0) == space(A1)
        assert space(A0) is space(A0)
        assert space(A0) is not space(A1)  # seeding one must not seed the other
    width = 12 if action_level == "response" else 15
    assert made.observation_space(A0) == spaces.Box(-1, 11, (width,), np.int64)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"role_schedule": "never"}, "role_schedule must be one of"),
        ({"render_mode": "rgb_array"}, "render_mode must be None or one of"),
        ({"split": "dev"}, "split must be"),
        ({"task": "nope"}, "unknown task"),
        ({"n_agents": 0}, "n_agents must be"),
        ({"data": "nowhere.txt"}, "no such data file"),
    ],
)
def test_wrong_settings_are_refused_when_made(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cory_v0.env(**settings)


# Playing


@pytest.mark.case(66)
def test_an_episode_step_by_step() -> None:
    game = started()
    assert game.agent_selection == A0
    observation, reward, terminated, truncated, info = game.last()
    assert observation is not None
    assert observation.tolist() == observed("a d |")
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info["prompt"] == "a d |"
    assert game.observe(A1).tolist() == observed("a d |")  # its turn has not come: the bare query
    assert game.step(action("a d </s>")) is None  # type: ignore[func-returns-value]
    assert (game.agent_selection, game.rewards) == (A1, {A0: 0.0, A1: 0.0})
    assert game.observe(A1).tolist() == observed("a d | a d |")
    assert game.observe(A0).tolist() == observed("a d |")
    game.step(action("d"))
    assert game.rewards == {A0: 1.0, A1: 1.0}
    assert game.terminations == {A0: True, A1: True}
    assert game.infos[A0]["score"] == 1.0
    assert game.infos[A1]["score"] == 0.0


@pytest.mark.case(54, 56, 60)
def test_both_agents_read_their_last_reward_then_leave_and_never_return() -> None:
    # cases 54, 56, 60: the terminal reward is readable through last() by each, then None steps
    game = started()
    play(game, "a", "a")
    seen = []
    for agent in game.agent_iter():
        _, reward, terminated, truncated, info = game.last()
        seen.append((agent, reward, terminated, truncated, info["score"]))
        game.step(None)
    assert seen == [(A0, 2.0, True, False, 1.0), (A1, 2.0, True, False, 1.0)]
    assert game.agents == []
    assert game.infos == game.rewards == game.terminations == game.truncations == {}


def test_a_step_with_an_action_after_the_end_is_refused() -> None:
    game = started()
    play(game, "a", "a")
    with pytest.raises(ValueError, match="only valid action is None"):
        game.step(action("a"))


@every_game
def test_python_bools_and_floats_at_every_step(action_level: str) -> None:
    game = cory_v0.raw_env(action_level=action_level, n_agents=3, role_schedule="random")
    game.reset(seed=1)
    for agent in game.agent_iter():
        _, reward, terminated, truncated, info = game.last()
        values = [reward, *game.rewards.values(), *game._cumulative_rewards.values()]
        assert {type(value) for value in values} == {float}
        flags = [terminated, truncated, info["truncated"], *game.terminations.values()]
        assert {type(flag) for flag in flags} == {bool}
        assert truncated is False
        assert type(info["score"]) is float
        game.step(None if terminated else game.action_space(agent).sample())


@pytest.mark.case(55)
def test_step_rewards_and_cumulative_rewards_give_one_return() -> None:
    # case 55
    game = started()
    stepwise = dict.fromkeys(game.agents, 0.0)
    cumulative = dict.fromkeys(game.agents, 0.0)
    for agent in game.agent_iter():
        _, reward, terminated, _, _ = game.last()
        cumulative[agent] += reward
        game.step(None if terminated else action("a"))
        for name, value in game.rewards.items():
            stepwise[name] += value
    assert stepwise == cumulative == {A0: 2.0, A1: 2.0}


@pytest.mark.case(21)
def test_a_response_cut_by_the_limit_ends_the_turn_as_a_termination() -> None:
    game = started()
    play(game, "a b c", "a b </s>")
    assert game.infos[A0]["truncated"] is True
    assert game.infos[A1]["truncated"] is False
    assert game.truncations == {A0: False, A1: False}


def test_an_empty_response_is_legal_and_scored() -> None:
    calls = []

    def reward(queries: list[Query], responses: list[str]) -> list[float]:
        calls.append(list(responses))
        return [0.25, 0.5]

    game = started(reward=reward)
    play(game, "", "</s>")
    assert calls == [["", ""]]  # one call, for both
    assert game.rewards == {A0: 0.75, A1: 0.75}


def test_a_prompt_that_is_too_long_says_how_much_it_lost() -> None:
    game = started(max_prompt_tokens=6)
    game.step(action("b c e"))
    assert game.observe(A1).tolist() == observed("a d | e |", width=6)
    assert game.infos[A1]["dropped_tokens"] == 2


def test_a_query_that_does_not_fit_is_refused_at_reset() -> None:
    game = cory_v0.raw_env(max_prompt_tokens=4)
    with pytest.raises(ValueError, match="max_prompt_tokens=4"):
        game.reset(seed=0)


@pytest.mark.parametrize(
    ("action_level", "wrong"),
    [
        ("response", np.array([12, 0, 0])),
        ("response", np.array([-2, 0, 0])),
        ("response", np.array([0, 0])),
        ("response", np.array([0.0, 0.0, 0.0])),
        ("response", None),
        ("token", 12),
        ("token", -1),
        ("token", np.array([0])),
        ("token", None),
    ],
)
@pytest.mark.parametrize("make", [cory_v0.env, cory_v0.raw_env])
def test_an_illegal_action_is_a_value_error_and_changes_nothing(
    make: Callable[..., Any], action_level: str, wrong: Any
) -> None:
    game = make(action_level=action_level)
    game.reset(seed=0)
    before = (game.agent_selection, game.observe(A0).tolist(), dict(game.infos[A0]))
    with pytest.raises(ValueError, match="action must"):
        game.step(wrong)
    assert (game.agent_selection, game.observe(A0).tolist(), dict(game.infos[A0])) == before


def test_the_order_of_calls_is_enforced() -> None:
    game = cory_v0.env()
    with pytest.raises(AttributeError, match="before reset"):
        _ = game.agents
    with pytest.raises(Exception, match="reset"):
        game.step(action("a"))


def test_a_broken_reward_is_named() -> None:
    game = started(reward=lambda queries, responses: [None, 1.0])
    with pytest.raises(RewardError, match="got None for query 'a d' and response 'b'"):
        play(game, "b", "a")


@pytest.mark.case(66, 67)
@pytest.mark.parametrize(
    ("mixing", "paid"),
    [
        # the pioneer is agent_1 and wrong, the observer agent_0 and right
        ("sum", {A0: 1.0, A1: 1.0}),
        ("own", {A0: 1.0, A1: 0.0}),
        ("competitive", {A0: 1.0, A1: -1.0}),
        ([[1, 0.5], [0, 1]], {A0: 1.0, A1: 0.5}),
        (lambda scores: 10 * scores[::-1], {A0: 0.0, A1: 10.0}),
    ],
)
def test_payoffs_go_by_seat_to_the_agents(mixing: Any, paid: dict[str, float]) -> None:
    game = cory_v0.raw_env(reward_mixing=mixing)
    game.reset(seed=0, options={"query": AD, "turn_order": [A1, A0]})
    play(game, "b", "a")
    assert game.rewards == paid


def test_a_hidden_query_judges_the_observer_by_the_second_letter() -> None:
    game = cory_v0.raw_env()
    game.reset(options={"query": HIDDEN_AD})
    game.step(action("a d"))
    assert game.observe(A1).tolist() == observed("? ? | a d |")
    game.step(action("d"))
    assert game.rewards == {A0: 2.0, A1: 2.0}


# Reset, roles, seeds


def test_roles_are_a_fact_of_the_episode() -> None:
    game = cory_v0.env()
    game.reset(seed=0)
    assert game.roles == {A0: "pioneer", A1: "observer"}
    assert game.turn_order == (A0, A1)
    game.reset(options={"turn_order": [A1, A0]})
    assert game.roles == {A0: "observer", A1: "pioneer"}
    assert game.agent_selection == A1
    assert game.agents == [A0, A1]


@pytest.mark.parametrize("order", [[A0], [A0, A0], "agent_0", [A0, "agent_9"]])
def test_a_wrong_turn_order_is_refused(order: Any) -> None:
    with pytest.raises(ValueError, match="turn_order must be a permutation"):
        cory_v0.raw_env().reset(options={"turn_order": order})


def episodes(game: CoryEnv, n: int) -> list[tuple[str, tuple[str, ...]]]:
    """Query and order of n played episodes."""
    seen = []
    for _ in range(n):
        game.reset()
        seen.append((game.episode.query.text, game.turn_order))
        play(game, *["a"] * len(game.possible_agents))
    return seen


def test_alternate_rotates_every_episode() -> None:
    game = cory_v0.raw_env(role_schedule="alternate", n_agents=3)
    game.reset(seed=0)
    firsts = [order[0] for _, order in episodes(game, 5)]
    assert firsts == [A0, A1, "agent_2", A0, A1]


@pytest.mark.case(59, 61)
@pytest.mark.parametrize("role_schedule", ["fixed", "alternate", "random"])
def test_the_same_seed_gives_the_same_queries_and_orders(role_schedule: str) -> None:
    # cases 59 and 61: everything that is drawn comes from the seed
    runs = []
    for seed in (7, 7, 8):
        game = cory_v0.raw_env(role_schedule=role_schedule)
        game.reset(seed=seed)
        runs.append(episodes(game, 12))
    assert runs[0] == runs[1] != runs[2]
    game.reset(seed=7)  # in the middle of another stream
    assert episodes(game, 12) == runs[0]


def test_each_query_comes_once_per_pass() -> None:
    game = cory_v0.raw_env(split="test")
    game.reset(seed=0)
    seen = []
    for _ in range(108):
        game.reset()
        seen.append(game.episode.query.metadata["index"])
        play(game, "a", "a")
    assert sorted(seen) == list(range(108))


@pytest.mark.case("P9")
@pytest.mark.parametrize("role_schedule", ["fixed", "alternate", "random"])
def test_resetting_an_untouched_episode_keeps_it(role_schedule: str) -> None:
    once, twice = (cory_v0.raw_env(role_schedule=role_schedule) for _ in range(2))
    once.reset(seed=3)
    twice.reset(seed=3)
    for _ in range(4):
        twice.reset()  # as the stock Collector does
        twice.reset()
        assert twice.episode.query == once.episode.query
        assert twice.turn_order == once.turn_order
        for game in (once, twice):
            play(game, "a", "b")
            game.reset()


@every_game
def test_one_action_is_enough_to_use_a_query_up(action_level: str) -> None:
    game = cory_v0.raw_env(action_level=action_level)
    game.reset(seed=0)
    first = game.episode.query
    game.step(action("a") if action_level == "response" else TOKEN["a"])
    game.reset()
    assert game.episode.query != first


def test_a_given_order_survives_a_second_reset_and_ends_with_the_episode() -> None:
    game = cory_v0.raw_env()
    game.reset(seed=0, options={"turn_order": [A1, A0]})
    game.reset()
    assert game.turn_order == (A1, A0)
    play(game, "a", "a")
    game.reset()
    assert game.turn_order == (A0, A1)


def test_a_given_query_may_be_text_or_a_query() -> None:
    game = cory_v0.raw_env()
    game.reset(seed=0, options={"query": "c f"})
    assert game.episode.query.answer == "c"  # found among the split's queries
    assert "index" in game.episode.query.metadata
    own = Query("e e", answer="f")
    game.reset(options={"query": own})
    assert game.episode.query is own
    with pytest.raises(ValueError, match="must be text or a Query, got 3"):
        game.reset(options={"query": 3})
    with pytest.raises(ValueError, match="two letters"):
        game.reset(options={"query": "hello"})


def test_a_game_without_a_split_needs_no_data() -> None:
    game = cory_v0.raw_env(
        CustomTask(reward="target"), tokenizer=letter_tokenizer(), split=None, max_prompt_tokens=64
    )
    with pytest.raises(ValueError, match=r"reset must name options\['query'\]"):
        game.reset(seed=0)
    game.reset(seed=0, options={"query": "a d"})
    assert game.episode.query == Query("a d")
    with pytest.raises(ValueError, match="has no queries of its own: give data"):
        cory_v0.raw_env(CustomTask(reward="target"), tokenizer=letter_tokenizer())


@pytest.mark.parametrize("touched", [True, False])
def test_a_refused_reset_leaves_everything_as_it_was(touched: bool) -> None:
    game, same = (cory_v0.raw_env(role_schedule="alternate") for _ in range(2))
    for made in (game, same):
        made.reset(seed=0)
        if touched:
            play(made, "a", "a")
    for options in ({"query": Query("a b c d e f a b c d e")}, {"turn_order": [A0]}):
        with pytest.raises(ValueError, match=r"max_prompt_tokens|turn_order"):
            game.reset(options=options)
    game.reset()
    same.reset()
    assert (game.episode.query, game.turn_order) == (same.episode.query, same.turn_order)


def test_a_given_query_uses_up_none_of_the_streams() -> None:
    game, plain = cory_v0.raw_env(), cory_v0.raw_env()
    plain.reset(seed=5)
    game.reset(seed=5)
    game.reset(options={"query": AD})
    play(game, "a", "a")
    assert episodes(game, 3) == episodes(plain, 3)


@pytest.mark.parametrize("seed", [-1, 0.5, "0"])
def test_other_seeds_are_refused(seed: Any) -> None:
    with pytest.raises(ValueError, match="seed must be a whole number"):
        cory_v0.raw_env().reset(seed=seed)


def test_without_a_seed_two_environments_differ() -> None:
    first, second = cory_v0.raw_env(), cory_v0.raw_env()
    assert episodes(first, 8) != episodes(second, 8)  # equal with probability below 36 ** -8


# Rendering, pickling


def test_human_mode_prints_the_dialogue_as_it_happens(capsys: pytest.CaptureFixture[str]) -> None:
    game = started(render_mode="human")
    capsys.readouterr()
    game.reset(options={"query": AD})
    assert capsys.readouterr().out == "Query: a d\n"
    game.step(action("a"))
    assert capsys.readouterr().out == "agent_0 (pioneer): 'a'\n"
    assert game.render() is None
    assert capsys.readouterr().out == ""
    game.step(action("b"))
    assert capsys.readouterr().out.splitlines() == [
        "agent_1 (observer): 'b'",
        "agent_0 (pioneer) scored 1.000 and is paid 1.000",
        "agent_1 (observer) scored 0.000 and is paid 1.000",
    ]


def test_ansi_mode_returns_the_dialogue_also_after_the_end() -> None:
    game = env(render_mode="ansi")
    game.reset(seed=0, options={"query": AD})
    for agent in game.agent_iter():
        assert str(game.render()).startswith("Query: a d")
        terminated = game.last()[2]
        game.step(None if terminated else action("a"))
        assert agent in (A0, A1)
    assert game.agents == []
    assert str(game.render()).endswith("agent_1 (observer) scored 1.000 and is paid 2.000")


@every_game
def test_solo(action_level: str) -> None:
    game = cory_v0.raw_env(n_agents=1, action_level=action_level, reward_mixing="competitive")
    game.reset(options={"query": AD})
    assert game.roles == {A0: "pioneer"}
    for move in [action("a")] if action_level == "response" else [TOKEN["a"], TOKEN["</s>"]]:
        game.step(move)
    assert (game.rewards, game.terminations) == ({A0: 1.0}, {A0: True})
    game.step(None)
    assert game.agents == []


@pytest.mark.parametrize("make", [cory_v0.env, cory_v0.raw_env])
def test_the_environment_pickles(make: Callable[..., Any]) -> None:
    game = make(n_agents=3, action_level="token", role_schedule="random")
    copy = pickle.loads(pickle.dumps(game))
    for made in (game, copy):
        made.reset(seed=4)
    assert copy.turn_order == game.turn_order
    assert copy.observe(A0).tolist() == game.observe(A0).tolist()


def test_the_docstring_says_what_users_look_for() -> None:
    for section in ("Arguments:", "Observation:", "Action:", "Rewards:", "Version History:"):
        assert section in str(inspect.getdoc(CoryEnv))
