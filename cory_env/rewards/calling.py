"""Call a slow or remote reward well: in parts, side by side, with a time limit, and never twice.

`call_with("my_module:judge", CallSettings(workers=8, batch_size=4, timeout=30, retries=2))` is a
reward like any other. Scores keep their order whatever ends first.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cory_env.records import Query
from cory_env.rewards.base import (
    Reward,
    RewardError,
    RewardSpec,
    WeightedReward,
    as_scores,
    culprit,
    listed,
    make_reward,
    reward_name,
    shown,
)
from cory_env.rewards.cache import ScoreCache, reward_identity, score_key

PROGRESS_AFTER = 3.0
"""Seconds after which a call shows how far it is."""
LONGEST_PAUSE = 60.0

Rows = list[int]
"""Places of some responses in their batch."""
Box = queue.SimpleQueue[tuple[Any, BaseException | None]]
"""Where the thread of a call leaves what the reward gave, or raised."""
Finished = Generator[tuple[Rows, NDArray[np.float64]], None, None]
"""Rows and their scores, in the order in which they are finished."""


@dataclass(frozen=True)
class CallSettings:
    """How a reward is called. None of it may change what it says.

    Attributes:
        workers: calls side by side, each in a thread; the reward must bear that.
        batch_size: responses in a call; None: the batch, shared evenly between the workers.
        timeout: seconds after which a call has failed; None: never. A call cannot be stopped from
            outside: it goes on behind our back, and what it gives is not looked at.
        retries: how often a call that raised or took too long is repeated, after pauses of
            0.5, 1, 2, ... seconds.
        cache: file of scores already known; None: none.
        progress: show a bar when a batch takes long.
    """

    workers: int = 1
    batch_size: int | None = None
    timeout: float | None = None
    retries: int = 0
    cache: Path | None = None
    progress: bool = False

    def __post_init__(self) -> None:
        for name, lowest in (("workers", 1), ("batch_size", 1), ("retries", 0)):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < lowest):
                raise ValueError(f"{name} must be a whole number from {lowest}, got {value!r}")
        if self.timeout is not None and not 0 < self.timeout < threading.TIMEOUT_MAX:
            raise ValueError(f"timeout must be positive seconds, got {self.timeout!r}")


def call_with(reward: RewardSpec, settings: CallSettings) -> Reward:
    """Let a reward be called by these settings; of a weighted sum each part.

    Args:
        reward: a name, a weighted sum or a callable.
        settings: those that say nothing leave the reward as it is.

    Raises:
        ValueError: if the reward cannot be read, or the cache cannot be used.
    """
    reward = make_reward(reward)
    if settings == CallSettings(progress=settings.progress):
        return reward
    if isinstance(reward, WeightedReward):
        called = tuple((weight, call_with(part, settings)) for weight, part in reward.parts)
        return replace(reward, parts=called)
    return CalledReward(reward, settings)


def pause_before(retry: int, first: float) -> float:
    """Seconds to wait before the retry of a number from 1: twice as long each time."""
    return min(first * 2.0 ** min(retry - 1, 100), LONGEST_PAUSE)


class CalledReward:
    """A reward that is called by `CallSettings`."""

    def __init__(self, reward: Reward, settings: CallSettings, *, first_pause: float = 0.5) -> None:
        """Wrap a reward.

        Args:
            reward: what gives the scores.
            settings: how it is called.
            first_pause: seconds before the first retry.

        Raises:
            ValueError: if the cache cannot be used.
        """
        self.reward = reward
        self.settings = settings
        self.name = reward_name(reward)
        self._first_pause = first_pause
        self._cache = None if settings.cache is None else ScoreCache(settings.cache)
        self._identity = "" if settings.cache is None else reward_identity(reward)

    @property
    def fingerprint(self) -> str | None:
        """What the reward itself says of its contents."""
        found = getattr(self.reward, "fingerprint", None)
        return found if isinstance(found, str) else None

    def __call__(self, queries: Sequence[Query], responses: Sequence[str]) -> NDArray[np.float64]:
        """Return the scores, [B].

        Raises:
            RewardError: if a call failed as often as it may, or gave no finite numbers; scores that
                were finished before are in the cache.
        """
        if len(queries) != len(responses):
            raise ValueError(f"got {len(queries)} queries for {len(responses)} responses")
        scores = np.zeros(len(responses))
        if self._cache is None:
            for rows, given in self._scored(list(range(len(responses))), queries, responses):
                scores[rows] = given
            return scores
        pairs = zip(queries, responses, strict=True)
        keys = [score_key(self._identity, query, response) for query, response in pairs]
        known = self._cache.get(keys)
        # Equal rows have equal scores: one of them is asked for.
        places = {key: row for row, key in reversed(list(enumerate(keys))) if key not in known}
        for rows, given in self._scored(sorted(places.values()), queries, responses):
            fresh = {keys[row]: float(score) for row, score in zip(rows, given, strict=True)}
            self._cache.put(fresh)
            known |= fresh
        return np.array([known[key] for key in keys], dtype=np.float64)

    def _scored(self, rows: Rows, queries: Sequence[Query], responses: Sequence[str]) -> Finished:
        """Score rows in parts."""
        workers = self.settings.workers
        size = self.settings.batch_size or max(1, -(-len(rows) // workers))
        parts = [rows[start : start + size] for start in range(0, len(rows), size)]

        def call(part: Rows, stop: threading.Event) -> NDArray[np.float64]:
            return self._answer([queries[i] for i in part], [responses[i] for i in part], stop)

        finished = _in_turn(parts, call) if workers == 1 else _abreast(parts, call, workers)
        with closing(finished), self._bar(len(rows)) as bar:
            for part, scores in finished:
                yield part, scores
                if bar is not None:
                    bar.update(len(part))

    def _answer(
        self, queries: Sequence[Query], responses: Sequence[str], stop: threading.Event
    ) -> NDArray[np.float64]:
        """Call the reward for some rows until it answers, or has failed too often."""
        for retry in range(self.settings.retries + 1):
            if retry and self._paused(pause_before(retry, self._first_pause), stop):
                break  # nobody waits for the answer any more
            try:
                given = self._in_time(queries, responses)
            except (Exception, SystemExit) as error:
                failed: BaseException = error
            else:
                return as_scores(self.name, given, queries, responses)
        raise self._failure(failed, queries, responses) from failed

    def _paused(self, seconds: float, stop: threading.Event) -> bool:
        """Wait; True if the whole call is given up meanwhile."""
        return stop.wait(seconds)

    def _in_time(self, queries: Sequence[Query], responses: Sequence[str]) -> Any:
        """Call the reward once, with lists of its own; raises `_TooSlowError` if it is too slow."""
        if self.settings.timeout is None:
            return listed(self.reward(list(queries), list(responses)))
        box: Box = queue.SimpleQueue()

        def run() -> None:
            try:
                box.put((listed(self.reward(list(queries), list(responses))), None))
            except BaseException as error:
                box.put((None, error))

        # A daemon, so that a call that never ends does not keep the process from ending.
        threading.Thread(target=run, name=f"reward {self.name}", daemon=True).start()
        try:
            given, error = self._taken(box)
        except queue.Empty:
            raise _TooSlowError from None
        if error is not None:
            raise error
        return given

    def _taken(self, box: Box) -> tuple[Any, BaseException | None]:
        """What a call gave; raises `queue.Empty` if its time is over."""
        return box.get(timeout=self.settings.timeout)

    def _failure(
        self, error: BaseException, queries: Sequence[Query], responses: Sequence[str]
    ) -> RewardError:
        tries = f" in each of {self.settings.retries + 1} tries" if self.settings.retries else ""
        first = shown(queries[0], responses[0])
        if isinstance(error, _TooSlowError):
            return RewardError(
                f"reward {self.name} took longer than {self.settings.timeout:g} seconds{tries} for "
                f"a call of {len(responses)}, which begins with {first}"
            )
        alone = len(responses) == 1
        where = f"it does so for {first}" if alone else culprit(self._in_time, queries, responses)
        return RewardError(
            f"reward {self.name} raised {type(error).__name__}: {error}{tries}; {where}"
        )

    def _bar(self, total: int) -> AbstractContextManager[Any]:
        if not self.settings.progress:
            return nullcontext()
        from tqdm import tqdm

        return tqdm(
            total=total,
            desc=f"reward {self.name}",
            unit="response",
            delay=PROGRESS_AFTER,
            leave=False,
        )


class _TooSlowError(Exception):
    """A call was not finished in its time."""


Call = Callable[[Rows, threading.Event], NDArray[np.float64]]


def _in_turn(parts: Sequence[Rows], call: Call) -> Finished:
    """Call for each part in the thread of the caller."""
    stop = threading.Event()
    for part in parts:
        yield part, call(part, stop)


def _abreast(parts: Sequence[Rows], call: Call, workers: int) -> Finished:
    """Call for parts in several threads; yield each when it is finished.

    An error of a call is raised here, and so is a Ctrl-C; no further calls are begun then.
    """
    waiting: queue.SimpleQueue[Rows] = queue.SimpleQueue()
    for part in parts:
        waiting.put(part)
    finished: queue.SimpleQueue[tuple[Rows, Any]] = queue.SimpleQueue()
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            try:
                part = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                finished.put((part, call(part, stop)))
            except BaseException as error:
                finished.put((part, error))

    for _ in range(min(workers, len(parts))):
        threading.Thread(target=work, daemon=True).start()
    try:
        for _ in parts:
            part, result = finished.get()
            if isinstance(result, BaseException):
                raise result
            yield part, result
    finally:
        stop.set()
