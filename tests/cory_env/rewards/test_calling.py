"""Tests of cory_env/rewards/calling.py; what overlaps is shown by barriers, never by a clock."""

from __future__ import annotations

import os
import queue
import re
import signal
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cory_env.records import Query
from cory_env.rewards import (
    RewardError,
    WeightedReward,
    calling,
    checked_scores,
    make_reward,
    score_batch,
)
from cory_env.rewards.calling import CalledReward, CallSettings, call_with, pause_before

N = 7
QUERIES = [Query(f"q{i}", str(i)) for i in range(N)]
RESPONSES = [f"r{i}" for i in range(N)]
WAIT = 30.0
"""Seconds after which a test that waits for another thread gives up."""


def number(queries: Sequence[Query], responses: Sequence[str]) -> list[float]:
    """The number in the response, in which no two rows agree."""
    return [float(response.removeprefix("r")) for response in responses]


class Recording:
    """Gives the number in the response and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self._lock = threading.Lock()
        self.fingerprint = "recording"

    def __call__(self, queries: Sequence[Query], responses: Sequence[str]) -> list[float]:
        with self._lock:
            self.asked.append(list(responses))
        assert [query.text[1:] for query in queries] == [text[1:] for text in responses]
        return number(queries, responses)


def called(reward: Any, **options: Any) -> CalledReward:
    return CalledReward(reward, CallSettings(**options), first_pause=0.0)


def scores_of(reward: Any, **options: Any) -> list[float]:
    scores: list[float] = called(reward, **options)(QUERIES, RESPONSES).tolist()
    return scores


EXPECTED = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_without_settings_a_reward_stays_itself() -> None:
    assert call_with(number, CallSettings()) is number
    assert call_with(number, CallSettings(progress=True)) is number
    weighted = make_reward("0.5*target + vader")
    assert call_with(weighted, CallSettings()) is weighted


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({"retries": 1}, [7]),
        ({"batch_size": 3}, [1, 3, 3]),
        ({"batch_size": 7}, [7]),
        ({"batch_size": 100}, [7]),
        ({"batch_size": 1}, [1] * 7),
        ({"workers": 2}, [3, 4]),
        ({"workers": 20}, [1] * 7),
        ({"workers": 3, "batch_size": 2, "timeout": WAIT}, [1, 2, 2, 2]),
    ],
)
def test_sizes_of_calls(options: dict[str, Any], asked: list[int]) -> None:
    reward = Recording()
    assert scores_of(reward, **options) == EXPECTED
    assert sorted(len(rows) for rows in reward.asked) == asked
    # every row once, neighbours together
    assert sorted(reward.asked) == sorted(
        RESPONSES[i : i + len(rows)] for rows in reward.asked for i in [int(rows[0][1:])]
    )
    assert sorted(row for rows in reward.asked for row in rows) == RESPONSES


@pytest.mark.parametrize("timeout", [None, WAIT])
def test_a_second_try_gets_what_the_first_one_spoiled(timeout: float | None) -> None:
    tries = []

    def spoiling(queries: list[Query], responses: list[str]) -> list[float]:
        scores = number(queries, responses)
        tries.append(len(responses))
        queries.clear()
        responses.clear()
        if len(tries) == 1:
            raise RuntimeError("not yet")
        return scores

    assert scores_of(spoiling, retries=1, timeout=timeout) == EXPECTED
    assert tries == [7, 7]


@settings(max_examples=40)
@given(
    st.lists(st.integers(0, 5), max_size=12),
    st.integers(1, 4),
    st.none() | st.integers(1, 5),
    st.sampled_from([None, WAIT]),
)
def test_scores_keep_their_order(
    numbers: list[int], workers: int, batch_size: int | None, timeout: float | None
) -> None:
    reward = called(number, workers=workers, batch_size=batch_size, timeout=timeout)
    queries = [Query("q")] * len(numbers)
    assert reward(queries, [f"r{n}" for n in numbers]).tolist() == numbers


@pytest.mark.case(23)
def test_a_row_alone_is_the_row_in_a_batch() -> None:
    reward = called(make_reward("vader"), workers=2, batch_size=2)
    texts = ["I loved it", "awful", "", "good good good", "so so"]
    queries = [Query("this film ")] * len(texts)
    alone = [reward([q], [t])[0] for q, t in zip(queries, texts, strict=True)]
    assert reward(queries, texts).tolist() == alone
    assert checked_scores(make_reward("vader"), queries, texts).tolist() == alone


def test_calls_overlap_and_the_last_may_end_first() -> None:
    # Nobody passes the barrier before three calls are inside; then the first waits for the others.
    together = threading.Barrier(3, timeout=WAIT)
    others_done = threading.Semaphore(0)

    def reward(queries: Sequence[Query], responses: Sequence[str]) -> list[float]:
        together.wait()
        if responses[0] == "r0":
            assert others_done.acquire(timeout=WAIT) and others_done.acquire(timeout=WAIT)
        else:
            others_done.release()
        return number(queries, responses)

    assert scores_of(reward, workers=3) == EXPECTED


def test_one_worker_calls_in_the_thread_of_the_caller() -> None:
    threads = []

    def reward(queries: Sequence[Query], responses: Sequence[str]) -> list[float]:
        threads.append(threading.current_thread())
        return number(queries, responses)

    assert scores_of(reward, batch_size=3) == EXPECTED
    assert set(threads) == {threading.current_thread()}
    scores_of(reward, workers=2)
    assert threading.current_thread() not in threads[3:]


# Retries.


class Flaky:
    """Fails a number of times for each response, then works."""

    def __init__(self, failures: int, error: type[BaseException] = ConnectionError) -> None:
        self.failures = failures
        self.error = error
        self.tries: dict[str, int] = {}

    def __call__(self, queries: Sequence[Query], responses: Sequence[str]) -> list[float]:
        first = responses[0]
        self.tries[first] = self.tries.get(first, 0) + 1
        if self.tries[first] <= self.failures:
            raise self.error("no answer")
        return number(queries, responses)


@pytest.mark.parametrize("workers", [1, 3])
def test_a_reward_that_fails_twice_and_then_works(workers: int) -> None:
    reward = Flaky(2)
    assert scores_of(reward, retries=2, workers=workers, batch_size=2) == EXPECTED
    assert reward.tries == {"r0": 3, "r2": 3, "r4": 3, "r6": 3}


@pytest.mark.parametrize("workers", [1, 3])
def test_one_retry_too_few(workers: int) -> None:
    message = r"Flaky raised ConnectionError: no answer in each of 2 tries; it does so for .*'r3'"
    with pytest.raises(RewardError, match=message) as caught:
        called(Flaky(99), retries=1, workers=workers)(QUERIES[3:4], RESPONSES[3:4])
    assert isinstance(caught.value.__cause__, ConnectionError)


def test_a_reward_error_is_retried_too_and_then_told_as_it_is() -> None:
    assert scores_of(Flaky(1, RewardError), retries=1) == EXPECTED
    with pytest.raises(RewardError, match="raised RewardError: no answer; it does so for"):
        scores_of(Flaky(9, RewardError))


def test_pauses_double_up_to_a_minute() -> None:
    assert [pause_before(i, 0.5) for i in range(1, 10)] == [0.5, 1, 2, 4, 8, 16, 32, 60, 60]
    assert pause_before(5000, 0.5) == 60


def test_every_retry_waits_first(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    def note(self: CalledReward, seconds: float, stop: threading.Event) -> bool:
        pauses.append(seconds)
        return stop.is_set()

    monkeypatch.setattr(CalledReward, "_paused", note)
    assert CalledReward(Flaky(3), CallSettings(retries=5))(QUERIES, RESPONSES).tolist() == EXPECTED
    assert pauses == [0.5, 1.0, 2.0]


def test_a_wrong_answer_is_not_asked_for_again() -> None:
    reward = Recording()

    def wrong(queries: Sequence[Query], responses: Sequence[str]) -> list[float]:
        return [*reward(queries, responses)[:-1], float("nan")]

    with pytest.raises(RewardError, match=r"finite numbers, got nan for query 'q1' and resp.*'r1'"):
        scores_of(wrong, retries=5, batch_size=2)
    assert reward.asked == [["r0", "r1"]]


# Errors.


@pytest.mark.parametrize("options", [{}, {"batch_size": 3}, {"workers": 2}, {"timeout": WAIT}])
def test_the_failing_row_is_named(options: dict[str, Any]) -> None:
    def reward(queries: Sequence[Query], responses: Sequence[str]) -> list[float]:
        if "r4" in responses:
            raise KeyError("four")
        return number(queries, responses)

    message = r"raised KeyError: 'four'; it does so for query 'q4' and response 'r4'"
    with pytest.raises(RewardError, match=message):
        scores_of(reward, **{"retries": 0, **options})


def test_an_error_stops_further_calls() -> None:
    reward = Recording()
    failing = threading.Event()

    def first_fails(queries: Sequence[Query], responses: Sequence[str]) -> list[float]:
        if responses[0] == "r0":
            failing.set()
            raise RuntimeError("broken")
        return reward(queries, responses)

    with pytest.raises(RewardError, match="broken"):
        scores_of(first_fails, batch_size=1)
    assert failing.is_set() and reward.asked == []


def test_the_number_of_queries_must_fit() -> None:
    with pytest.raises(ValueError, match="2 queries for 3 responses"):
        called(number)(QUERIES[:2], RESPONSES[:3])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "workers must be a whole number from 1, got 0"),
        ({"workers": 1.5}, "workers must be a whole number from 1, got 1.5"),
        ({"batch_size": 0}, "batch_size must be a whole number from 1, got 0"),
        ({"retries": -1}, "retries must be a whole number from 0, got -1"),
        ({"timeout": 0.0}, "timeout must be positive seconds, got 0.0"),
        ({"timeout": float("nan")}, "timeout must be positive seconds, got nan"),
        ({"timeout": float("inf")}, "timeout must be positive seconds, got inf"),
    ],
)
def test_settings_that_do_not_fit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        CallSettings(**options)


# Time limits.


class Impatient(CalledReward):
    """Finds that the time of a call is over when the reward says that it hangs."""

    def __init__(self, reward: Hanging, **options: Any) -> None:
        super().__init__(reward, CallSettings(timeout=WAIT, **options), first_pause=0.0)
        self.hanging = reward

    def _taken(self, box: Any) -> Any:
        while True:
            with suppress(queue.Empty):
                return box.get(timeout=0.001)
            if self.hanging.hangs.acquire(blocking=False):
                raise queue.Empty


class Hanging:
    """Hangs for a response, a number of times."""

    def __init__(self, text: str, times: int) -> None:
        self.text = text
        self.times = times
        self.calls = 0
        self.hangs = threading.Semaphore(0)
        self.release = threading.Event()

    def __call__(self, queries: Sequence[Query], responses: Sequence[str]) -> list[float]:
        self.calls += 1
        if self.text not in responses or not self.times:
            return number(queries, responses)
        self.times -= 1
        self.hangs.release()
        self.release.wait(WAIT)
        return [-1.0] * len(responses)  # too late: nobody may look at these


def test_a_call_that_takes_too_long_is_tried_again() -> None:
    reward = Hanging("r3", times=2)
    impatient = Impatient(reward, batch_size=2, retries=2)
    assert impatient(QUERIES, RESPONSES).tolist() == EXPECTED
    assert reward.calls == 4 + 2
    reward.release.set()


def test_a_call_that_takes_too_long_as_often_as_it_may() -> None:
    reward = Hanging("r3", times=9)
    message = (
        r"Hanging took longer than 30 seconds in each of 2 tries for a call of 2, which begins "
        r"with query 'q2' and response 'r2'"
    )
    with pytest.raises(RewardError, match=message):
        Impatient(reward, batch_size=2, retries=1)(QUERIES, RESPONSES)
    reward.release.set()


@pytest.mark.parametrize("workers", [1, 2])
def test_the_limit_is_a_number_of_seconds(workers: int) -> None:
    release = threading.Event()

    def hangs(queries: Sequence[Query], responses: Sequence[str]) -> list[float]:
        release.wait(WAIT)
        return number(queries, responses)

    with pytest.raises(RewardError, match=r"hangs took longer than 0\.01 seconds for a call of 2"):
        scores_of(hangs, workers=workers, batch_size=2, timeout=0.01)
    release.set()


def test_a_call_in_time_gives_what_it_gives_also_an_iterator() -> None:
    assert scores_of(lambda q, r: iter(number(q, r)), timeout=WAIT) == EXPECTED


# Ctrl-C.


@pytest.mark.parametrize("options", [{}, {"workers": 2}, {"timeout": WAIT}])
def test_ctrl_c_ends_the_call(options: dict[str, Any]) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
    release = threading.Event()

    def reward(queries: Sequence[Query], responses: Sequence[str]) -> list[float]:
        if "r0" in responses:
            os.kill(os.getpid(), signal.SIGINT)
        if threading.current_thread() is not threading.main_thread():
            release.wait(WAIT)
        return number(queries, responses)

    try:
        with pytest.raises(KeyboardInterrupt):
            scores_of(reward, **options)
    finally:
        signal.signal(signal.SIGINT, before)
        release.set()


# The cache.


def test_a_second_call_asks_nothing(tmp_path: Path) -> None:
    reward = Recording()
    for _ in range(2):
        assert scores_of(reward, cache=tmp_path / "scores", batch_size=4) == EXPECTED
    assert [len(rows) for rows in reward.asked] == [4, 3]


def test_only_what_is_new_is_asked_for_and_equal_rows_once(tmp_path: Path) -> None:
    reward = Recording()
    cached = called(reward, cache=tmp_path / "scores")
    assert cached(QUERIES[2:4], RESPONSES[2:4]).tolist() == [2.0, 3.0]
    rows = [5, 3, 5, 1, 2, 1]
    given = cached([QUERIES[i] for i in rows], [RESPONSES[i] for i in rows])
    assert given.tolist() == rows
    assert reward.asked == [["r2", "r3"], ["r5", "r1"]]


def test_without_a_cache_equal_rows_are_asked_for_as_they_are() -> None:
    reward = Recording()
    called(reward, batch_size=9)([QUERIES[1]] * 2, [RESPONSES[1]] * 2)
    assert reward.asked == [["r1", "r1"]]


def test_what_was_finished_before_an_error_is_kept(tmp_path: Path) -> None:
    reward = Recording()
    broken = [True]

    def sometimes(queries: Sequence[Query], responses: Sequence[str]) -> list[float]:
        if broken[0] and "r5" in responses:
            raise RuntimeError("offline")
        return reward(queries, responses)

    sometimes.fingerprint = "sometimes"  # type: ignore[attr-defined]
    cached = called(sometimes, cache=tmp_path / "scores", batch_size=2)
    with pytest.raises(RewardError, match="offline"):
        cached(QUERIES, RESPONSES)
    broken[0] = False
    assert cached(QUERIES, RESPONSES).tolist() == EXPECTED
    assert reward.asked[-2:] == [["r4", "r5"], ["r6"]]


def test_rewards_share_a_file_without_mixing_their_scores(tmp_path: Path) -> None:
    settings = CallSettings(cache=tmp_path / "scores")
    reward = call_with("2*target + 0.5*vader", settings)
    fresh = make_reward("2*target + 0.5*vader")
    texts = ["good 0", "1", "bad", "3", "", "x", "6"]
    for _ in range(2):
        got, wanted = score_batch(reward, QUERIES, texts), score_batch(fresh, QUERIES, texts)
        assert got.scores.tolist() == wanted.scores.tolist()
        assert got.parts is not None and wanted.parts is not None
        assert got.parts.keys() == wanted.parts.keys() == {"target", "vader"}
        for name, scores in wanted.parts.items():
            assert np.array_equal(got.parts[name], scores)


def test_a_damaged_cache_is_named_and_nobody_says_the_reward_raised(tmp_path: Path) -> None:
    cached = called(number, cache=tmp_path / "scores")
    cached(QUERIES, RESPONSES)
    (tmp_path / "scores").write_bytes(b"no longer a database" * 300)
    with pytest.raises(RewardError, match=r"^reward_cache .* cannot be used: file is not a datab"):
        checked_scores(cached, QUERIES, RESPONSES)


def test_a_cache_that_cannot_be_used_is_refused_when_the_reward_is_made(tmp_path: Path) -> None:
    (tmp_path / "scores").write_text("no database" * 100)
    with pytest.raises(ValueError, match=r"reward_cache .* cannot be used"):
        call_with("0.5*target + vader", CallSettings(cache=tmp_path / "scores"))
    with pytest.raises(ValueError, match=r"reward_cache cannot tell what the scores of .*<lambda>"):
        call_with(lambda q, r: [0.0], CallSettings(cache=tmp_path / "other"))


# Sums, contents and progress.


def test_each_part_of_a_sum_is_called_by_the_settings() -> None:
    one, two = Recording(), Recording()
    reward = call_with(
        WeightedReward(((1.0, one), (-1.0, two)), ("a", "b")), CallSettings(batch_size=4)
    )
    assert isinstance(reward, WeightedReward) and reward.names == ("a", "b")
    assert score_batch(reward, QUERIES, RESPONSES).scores.tolist() == [0.0] * N
    assert [len(r) for r in one.asked] == [len(r) for r in two.asked] == [4, 3]


def test_contents_shine_through() -> None:
    assert called(Recording()).fingerprint == "recording"
    assert called(number).fingerprint is None


@pytest.mark.parametrize(
    ("after", "progress", "shown"), [(0.0, True, True), (1e9, True, False), (0.0, False, False)]
)
def test_a_bar_is_shown_only_when_a_call_takes_long(
    after: float,
    progress: bool,
    shown: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(calling, "PROGRESS_AFTER", after)
    assert scores_of(number, batch_size=1, progress=progress) == EXPECTED
    assert ("reward number" in capsys.readouterr().err) == shown
