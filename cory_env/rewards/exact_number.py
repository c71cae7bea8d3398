"""The reward of exactly right answers: the final number of a response against the query's.

`extract_number` says which number of a text is its answer, `ExactNumber` compares by value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, localcontext

from cory_env.records import Query

MARKER = "####"

_SIGN = "[-\u2212\u2010\u2011\u2013\ufe63\uff0d]"
"""Characters that people type for a minus."""
_CURRENCY = r"(?:[$\u20ac\u00a3\u00a5\u20b9\u20a9\u20bd\u20b1\u00a2]|\b(?:USD|EUR|GBP|INR|Rs\.?))"
_FRACTION_SIGN = "[\u00bc-\u00be\u2150-\u215e]"
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_LETTER_SCALES = {"k": 3, "m": 6, "b": 9}
_MOST_PAIRS = 30
"""Without a limit a list such as 12,34,12,34 would be read to its end from each of its numbers."""
_NUMBER = re.compile(
    rf"""
    (?: (?<![^\W_])(?<![).]) (?P<minus>{_SIGN})   # after a word or a number it is a dash
      | \b (?P<negative>negative) \s+ )?
    (?P<currency>{_CURRENCY}[ ]?)?
    (?(currency)(?P<inner>{_SIGN})?)
    (?(currency)|(?<![^\W_]))                     # m2 and CO2 are words
    (?<![0-9]\.)(?P<digits>
        [0-9]{{1,3}}(?:,[0-9]{{3}})+(?![0-9])     # 1,234,567
      | [0-9]{{1,2}}(?:,[0-9]{{2}}){{1,{_MOST_PAIRS}}},[0-9]{{3}}(?![0-9])  # 12,34,567, India
      | [0-9]+
      | (?<![^\W_])(?<!\.)(?=\.[0-9])             # .5
    )
    (?P<fraction>\.[0-9]+)?                       # without digits the full stop ends a sentence
    (?P<exponent>[eE][+-]?[0-9]{{1,3}}(?![^\W_]))?
    (?: [ ](?P<above>[0-9]{{1,9}})(?=/[0-9]) )?   # 2 1/2
    (?: /(?P<below>[0-9]{{1,9}})(?![0-9]) )?      # 3/4
    (?P<other>                                    # what makes it something else than one number
        (?: (?:/|:|[ ]:[ ]|\.|\^-?)[0-9]+ | [\u00b2\u00b3\u00b9\u2070-\u2079]
          | [ ]?{_FRACTION_SIGN} )+
    )?
    (?P<scale> (?:[ -]? (?:{"|".join(_SCALES)})s?\b){{1,2}} )?
    (?(currency)(?-i:(?P<letter>[kKMB]|b(?=n))n?(?![^\W_]))?)   # $5k; $5m may be a price per metre
    """,
    re.VERBOSE | re.IGNORECASE,
)
_BOXED = re.compile(r"\\f?boxed\s*\{?")
_STATED = re.compile(
    r"\banswers?\b[^.!?\n0-9]{0,60}?"
    r"(?:\b(?:is|are|was|were|be|equals)\b(?!\s+not\b)|=|(?P<colon>:))",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"[.!?](?=\s|$)|\n")
_OPERATOR = re.compile(
    rf"%?(?:\s+(?:[+*/\u00d7\u00b7\u00f7x]|{_SIGN})\s+|[+*\u00d7\u00b7\u00f7])[$(]?[0-9.]"
)
_CALCULATION = re.compile(r"<<([^<>]*)>>(?=([-$]?\.?[0-9])?)")
_LATEX = (
    (re.compile(r"(?<=[0-9])(?=\\[dt]?frac)"), " "),
    (re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}"), r"\1/\2 "),
    (re.compile(r"\^\s*\{\s*(-?[0-9]+)\s*\}"), r"^\1"),
    (re.compile(r"\{,\}|,\\!"), ","),
    (re.compile(r"\\[,;: ]|~"), "\u2009"),
    (re.compile(r"\\([$%#&_{}])"), r"\1"),
    (re.compile(r"\\(?:times|cdot)(?![A-Za-z])"), " \u00d7 "),
    (re.compile(r"\\[A-Za-z]+|\\[()\[\]!\\]"), " "),
    (re.compile(r"[{}]"), " "),
)
"""Patterns and what stands for them, in this order."""
_MOST_BOXES = 8
_LONGEST_NUMERATOR = 30
_UNIT_POWER = re.compile(r"(?<=[A-Za-z)])\^-?[0-9]+")
_GROUP_SIGN = re.compile(r"(?<=[0-9])[\u00a0\u202f\u2009'\u2019_](?=[0-9]{3}(?![0-9]))")
_SPACED = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?: [0-9]{3}(?![0-9]))++")


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

    def check_queries(self, queries: Iterable[Query]) -> None:
        """Refuse queries that could not be scored, before anybody has written a response.

        Raises:
            ValueError: if a query has no answer, or one without a number.
        """
        for query in queries:
            _answer(query)


def extract_number(text: str) -> Decimal | None:
    r"""Read the number that a text gives as its answer.

    It is looked for in this order: behind the last `####`, in the last `\boxed{}`, behind the last
    words such as "the answer is" or "Answer:"; without any of these it is the last number. Of an
    equation behind such a mark it is what the calculation comes to: 18 in "the answer is 9 * 2 =
    18" and in "#### 18 = 9 * 2". Where "Answer:" is followed by a solution of several steps, it is
    the last number of these.

    Understood are thousands separators (a plain space only in front of a last 000), minus signs,
    decimals, exponents (1.5e3), fractions and mixed numbers (3/4, 2 1/2), scales (2 million, $5k),
    currency signs, units, `<<..>>` marks, LaTeX and bold print. A percentage is its figure: 50 in
    50%. Digits in a word are no number (m2, CO2).

    What is not one number is none, and no other number is taken for it: times and ratios (3:45),
    dates (1/2/2024), versions, powers (10^3), and a calculation without its result behind a mark.

    Returns:
        The number, or None if the text has none. No text raises.
    """
    _, marker, behind = text.rpartition(MARKER)
    candidates = [behind] if marker else []
    boxes = [*_BOXED.finditer(text)][-_MOST_BOXES:]
    candidates += [_in_braces(text, match) for match in reversed(boxes)]
    for candidate in candidates:
        if (found := _leading(_plain(candidate))) is not None:
            return found.value
    text = _plain(text)
    end = len(text)
    for match in reversed([*_STATED.finditer(text)]):
        behind = text[match.end() : end]
        found = _behind_colon(behind) if match["colon"] else _leading(behind)
        if found is not None:
            return found.value
        end = match.start()
    found = _last(text)
    return None if found is None else found.value


@dataclass(frozen=True)
class _Found:
    """A number in a text: where it stands, and its value if it is a single number."""

    start: int
    end: int
    value: Decimal | None
    calculated: bool = False
    """Whether it stands in a calculation, or is the result of one."""


def _plain(text: str) -> str:
    """Take away what stands round the numbers: LaTeX, `<<..>>` marks, grouping signs."""
    text = _CALCULATION.sub(_calculated, text)
    for pattern, plain in _LATEX:
        text = pattern.sub(plain, text)
    text = _GROUP_SIGN.sub(",", _UNIT_POWER.sub("", text))
    return _SPACED.sub(_joined, text)


def _joined(match: re.Match[str]) -> str:
    # The whole row of numbers is taken at once, so that none of them is read twice.
    number, zeros, others = match[0].rpartition(" 000")
    return f"{number}{zeros}".replace(" ", ",") + others


def _calculated(match: re.Match[str]) -> str:
    # The mark repeats the number behind it; where a response was cut there, it is the number.
    return "" if match[2] else f" {match[1].rpartition('=')[2]} "


def _in_braces(text: str, match: re.Match[str]) -> str:
    """The text from an opening brace to the one that closes it, or to the end."""
    if not match[0].endswith("{"):
        return text[match.end() :]
    depth = 1
    for place in range(match.end(), len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[match.end() : place]
    return text[match.end() :]


def _leading(text: str) -> _Found | None:
    """The number that a text begins with, perhaps behind words or a calculation."""
    found = next(_numbers(text), None)
    if found is None:
        return None
    end = _SENTENCE_END.search(text, found.end)
    sentence = text[: end.start() if end else len(text)]
    left, equals, _ = sentence.partition("=")
    if equals and len([*_numbers(left)]) != 1:
        start = sentence.rindex("=") + 1
        result = next(_numbers(sentence, start), _Found(start, start, None))
        return replace(result, calculated=True)
    if not equals and _OPERATOR.match(text, found.end):
        return replace(found, value=None, calculated=True)
    return found


def _behind_colon(text: str) -> _Found | None:
    """The number right behind a colon; else, in a solution of several steps, the last one."""
    found = _leading(text)
    if found is None or (not found.calculated and not re.search(r"\w", text[: found.start])):
        return found
    return _last(text)


def _last(text: str) -> _Found | None:
    found = [*_numbers(text)]
    return found[-1] if found else None


def _numbers(text: str, start: int = 0) -> Iterator[_Found]:
    for match in _NUMBER.finditer(text, start):
        yield _Found(match.start(), match.end(), _value(match))


def _value(match: re.Match[str]) -> Decimal | None:
    if match["other"] or (match["above"] and not match["below"]):
        return None
    scale = _scale(match)
    digits = match["digits"].replace(",", "") + (match["fraction"] or "")
    # As text: arithmetic would round a long number to the context's precision.
    power = int((match["exponent"] or "e0")[1:]) + scale
    value = Decimal(f"{digits}e{power}")
    if match["below"]:
        quotient = _quotient(match, value, scale)
        if quotient is None:
            return None
        value = quotient
    negative = match["minus"] or match["negative"] or match["inner"]
    return value.copy_negate() if negative else value


def _scale(match: re.Match[str]) -> int:
    words = re.findall("|".join(_SCALES), (match["scale"] or "").lower())
    return sum(_SCALES[word] for word in words) + _LETTER_SCALES.get(
        (match["letter"] or "").lower(), 0
    )


def _quotient(match: re.Match[str], value: Decimal, scale: int) -> Decimal | None:
    """The value of `a/b`, or of `n a/b`; None where there is none."""
    below = Decimal(match["below"])
    if below == 0 or len(match["digits"]) > _LONGEST_NUMERATOR:
        return None
    with localcontext() as context:
        # Fixed, so that equal fractions are equal: 1/3 and 2/6 are rounded alike.
        context.prec = 60
        if not match["above"]:
            return value / below
        return value + Decimal(match["above"]).scaleb(scale) / below


def _answer(query: Query) -> Decimal:
    answer = None if query.answer is None else extract_number(query.answer)
    if answer is None:
        raise ValueError(
            f"exact_number needs queries with a number as answer, got {query.answer!r} "
            f"for query {query.shown}"
        )
    return answer
