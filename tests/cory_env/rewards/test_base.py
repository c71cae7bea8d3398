"""Tests of cory_env/rewards/base.py and of every reward in REWARDS."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from cory_env.records import Query
from cory_env.rewards import (
    REWARDS,
    RewardError,
    WeightedReward,
    checked_scores,
    make_reward,
)

QUERIES = [Query("q0", "a"), Query("q1", "b"), Query("q2", "c")]
RESPONSES = ["a", "x", ""]
SAMPLES = [*RESPONSES, " 85", "I loved it. ", "the answer is 7,000", "\ufffd\u00e9", "a a a"]


def length(queries: Sequence[Query], responses: Sequence[str]) -> list[int]:
    """A user's reward."""
    return [len(text) for text in responses]


class Constant:
    """A user's reward as a class."""

    def __call__(self, queries: Sequence[Query], responses: Sequence[str]) -> list[float]:
        return [2.0] * len(responses)


HERE = __name__


def test_a_known_name_gives_that_reward() -> None:
    assert make_reward("target")(QUERIES, RESPONSES) == [1.0, 0.0, 0.0]


def test_functions_and_classes_come_from_anywhere() -> None:
    assert make_reward(f"{HERE}:length")(QUERIES, RESPONSES) == [1, 1, 0]
    assert make_reward(f"{HERE}:Constant")(QUERIES, RESPONSES) == [2.0, 2.0, 2.0]


def test_a_callable_is_taken_as_it_is() -> None:
    assert make_reward(length) is length


@pytest.mark.parametrize(
    ("spec", "scores"),
    [
        # target gives 1, 0, 0; length 1, 1, 0; Constant 2, 2, 2
        ("0.5*target + 0.25*{here}:length", [0.75, 0.25, 0.0]),
        ("target+{here}:Constant", [3.0, 2.0, 2.0]),
        ("2*target", [2.0, 0.0, 0.0]),
        ("target + -1*{here}:length", [0.0, -1.0, 0.0]),
        ("1e1 * target + .5 * {here}:Constant", [11.0, 1.0, 1.0]),
    ],
)
def test_weighted_sums_known_answers(spec: str, scores: list[float]) -> None:
    reward = make_reward(spec.format(here=HERE))
    assert isinstance(reward, WeightedReward)
    assert checked_scores(reward, QUERIES, RESPONSES).tolist() == scores


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("no_such", "unknown reward 'no_such'; known are"),
        ("0.5*target + no_such", "unknown reward 'no_such'"),
        ("", "reward must look like"),
        ("0.5*", "reward must look like"),
        ("target +", "reward must look like"),
        ("target - target", re.escape("must be joined by '+'")),
        ("math:pi", "'math:pi' must be callable, got float"),
        (3, "reward must be a name, a weighted sum or a callable, got 3"),
    ],
)
def test_other_specs_are_refused(spec: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_reward(spec)


def gives(result: Any) -> Callable[..., Any]:
    return lambda queries, responses: result


@pytest.mark.parametrize(
    "result", [[1, 0, 2], (1.0, 0.0, 2.0), np.array([1, 0, 2]), iter([True, False, np.float32(2)])]
)
def test_numbers_of_any_kind_become_floats(result: Any) -> None:
    scores = checked_scores(gives(result), QUERIES, RESPONSES)
    assert scores.dtype == np.float64
    assert scores.tolist() == [1.0, 0.0, 2.0]


@pytest.mark.parametrize("bad", [None, "0.5", b"1", float("nan"), float("inf"), [1.0], {}, 10**400])
def test_a_score_that_is_no_finite_number_is_named(bad: Any) -> None:
    message = r"finite numbers, got .* for query 'q1' and response 'x'"
    with pytest.raises(RewardError, match=message):
        checked_scores(gives([1.0, bad, 2.0]), QUERIES, RESPONSES)


@pytest.mark.parametrize(
    ("result", "got"),
    [
        ([1.0], "1 scores"),
        ([1.0] * 4, "4 scores"),
        (None, "NoneType"),
        ("abc", "str"),
        (1.0, "float"),
        (np.array(1.0), "ndarray"),
    ],
)
def test_another_number_of_scores_is_refused(result: Any, got: str) -> None:
    with pytest.raises(RewardError, match=f"must give 3 scores, got {got}"):
        checked_scores(gives(result), QUERIES, RESPONSES)


def test_a_reward_that_raises_is_named_with_the_response_that_it_raises_for() -> None:
    def broken(queries: Sequence[Query], responses: Sequence[str]) -> list[float]:
        return [1.0 / len(text) for text in responses]

    with pytest.raises(
        RewardError, match=r"ZeroDivisionError.*query 'q2' and response ''"
    ) as caught:
        checked_scores(broken, QUERIES, RESPONSES)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert isinstance(caught.value, ValueError)


def test_a_reward_that_raises_only_for_the_batch_says_so() -> None:
    def small_batches(queries: Sequence[Query], responses: Sequence[str]) -> list[float]:
        if len(responses) > 1:
            raise RuntimeError("too many")
        return [0.0]

    with pytest.raises(RewardError, match="for a batch of 3 only"):
        checked_scores(small_batches, QUERIES, RESPONSES)


def test_a_part_of_a_sum_is_checked_by_itself() -> None:
    reward = WeightedReward(((1.0, gives([float("inf")] * 3)), (0.0, length)))
    with pytest.raises(RewardError, match="finite"):
        reward(QUERIES, RESPONSES)


def test_no_responses_need_no_call() -> None:
    assert checked_scores(gives(None), [], []).shape == (0,)


def test_queries_and_responses_must_be_as_many() -> None:
    with pytest.raises(ValueError, match="1 queries for 2 responses"):
        checked_scores(length, QUERIES[:1], RESPONSES[:2])


@pytest.mark.case(23)
@pytest.mark.parametrize("name", sorted(REWARDS))
def test_a_score_depends_on_its_query_and_response_only(name: str) -> None:
    # case 23: in a batch, alone, backwards and a second time, the same number
    reward = make_reward(name)
    queries = [Query("I saw a film that", "85") for _ in SAMPLES]
    batch = checked_scores(reward, queries, SAMPLES)
    alone = [checked_scores(reward, [q], [r])[0] for q, r in zip(queries, SAMPLES, strict=True)]
    backwards = checked_scores(reward, queries[::-1], SAMPLES[::-1])[::-1]
    assert batch.tolist() == alone == backwards.tolist()
