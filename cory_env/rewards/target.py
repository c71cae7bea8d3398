"""The reward of the toy task: does the response begin with the goal letter?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cory_env.records import Query


@dataclass(frozen=True)
class FirstLetter:
    """Score 1.0 if the first word of the response is the query's answer, else 0.0."""

    def __call__(self, queries: Sequence[Query], responses: Sequence[str]) -> list[float]:
        """Return one score for each response, 0.0 or 1.0."""
        pairs = zip(queries, responses, strict=True)
        return [float(response.split()[:1] == [query.answer]) for query, response in pairs]
