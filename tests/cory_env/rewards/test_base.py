"""Tests of cory_env/rewards/base.py and of every reward in REWARDS."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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
    score_batch,
)
from cory_env.rewards.base import ELSEWHERE, fingerprints

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


@dataclass(frozen=True)
class Scaled:
    """A user's reward with settings: factor times the length, plus a private offset."""

    factor: float = 1.0
    unit: str = "letters"
    _offset: float = field(default=0.0, repr=False)

    def __call__(self, queries: Sequence[Query], responses: Sequence[str]) -> list[float]:
        return [self.factor * len(text) + self._offset for text in responses]


class Judge:
    """A user's reward that needs an argument, and checks it."""

    def __init__(self, path: str, *, strict: bool = False) -> None:
        if not path.endswith(".txt"):
            raise ValueError(f"judge: path must end in .txt, got {path!r}")
        if strict:
            raise OSError("disk on fire")
        self.fingerprint = f"contents of {path}"

    def __call__(self, queries: Sequence[Query], responses: Sequence[str]) -> list[float]:
        return [0.0] * len(responses)


def constant(value: float) -> Callable[..., list[float]]:
    """A user's function that makes a reward."""
    return lambda queries, responses: [value] * len(responses)


def any_sum(*values: float, **named: float) -> Callable[..., list[float]]:
    """Takes whatever it is given."""
    return constant(sum(values) + sum(named.values()))


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
        ("target - 0.5*{here}:length", [0.5, -0.5, 0.0]),
        ("-1*target", [-1.0, 0.0, 0.0]),
        # Scaled(3) gives 3, 3, 0; constant(-1) gives -1, -1, -1
        ("target + 0.5*{here}:Scaled(3)", [2.5, 1.5, 0.0]),
        ("2*{here}:constant(-1) - {here}:Scaled(factor=2)", [-4.0, -4.0, -2.0]),
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
        ("target * target", re.escape("must be joined by '+' or '-'")),
        ("target - target", "must be different: 'target' stands 2 times"),
        (f"{HERE}:Scaled( 2 ) + {HERE}:Scaled(2)", r"Scaled\(2\)' stands 2 times"),
        ("math:pi", "'math:pi' must be callable, got float"),
        ("math:pi(3)", r"'math:pi' takes no arguments, got 'math:pi\(3\)'"),
        ("vader(x)", "'vader' takes no arguments, and none without a keyword, got 1"),
        ("vader(_analyzer=x)", "'vader' takes no arguments, got _analyzer"),
        (f"{HERE}:Scaled(1, 2, 3)", "takes factor, unit, and at most 2 without a keyword, got 3"),
        (f"{HERE}:Scaled(scale=2)", "takes factor, unit, got scale"),
        (f"{HERE}:Scaled(2, factor=2)", "must get factor once, got it twice"),
        (f"{HERE}:Judge", r"without arguments: it needs path, as in .*:Judge\(path\)"),
        (f"{HERE}:Judge(strict=True)", "without arguments: it needs path"),
        (
            f"{HERE}:Judge(a.txt, True)",
            "takes path, strict, and at most 1 without a keyword, got 2",
        ),
        (f"{HERE}:Judge(a.csv)", "^judge: path must end in .txt, got 'a.csv'$"),
        (f"{HERE}:Judge(a.txt, strict=True)", r"cannot be built with these arguments \(disk on"),
        (f"{HERE}:constant", None),
        (f"{HERE}:length()", "without arguments: it needs queries"),
        ("builtins:len(x)", r"'builtins:len\(x\)' must be callable, got int"),
        (3, "reward must be a name, a weighted sum or a callable, got 3"),
    ],
)
def test_other_specs_are_refused(spec: Any, message: str | None) -> None:
    if message is None:  # without brackets a function is itself the reward
        assert make_reward(spec) is constant
        return
    with pytest.raises(ValueError, match=message):
        make_reward(spec)


def test_arguments_reach_a_class_and_a_function_that_makes_rewards() -> None:
    assert make_reward(f"{HERE}:Scaled()") == Scaled()
    assert make_reward(f"{HERE}:Scaled(2, unit='a b')") == Scaled(2, "a b")
    assert make_reward(f"{HERE}:Scaled(factor=-1.5)") == Scaled(-1.5)
    assert make_reward(f"{HERE}:constant(7)")(QUERIES, RESPONSES) == [7, 7, 7]
    assert make_reward(f"{HERE}:any_sum(1, 2, a=3, b=4)")(QUERIES, RESPONSES) == [10, 10, 10]
    assert make_reward("vader()") == make_reward("vader")


def test_a_reward_of_another_package_says_where_it_comes_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(REWARDS, "classifier", raising=False)  # as before `import agents`
    with pytest.raises(ValueError, match="'classifier' comes with the package 'agents': `import"):
        make_reward("0.5*classifier(some/folder) + vader")


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        ("0.5*target + {here}:length", ("target", "{here}:length")),
        ("0.5*target + {here}:Scaled(2)", ("target", "{here}:Scaled")),
        ("{here}:Scaled( 2 )+{here}:Scaled(3)", ("{here}:Scaled(2)", "{here}:Scaled(3)")),
        ("2*target", ("target",)),
    ],
)
def test_parts_are_named_shortly_and_differently(spec: str, names: tuple[str, ...]) -> None:
    reward = make_reward(spec.format(here=HERE))
    assert isinstance(reward, WeightedReward)
    assert reward.names == tuple(name.format(here=HERE) for name in names)


def test_parts_made_in_python_have_names_too() -> None:
    parts = ((1.0, length), (2.0, Constant()), (3.0, length))
    assert WeightedReward(parts).names == ("length", "Constant", "length (2)")
    assert WeightedReward(parts, ("a", "b", "c")).names == ("a", "b", "c")
    for names in (("a", "b"), ("a", "b", "a")):
        with pytest.raises(ValueError, match="names must be different and one for each of 3 parts"):
            WeightedReward(parts, names)


class Counting:
    """Counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, queries: Sequence[Query], responses: Sequence[str]) -> list[float]:
        self.calls += 1
        return [float(self.calls)] * len(responses)


def test_a_sum_says_what_its_parts_said_and_calls_each_once() -> None:
    one, two = Counting(), Counting()
    batch = score_batch(
        WeightedReward(((0.5, one), (-2.0, length), (0.0, two))), QUERIES, RESPONSES
    )
    # 0.5 * 1 - 2 * (1, 1, 0) + 0 * 1
    assert batch.scores.tolist() == [-1.5, -1.5, 0.5]
    assert batch.parts_of(0) == {"Counting": 1.0, "length": 1.0, "Counting (2)": 1.0}
    assert batch.parts_of(2) == {"Counting": 1.0, "length": 0.0, "Counting (2)": 1.0}
    assert (one.calls, two.calls) == (1, 1)


def test_a_single_reward_has_no_parts() -> None:
    batch = score_batch(length, QUERIES, RESPONSES)
    assert (batch.scores.tolist(), batch.parts, batch.parts_of(1)) == ([1.0, 1.0, 0.0], None, None)


def test_a_sum_that_overflows_is_named() -> None:
    reward = WeightedReward(((1e300, gives([1e99] * 3)),))
    with pytest.raises(RewardError, match="WeightedReward must give finite numbers, got inf"):
        score_batch(reward, QUERIES, RESPONSES)


def test_an_empty_batch_of_a_sum_has_empty_parts() -> None:
    batch = score_batch(make_reward("2*target"), [], [])
    assert batch.scores.shape == (0,)
    with pytest.raises(ValueError, match="1 queries for 2 responses"):
        score_batch(make_reward("2*target"), QUERIES[:1], RESPONSES[:2])


def test_a_part_that_raises_is_named_and_nobody_wraps_that() -> None:
    def broken(queries: Sequence[Query], responses: Sequence[str]) -> list[float]:
        return [1.0 / len(text) for text in responses]

    reward = WeightedReward(((1.0, length), (1.0, broken)))
    with pytest.raises(RewardError) as caught:
        checked_scores(reward, QUERIES, RESPONSES)
    assert str(caught.value).count("raised") == 1
    assert "broken raised ZeroDivisionError" in str(caught.value)


def test_fingerprints_are_those_of_the_parts() -> None:
    assert fingerprints(length) == []
    judge = make_reward(f"{HERE}:Judge(a.txt)")
    assert fingerprints(judge) == ["contents of a.txt"]
    assert fingerprints(WeightedReward(((1.0, length), (0.5, judge)))) == ["contents of a.txt"]


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


@pytest.mark.parametrize("bad", [1e308, -1e101, 10**200])
def test_a_score_too_large_to_be_averaged_is_named(bad: float) -> None:
    message = r"gives.* must give numbers up to 1e\+100, got .* for query 'q1' and response 'x'"
    with pytest.raises(RewardError, match=message):
        checked_scores(gives([1.0, bad, 2.0]), QUERIES, RESPONSES)
    assert checked_scores(gives([1e100, -1e100, 0.0]), QUERIES, RESPONSES).tolist()[:2] == [
        1e100,
        -1e100,
    ]


def spoiling(queries: list[Query], responses: list[str]) -> list[float]:
    """Lengths; afterwards its arguments are empty."""
    lengths = [float(len(text)) for text in responses]
    queries.clear()
    responses.clear()
    return lengths


@pytest.mark.parametrize("reward", [spoiling, WeightedReward(((1.0, spoiling), (0.0, length)))])
def test_what_a_reward_does_to_its_arguments_does_not_reach_the_game(reward: Any) -> None:
    queries, responses = list(QUERIES), list(RESPONSES)
    assert score_batch(reward, queries, responses).scores.tolist() == [1.0, 1.0, 0.0]
    assert (queries, responses) == (list(QUERIES), list(RESPONSES))


def test_a_reward_that_empties_its_arguments_and_raises_is_named() -> None:
    def broken(queries: list[Query], responses: list[str]) -> list[float]:
        spoiling(queries, responses)
        return [1.0 / len(queries)]

    with pytest.raises(RewardError, match=r"broken raised ZeroDiv.*query 'q\d' and response"):
        checked_scores(broken, list(QUERIES), list(RESPONSES))


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
@pytest.mark.parametrize("name", sorted(set(REWARDS) - set(ELSEWHERE)))
def test_a_score_depends_on_its_query_and_response_only(name: str) -> None:
    # case 23: in a batch, alone, backwards and a second time, the same number
    reward = make_reward(name)
    queries = [Query("I saw a film that", "85") for _ in SAMPLES]
    batch = checked_scores(reward, queries, SAMPLES)
    alone = [checked_scores(reward, [q], [r])[0] for q, r in zip(queries, SAMPLES, strict=True)]
    backwards = checked_scores(reward, queries[::-1], SAMPLES[::-1])[::-1]
    assert batch.tolist() == alone == backwards.tolist()


def test_a_reward_that_ends_the_process_is_a_reward_that_raises() -> None:
    def leave(queries: object, responses: object) -> list[float]:
        raise SystemExit(0)

    with pytest.raises(RewardError, match=r"raised SystemExit: 0; it does so for query 'a'"):
        checked_scores(leave, [Query("a")], ["b"])
