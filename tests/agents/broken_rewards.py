"""Rewards that fail in every way, named as `tests.agents.broken_rewards:NAME`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from cory_env.records import Query

CALLS = {"n": 0, "good": 0}
"""How often a reward was called, and how many of the first calls go well."""

VALUES: dict[str, Any] = {
    "text": "0.5",
    "none_inside": None,
    "nan": math.nan,
    "infinite": math.inf,
    "a_list": [1.0],
}


def _good(queries: Sequence[Query], responses: Sequence[str]) -> list[float] | None:
    CALLS["n"] += 1
    if CALLS["n"] <= CALLS["good"]:
        return [float(r.split()[:1] == [q.answer]) for q, r in zip(queries, responses, strict=True)]
    return None


def raises(queries: Sequence[Query], responses: Sequence[str]) -> Any:
    good = _good(queries, responses)
    if good is None:
        raise RuntimeError("no scorer\nat all")
    return good


def too_short(queries: Sequence[Query], responses: Sequence[str]) -> Any:
    good = _good(queries, responses)
    return [0.0] * (len(responses) - 1) if good is None else good


def nothing(queries: Sequence[Query], responses: Sequence[str]) -> Any:
    return _good(queries, responses)


def _giving(name: str) -> Any:
    def reward(queries: Sequence[Query], responses: Sequence[str]) -> Any:
        good = _good(queries, responses)
        return [*([0.0] * (len(responses) - 1)), VALUES[name]] if good is None else good

    return reward


text = _giving("text")
none_inside = _giving("none_inside")
nan = _giving("nan")
infinite = _giving("infinite")
a_list = _giving("a_list")
