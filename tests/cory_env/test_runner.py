"""Tests of cory_env/runner.py: many episodes at once are as many single environments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cory_env.env import CoryEnv
from cory_env.records import Query
from cory_env.rewards import RewardError, WeightedReward
from cory_env.roles import agent_names, rotate
from cory_env.runner import LockStepRunner, derangement
from cory_env.tasks.target import LETTERS, TargetTask
from tests.cory_env.games import AD, BC, END, HIDDEN_AD, TOKEN, action, observed, rules

ORDER = ("agent_0", "agent_1")
MIXINGS: list[Any] = ["sum", "own", "competitive", "matrix", np.cumsum]


def mixing_for(spec: Any, n_agents: int) -> Any:
    if spec == "matrix" if isinstance(spec, str) else False:
        return np.arange(n_agents * n_agents, dtype=float).reshape(n_agents, n_agents) / 3
    return spec


def begun(queries: Sequence[Query], rng: int | None = None, **kwargs: Any) -> LockStepRunner:
    names = {key: kwargs.pop(key) for key in ("transfer", "scores") if key in kwargs}
    order = kwargs.pop("order", ORDER)
    runner = LockStepRunner(rules(**kwargs), **names)
    runner.begin(queries, order, None if rng is None else np.random.default_rng(rng))
    return runner


@settings(max_examples=25)
@given(data=st.data())
@pytest.mark.parametrize("mixing", MIXINGS, ids=lambda m: getattr(m, "__name__", m))
@pytest.mark.parametrize("n_agents", [1, 2, 3])
@pytest.mark.parametrize("action_level", ["response", "token"])
def test_it_equals_single_environments_bit_for_bit(
    action_level: str, n_agents: int, mixing: Any, data: st.DataObject
) -> None:
    task = TargetTask(kappa=0.5)
    kwargs: dict[str, Any] = {
        "action_level": action_level,
        "n_agents": n_agents,
        "reward_mixing": mixing_for(mixing, n_agents),
        "knowledge_transfer": data.draw(st.booleans()),
        "max_prompt_tokens": data.draw(st.sampled_from([7, 12])),
        # scores that are no small integers, so that rounding would show
        "reward": lambda queries, responses: [
            len(r) / 7 + (q.answer == r[:1]) / 3 for q, r in zip(queries, responses, strict=True)
        ],
    }
    if data.draw(st.booleans()):
        kwargs["reward"] = WeightedReward(((0.3, kwargs["reward"]), (0.7, Counting())))
    queries = data.draw(
        st.lists(st.sampled_from(task.queries("validation")), min_size=1, max_size=4)
    )
    order = rotate(agent_names(n_agents), data.draw(st.integers(0, 2)))
    runner = begun(queries, order=order, **kwargs)
    envs = []
    for query in queries:
        envs.append(CoryEnv(**kwargs))
        envs[-1].reset(seed=0, options={"query": query, "turn_order": order})
    first = int(action_level == "token") - 1
    moves = st.lists(st.integers(first, 11), min_size=3, max_size=3)

    while live := [i for i, env in enumerate(envs) if not env.episode.over]:
        ids = data.draw(st.permutations(live))[: data.draw(st.integers(1, len(live)))]
        agents, observations = runner.observe(ids)
        assert agents == [envs[i].agent_selection for i in ids]
        assert np.array_equal(observations, [envs[i].observe(envs[i].agent_selection) for i in ids])
        assert runner.infos(ids) == [envs[i].infos[envs[i].agent_selection] for i in ids]
        actions: Any = [data.draw(moves) for _ in ids]
        if action_level == "token":
            actions = [move[0] for move in actions]
        payoffs, terminated = runner.step(np.array(actions), ids)
        assert payoffs.shape == (len(ids), n_agents)
        for row, ended, i, move in zip(payoffs, terminated, ids, actions, strict=True):
            envs[i].step(np.array(move))
            assert row.tolist() == list(envs[i].rewards.values())
            assert bool(ended) == all(envs[i].terminations.values())

    assert runner.finished == [env.episode.record() for env in envs]


class Counting:
    """The target's reward; counts its calls and their sizes."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, queries: Sequence[Query], responses: Sequence[str]) -> list[float]:
        self.sizes.append(len(responses))
        return [float(r.split()[:1] == [q.answer]) for q, r in zip(queries, responses, strict=True)]


def test_one_reward_call_for_all_episodes_that_end_in_a_step() -> None:
    reward = Counting()
    runner = begun([AD, BC, AD, BC], reward=reward)
    runner.step([action("a")] * 4, range(4))
    assert reward.sizes == []
    runner.step([action("b")] * 3, [0, 1, 2])
    assert reward.sizes == [6]
    runner.step([action("b")], [3])
    assert reward.sizes == [6, 2]


def test_parts_of_a_weighted_reward_are_kept_by_response_with_one_call_a_part() -> None:
    one, two = Counting(), Counting()
    length = lambda queries, responses: [float(len(r)) for r in responses]  # noqa: E731
    reward = WeightedReward(((0.5, one), (-1.0, length), (0.25, two)), ("one", "long", "two"))
    runner = begun([AD, BC], reward=reward, order=("agent_1", "agent_0"))
    runner.step([action("a"), action("b c")], [0, 1])
    runner.step([action("a b c"), action("a")], [0, 1])
    assert one.sizes == two.sizes == [4]
    turns = [turn for record in runner.finished if record for turn in record.turns]
    # right, length: "a" 1, 1; "a b c" 1, 5; "b c" 1, 3; "a" 0, 1
    assert [turn.agent for turn in turns] == ["agent_1", "agent_0", "agent_1", "agent_0"]
    assert [turn.parts for turn in turns] == [
        {"one": 1.0, "long": 1.0, "two": 1.0},
        {"one": 1.0, "long": 5.0, "two": 1.0},
        {"one": 1.0, "long": 3.0, "two": 1.0},
        {"one": 0.0, "long": 1.0, "two": 0.0},
    ]
    assert [turn.score for turn in turns] == [-0.25, -4.25, -2.25, -1.0]


def test_a_single_reward_has_no_parts() -> None:
    runner = begun([AD], reward=Counting())
    runner.step([action("a")], [0])
    runner.step([action("a")], [0])
    assert [turn.parts for turn in runner.finished[0].turns] == [None, None]  # type: ignore[union-attr]


def test_in_a_permuted_batch_parts_are_ones_own() -> None:
    runner = begun([AD, BC, AD], 0, reward="2*target", scores="permuted")
    runner.step([action("a"), action("c"), action("b")], range(3))
    runner.step([action("a"), action("b"), action("b")], range(3))
    own = [[turn.parts for turn in r.turns] for r in runner.finished if r]
    assert [[p["target"] for p in pair if p] for pair in own] == [
        [1.0, 1.0],
        [0.0, 1.0],
        [0.0, 0.0],
    ]


def test_at_token_level_only_the_episodes_that_end_are_scored() -> None:
    reward = Counting()
    runner = begun([AD, BC], reward=reward, action_level="token", n_agents=1, order=("agent_0",))
    payoffs, terminated = runner.step(np.array([END, TOKEN["b"]]), [0, 1])
    assert terminated.tolist() == [True, False]
    payoffs, terminated = runner.step(np.array([END]), [1])
    assert payoffs.tolist() == [[1.0]]
    assert reward.sizes == [1, 1]


def test_payoff_columns_are_agents_and_not_seats() -> None:
    runner = begun([AD, AD], order=("agent_1", "agent_0"), reward_mixing="own")
    assert runner.observe([0])[0] == ["agent_1"]
    payoffs, terminated = runner.step([action("a"), action("b")], [0, 1])
    assert (payoffs.tolist(), terminated.tolist()) == ([[0.0, 0.0]] * 2, [False, False])
    payoffs, terminated = runner.step([action("b"), action("a")], [0, 1])
    # the pioneer, agent_1, was right in the first episode, the observer in the second
    assert payoffs.tolist() == [[0.0, 1.0], [1.0, 0.0]]
    assert payoffs.dtype == np.float64
    assert terminated.tolist() == [True, True]


def test_rows_follow_the_order_of_the_ids() -> None:
    runner = begun([AD, BC])
    assert runner.observe([1, 0])[1].tolist() == [observed("b c |"), observed("a d |")]
    runner.step([action("b"), action("a")], [1, 0])
    assert [info["prompt"] for info in runner.infos([0, 1])] == ["a d | a |", "b c | b |"]


def test_a_reset_uses_up_no_query_and_keeps_the_order() -> None:
    runner = begun([AD, BC], order=("agent_1", "agent_0"))
    for _ in range(2):
        runner.step([action("a"), action("b")], [0, 1])
    done = list(runner.finished)
    runner.reset([0])
    assert runner.observe([0])[1].tolist() == [observed("a d |")]
    assert runner.observe([0, 1])[0] == ["agent_1", "agent_0"]
    assert [episode.over for episode in runner.episodes] == [False, True]
    assert runner.finished == done  # the Collector resets at the end: the records stay
    runner.begin([BC], ORDER)
    assert runner.finished == [None]


def test_an_illegal_action_moves_no_episode() -> None:
    runner = begun([AD, BC])
    with pytest.raises(ValueError, match="action must lie in"):
        runner.step([action("a"), np.array([99, 0, 0])], [0, 1])
    assert not any(episode.touched for episode in runner.episodes)


def test_misuse_is_refused() -> None:
    runner = begun([AD, BC])
    for ids in ([2], [-1]):
        with pytest.raises(ValueError, match="ids must lie in"):
            runner.observe(ids)
    with pytest.raises(ValueError, match="one action for each of 2 different ids"):
        runner.step([action("a")], [0, 1])
    with pytest.raises(ValueError, match="one action for each of 2 different ids"):
        runner.step([action("a")] * 2, [0, 0])
    for _ in range(2):
        runner.step([action("a")], [0])
    with pytest.raises(ValueError, match="reset it first"):
        runner.step([action("a")], [0])
    with pytest.raises(ValueError, match="turn_order must be"):
        runner.begin([AD], ("agent_0",))


def test_a_broken_reward_is_named() -> None:
    runner = begun([AD], reward=lambda queries, responses: [float("nan"), 0.0])
    runner.step([action("a")], [0])
    with pytest.raises(RewardError, match="query 'a d' and response 'a'"):
        runner.step([action("b")], [0])


def test_a_hidden_query_is_judged_by_the_role() -> None:
    runner = begun([HIDDEN_AD], reward_mixing="own")
    runner.step([action("a d")], [0])
    payoffs, _ = runner.step([action("d")], [0])
    assert payoffs.tolist() == [[1.0, 1.0]]


# Placebos


@given(n=st.integers(2, 30), seed=st.integers(0, 999))
def test_a_derangement_moves_everything(n: int, seed: int) -> None:
    permutation = derangement(n, np.random.default_rng(seed))
    assert sorted(permutation) == list(range(n))
    assert all(i != p for i, p in enumerate(permutation))


PAIRS = [Query(f"{x} {y}", answer=x) for x, y in zip(LETTERS, [*LETTERS[1:], "a"], strict=True)]


@pytest.mark.parametrize("seed", range(5))
def test_permuted_transfer_shows_each_observer_the_response_of_another(seed: int) -> None:
    runner = begun(PAIRS, rng=seed, transfer="permuted")
    runner.step([action(letter) for letter in LETTERS], range(6))
    shown = [
        info["prompt"].removeprefix(f"{query} | ")
        for info, query in zip(runner.infos(range(6)), PAIRS, strict=True)
    ]
    assert sorted(shown) == [f"{letter} |" for letter in LETTERS]  # each response is read once
    assert all(text[0] != letter for text, letter in zip(shown, LETTERS, strict=True))
    payoffs, _ = runner.step([action("a")] * 6, range(6))
    # scores and payoffs are the episode's own: every pioneer right, one observer
    assert payoffs[:, 0].tolist() == [2.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert [record.turns[0].response for record in runner.finished if record] == list(LETTERS)


def test_permuted_transfer_in_a_chain_reads_one_other_episode() -> None:
    runner = begun(PAIRS, rng=0, transfer="permuted", n_agents=3, order=agent_names(3))
    runner.step([action(letter) for letter in LETTERS], range(6))
    runner.step([action(f"? {letter}") for letter in LETTERS], range(6))
    for info, letter in zip(runner.infos(range(6)), LETTERS, strict=True):
        _, first, second, _ = [part.strip() for part in info["prompt"].split("|")]
        assert second == f"? {first}"
        assert first != letter


@pytest.mark.parametrize("seed", range(5))
def test_permuted_scores_pay_the_own_score_and_those_of_another_episode(seed: int) -> None:
    # pioneers score 0..5, observers 0, 10, ..., 50: tens are the observer's, units the pioneer's
    def by_text(queries: Sequence[Query], responses: Sequence[str]) -> list[float]:
        return [LETTERS.index(r[-1]) * (10.0 if r[0] == "?" else 1.0) for r in responses]

    runner = begun(PAIRS, rng=seed, scores="permuted", reward=by_text)
    runner.step([action(letter) for letter in LETTERS], range(6))
    assert [info["prompt"] for info in runner.infos([1])] == ["b c | b |"]  # transfer is the own
    payoffs, _ = runner.step([action(f"? {letter}") for letter in LETTERS], range(6))
    own = np.arange(6)
    from_observer, from_pioneer = (payoffs[:, 0] - own) / 10, payoffs[:, 1] - 10 * own
    assert sorted(from_observer) == sorted(from_pioneer) == own.tolist()
    assert from_observer.tolist() == from_pioneer.tolist()  # one other episode for both
    assert (from_observer != own).all()
    assert [record.turns[1].score for record in runner.finished if record] == (10 * own).tolist()


def test_permutations_follow_from_the_generator_and_stay_for_the_batch() -> None:
    def prompts(runner: LockStepRunner) -> list[str]:
        runner.reset(range(6))
        runner.step([action(letter) for letter in LETTERS], range(6))
        return [info["prompt"] for info in runner.infos(range(6))]

    first, again, other = (begun(PAIRS, rng=rng, transfer="permuted") for rng in (1, 1, 2))
    assert prompts(first) == prompts(first) == prompts(again)
    assert prompts(first) != prompts(other)


@pytest.mark.parametrize("placebo", [{"transfer": "permuted"}, {"scores": "permuted"}])
def test_a_permuted_batch_moves_together_or_not_at_all(placebo: dict[str, str]) -> None:
    runner = begun([AD, BC], rng=0, **placebo)
    with pytest.raises(ValueError, match="moves all of its 2 episodes together"):
        runner.step([action("a")], [0])
    with pytest.raises(ValueError, match="at least 2 episodes, got 1"):
        begun([AD], rng=0, **placebo)
    with pytest.raises(ValueError, match="a permuted batch needs rng"):
        begun([AD, BC], **placebo)
    with pytest.raises(ValueError, match="needs action_level='response'"):
        begun([AD, BC], rng=0, action_level="token", **placebo)
    runner.step([action("a")] * 2, [0, 1])
    runner.reset([0])
    with pytest.raises(ValueError, match=r"at seats \[0, 1\]"):
        runner.step([action("a")] * 2, [0, 1])


def test_other_words_and_permuting_what_nobody_reads_are_refused() -> None:
    with pytest.raises(ValueError, match="transfer must be one of"):
        LockStepRunner(rules(), transfer="none")
    with pytest.raises(ValueError, match="scores must be one of"):
        LockStepRunner(rules(), scores="swapped")
    with pytest.raises(ValueError, match="needs knowledge_transfer=True"):
        LockStepRunner(rules(knowledge_transfer=False), transfer="permuted")
