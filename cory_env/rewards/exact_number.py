"""The reward of exactly right answers: the final number of a response against the query's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from cory_env.records import Query

MARKER = "####"
_NUMBER = re.compile(
    r"""
    (?:(?<![\w).])(?P<minus>[-\u2212]))?     # a minus sign; after a word or number it is a dash
    [$\u20ac\u00a3\u00a5]?
    (?P<inner>(?<=[$\u20ac\u00a3\u00a5])[-\u2212])?
    (?P<digits>
        [0-9]{1,3}(?:,[0-9]{3})+(?![0-9])    # 1,234,567
        | [0-9]+
        | (?<![0-9])(?=\.[0-9])              # .5
    )
    (?P<fraction>\.[0-9]+)?                  # without digits the full stop ends a sentence
    """,
    re.VERBOSE,
)


@dataclass(frozen=True)
class ExactNumber:
    """Score 1.0 if the response's final number equals the query's answer in value, else 0.0."""

    def __call__(self, queries: Sequence[Query], responses: Sequence[str]) -> list[float]:
        """Return one score for each response, 0.0 or 1.0.

        Raises:
            ValueError: if a query has no answer, or one without a number.
        """
        pairs = zip(queries, responses, strict=True)
        return [float(extract_number(text) == _answer(query)) for query, text in pairs]


def extract_number(text: str) -> Decimal | None:
    """Read the final number of a text.

    That is the first number after the last `####` if there is one there, else the last number of
    the text. Thousands commas, a minus sign, decimals and a currency sign in front are understood;
    a full stop behind is not part of it. There are no exponents and no fractions such as 3/4.

    Returns:
        The number, or None if the text has none. No text raises.
    """
    _, marker, behind = text.rpartition(MARKER)
    marked = _NUMBER.search(behind) if marker else None
    if marked is not None:
        return _value(marked)
    matches = list(_NUMBER.finditer(text))
    return _value(matches[-1]) if matches else None


def _value(match: re.Match[str]) -> Decimal:
    digits = match["digits"].replace(",", "") + (match["fraction"] or "")
    value = Decimal(digits)
    # copy_negate: unary minus would round a long number to the context's precision.
    return value.copy_negate() if match["minus"] or match["inner"] else value


def _answer(query: Query) -> Decimal:
    answer = None if query.answer is None else extract_number(query.answer)
    if answer is None:
        raise ValueError(
            f"exact_number needs queries with a number as answer, got {query.answer!r} "
            f"for query {query.text[:200]!r}"
        )
    return answer
