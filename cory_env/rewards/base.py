"""What a reward is, how several are added, and the one place where scores are checked.

A reward is any callable `(queries, responses) -> B finite floats`, called on whole batches; the
queries carry the answers. The score of a response must not depend on its batch.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cory_env.records import Query
from cory_env.registry import resolve

Reward = Callable[[Sequence[Query], Sequence[str]], Sequence[float] | NDArray[np.float64]]
RewardSpec = str | Reward
_TERM = re.compile(
    r"(?:([+-]?\s*\d*\.?\d+(?:[eE][+-]?\d+)?)\s*\*)?\s*([A-Za-z_][\w.]*(?::[\w.]+)?)"
)


class RewardError(ValueError):
    """A reward raised, or gave something that is not one finite number for each response."""


@dataclass(frozen=True)
class WeightedReward:
    """A weighted sum of rewards.

    Attributes:
        parts: (weight, reward) pairs.
    """

    parts: tuple[tuple[float, Reward], ...]

    def __call__(self, queries: Sequence[Query], responses: Sequence[str]) -> NDArray[np.float64]:
        """Return sum_k weight_k * score_k, [B]; every part is checked by itself."""
        total = np.zeros(len(responses))
        for weight, reward in self.parts:
            total += weight * checked_scores(reward, queries, responses)
        return total


def make_reward(spec: RewardSpec) -> Reward:
    """Build a reward from its description.

    Args:
        spec: a name in REWARDS, `module:name` (a function, an object, or a class that is built
            without arguments), a sum such as "0.7*vader + 0.3*module:name", or a callable, which is
            returned.

    Raises:
        ValueError: if it cannot be read, or a name is unknown.
    """
    if not isinstance(spec, str):
        if not callable(spec):
            raise ValueError(f"reward must be a name, a weighted sum or a callable, got {spec!r}")
        return spec
    terms = _terms(spec)
    if len(terms) == 1 and terms[0][0] == 1.0:
        return _named(terms[0][1])
    return WeightedReward(tuple((weight, _named(name)) for weight, name in terms))


def _terms(spec: str) -> list[tuple[float, str]]:
    terms, rest = [], spec.strip()
    while True:
        match = _TERM.match(rest)
        if match is None:
            raise ValueError(
                f"reward must look like 'name' or '0.7*name + 0.3*module:name', got {spec!r}"
            )
        weight = float((match.group(1) or "1").replace(" ", ""))
        terms.append((weight, match.group(2)))
        rest = rest[match.end() :].strip()
        if not rest:
            return terms
        if not rest.startswith("+"):
            raise ValueError(f"reward terms must be joined by '+', got {spec!r}")
        rest = rest[1:].strip()


def _named(name: str) -> Reward:
    from cory_env.rewards import REWARDS  # the table imports the rewards, which import this module

    found = resolve(name, REWARDS, "reward")
    try:
        reward: Any = found() if inspect.isclass(found) else found
    except TypeError as error:
        raise ValueError(f"reward {name!r} cannot be built without arguments ({error})") from error
    if not callable(reward):
        raise ValueError(f"reward {name!r} must be callable, got {type(reward).__name__}")
    return reward  # type: ignore[no-any-return]


def checked_scores(
    reward: Reward, queries: Sequence[Query], responses: Sequence[str]
) -> NDArray[np.float64]:
    """Call a reward once and return its scores, [B].

    Args:
        reward: the reward.
        queries: B queries.
        responses: B response texts.

    Raises:
        RewardError: if the reward raises, gives another number of scores, or a score is not a
            finite number; the message shows the query and the response.
    """
    if len(queries) != len(responses):
        raise ValueError(f"got {len(queries)} queries for {len(responses)} responses")
    if not responses:
        return np.zeros(0)
    try:
        given = reward(queries, responses)
        scores = _as_list(given)
    except Exception as error:
        culprit = _culprit(reward, queries, responses)
        raise RewardError(
            f"reward {_name(reward)} raised {type(error).__name__}: {error}; {culprit}"
        ) from error
    if scores is None or len(scores) != len(responses):
        got = type(given).__name__ if scores is None else f"{len(scores)} scores"
        raise RewardError(
            f"reward {_name(reward)} must give {len(responses)} scores, got {got}; "
            f"the first of the batch is {_shown(queries[0], responses[0])}"
        )
    rows = zip(scores, queries, responses, strict=True)
    return np.array([_number(reward, *row) for row in rows], dtype=np.float64)


def _as_list(given: Any) -> list[Any] | None:
    """The scores of a reward as a list, or None for what holds no scores one by one."""
    single = getattr(given, "ndim", 1) == 0  # an array of one number says that it can be listed
    if isinstance(given, str | bytes) or single or not isinstance(given, Iterable):
        return None
    return list(given)


def _number(reward: Reward, score: Any, query: Query, response: str) -> float:
    try:
        # float("1.0") works, but a reward that gives text has a bug that should show.
        value = math.nan if isinstance(score, str | bytes) else float(score)
    except (OverflowError, TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise RewardError(
            f"reward {_name(reward)} must give finite numbers, got {score!r} for "
            f"{_shown(query, response)}"
        )
    return value


def _culprit(reward: Reward, queries: Sequence[Query], responses: Sequence[str]) -> str:
    for query, response in zip(queries, responses, strict=True):
        try:
            reward([query], [response])
        except Exception:
            return f"it does so for {_shown(query, response)}"
    return (
        f"it does so for a batch of {len(responses)} only, which begins with "
        f"{_shown(queries[0], responses[0])}"
    )


def _shown(query: Query, response: str) -> str:
    return f"query {query.text[:200]!r} and response {response[:200]!r}"


def _name(reward: Reward) -> str:
    name = getattr(reward, "__qualname__", None)
    return str(name) if name is not None else type(reward).__name__
