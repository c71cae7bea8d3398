"""Rewards for tests, named as `tests.agents.rewards:NAME`."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from cory_env.records import Query


def distinct(queries: Sequence[Query], responses: Sequence[str]) -> list[float]:
    """A score in [-1, 1) that hardly any two responses share."""
    return [
        int.from_bytes(hashlib.sha256(f"{q.text}/{r}".encode()).digest()[:4], "big") / 2**31 - 1
        for q, r in zip(queries, responses, strict=True)
    ]


def constant(queries: Sequence[Query], responses: Sequence[str]) -> list[float]:
    """The same for all; a number whose mean is rounded."""
    return [0.1] * len(responses)
