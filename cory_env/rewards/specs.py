"""The written form of a reward: "0.7*vader + 0.3*classifier(path/to/folder, label=1)".

    sum       = term { ("+" | "-") term }
    term      = [ "+" | "-" ] [ number "*" ] name [ "(" [ argument { "," argument } ] ")" ]
    name      = a key of REWARDS, or module:name
    argument  = [ keyword "=" ] value
    value     = text in quotes, or anything without spaces, quotes, commas, brackets and "="

A value without quotes is a number, True, False or None where it reads as one, else text. In quotes
it is always text; a quote inside is written twice, so that a backslash is just a backslash.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path

Scalar = str | int | float | bool | None

_NUMBER = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_WEIGHT = re.compile(rf"({_NUMBER})\s*\*\s*")
_NAME = re.compile(r"[^\W\d][\w.]*(?::[\w.]+)?")
_KEYWORD = re.compile(r"([^\W\d]\w*)\s*=\s*")
_BARE = re.compile(r"""[^\s,()='"]+""")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(rf"[+-]?{_NUMBER}")
_WORDS: dict[str, bool | None] = {
    "True": True,
    "true": True,
    "False": False,
    "false": False,
    "None": None,
    "none": None,
}
_LONGEST_INTEGER = 30
_SPACE = re.compile(r"\s*")


@dataclass(frozen=True)
class Arguments:
    """What stands in the brackets behind a name.

    Attributes:
        values: without a keyword, in order.
        named: (keyword, value) pairs in order, no keyword twice.
    """

    values: tuple[Scalar, ...] = ()
    named: tuple[tuple[str, Scalar], ...] = ()


@dataclass(frozen=True)
class RewardTerm:
    """One term of a sum.

    Attributes:
        weight: a finite number.
        name: a key of REWARDS, or `module:name`.
        arguments: None where no brackets follow the name.
    """

    weight: float
    name: str
    arguments: Arguments | None = None

    @property
    def spec(self) -> str:
        """The term without its weight, in one spelling whatever the user's was."""
        if self.arguments is None:
            return self.name
        named = (f"{keyword}={_written(value)}" for keyword, value in self.arguments.named)
        return f"{self.name}({', '.join([*map(_written, self.arguments.values), *named])})"


def parse_spec(spec: str) -> tuple[RewardTerm, ...]:
    """Read the terms of a sum, at least one.

    Raises:
        ValueError: one sentence saying what stands where something else was expected.
    """
    return _Reader(spec).terms()


def format_spec(terms: tuple[RewardTerm, ...]) -> str:
    """Write terms so that `parse_spec` gives them back."""
    parts = [t.spec if t.weight == 1.0 else f"{t.weight!r}*{t.spec}" for t in terms]
    return " + ".join(parts)


def with_absolute_paths(spec: str) -> str:
    """Write the files and folders among the arguments by their whole paths.

    A run is opened from other working directories too. An argument is taken for a path where it is
    there and has a slash, or is the first of its brackets; without one the spec stays as it is.

    Raises:
        ValueError: if the spec cannot be read.
    """
    terms = parse_spec(spec)
    changed = tuple(replace(t, arguments=_absolute(t.arguments)) for t in terms)
    return spec if changed == terms else format_spec(changed)


def _absolute(arguments: Arguments | None) -> Arguments | None:
    if arguments is None:
        return None

    def path(value: Scalar, is_first: bool) -> Scalar:
        try:
            there = isinstance(value, str) and ("/" in value or is_first) and Path(value).exists()
        except (OSError, ValueError):  # too long for a path, or with a null character
            return value
        return str(Path(str(value)).resolve()) if there and value else value

    values = tuple(path(value, i == 0) for i, value in enumerate(arguments.values))
    first = not arguments.values
    named = tuple(
        (name, path(value, first and i == 0)) for i, (name, value) in enumerate(arguments.named)
    )
    return Arguments(values, named)


def _written(value: Scalar) -> str:
    if not isinstance(value, str):
        return repr(value)
    bare = _BARE.fullmatch(value) is not None and _reads_as_text(value)
    return value if bare else '"' + value.replace('"', '""') + '"'


def _reads_as_text(value: str) -> bool:
    return value not in _WORDS and not _DECIMAL.fullmatch(value)


class _Reader:
    """Goes through a spec once, from left to right."""

    def __init__(self, spec: str) -> None:
        self.spec = spec
        self.at = 0

    def terms(self) -> tuple[RewardTerm, ...]:
        self._skip()
        sign = self._sign() or 1.0
        terms = [self._term(sign)]
        while self.at < len(self.spec):
            joined = self._sign()
            if joined is None:
                raise self._joint_error(terms[-1])
            # "a + -0.5*b" has a sign of its own behind the joint.
            terms.append(self._term(joined * (self._sign() or 1.0)))
        return tuple(terms)

    def _term(self, sign: float) -> RewardTerm:
        weight = 1.0
        if match := self._match(_WEIGHT):
            weight = float(match[1])
            if not math.isfinite(weight):
                raise ValueError(f"reward weights must be finite, got {match[1]} in {self.spec!r}")
        name = self._match(_NAME)
        if name is None:
            raise ValueError(
                f"reward must look like 'name', 'name(argument)' or "
                f"'0.7*name + 0.3*module:name', got {self.spec!r}"
            )
        self._skip()
        arguments = self._arguments(name[0]) if self._take("(") else None
        self._skip()
        return RewardTerm(sign * weight, name[0], arguments)

    def _arguments(self, name: str) -> Arguments:
        values: list[Scalar] = []
        named: dict[str, Scalar] = {}
        self._skip()
        if self._take(")"):
            return Arguments()
        while True:
            keyword = self._match(_KEYWORD)
            value = self._value(name)
            if keyword is None:
                if named:
                    raise ValueError(
                        f"reward {name!r}: arguments with a keyword must come last, got "
                        f"{_written(value)} behind {next(reversed(named))}= in {self.spec!r}"
                    )
                values.append(value)
            elif keyword[1] in named:
                raise ValueError(
                    f"reward {name!r} must get {keyword[1]} once, got it twice in {self.spec!r}"
                )
            else:
                named[keyword[1]] = value
            self._skip()
            if self._take(")"):
                return Arguments(tuple(values), tuple(named.items()))
            if not self._take(","):
                raise self._argument_error(name)
            self._skip()

    def _value(self, name: str) -> Scalar:
        for quote in ("'", '"'):
            if self._take(quote):
                return self._quoted(name, quote)
        bare = self._match(_BARE)
        if bare is None:
            raise self._argument_error(name)
        return _scalar(bare[0], self.spec)

    def _quoted(self, name: str, quote: str) -> str:
        parts = []
        while True:
            end = self.spec.find(quote, self.at)
            if end < 0:
                raise ValueError(f"reward {name!r}: a quote {quote} is not closed in {self.spec!r}")
            parts.append(self.spec[self.at : end])
            self.at = end + 1
            if not self._take(quote):
                return quote.join(parts)

    def _argument_error(self, name: str) -> ValueError:
        """What is wrong where an argument, a comma or the end of the brackets should stand."""
        rest = self.spec[self.at :]
        if not rest:
            return ValueError(f"reward {name!r}: a bracket ( is not closed in {self.spec!r}")
        return ValueError(
            f"reward {name!r} must be given as {name}(value, keyword=value), with text that has "
            f"spaces, quotes, commas, brackets or = in quotes, got {_start(rest)} in {self.spec!r}"
        )

    def _joint_error(self, before: RewardTerm) -> ValueError:
        rest = self.spec[self.at :]
        if rest.startswith(")"):
            return ValueError(f"reward: a bracket ) was never opened in {self.spec!r}")
        hint = ""
        if rest.startswith("/"):  # lvwerra/distilbert-imdb, without saying what it is
            hint = "; a folder or hub name stands in brackets, as in classifier(path/to/folder)"
        elif rest.startswith("*"):
            hint = "; a weight stands in front of its name"
        return ValueError(
            f"reward terms must be joined by '+' or '-', got {_start(rest)} behind "
            f"{before.name!r} in {self.spec!r}{hint}"
        )

    def _sign(self) -> float | None:
        """Take a sign and the space behind it; None where there is none."""
        found = None
        for sign, value in (("+", 1.0), ("-", -1.0)):
            if found is None and self._take(sign):
                found = value
        self._skip()
        return found

    def _take(self, text: str) -> bool:
        if not self.spec.startswith(text, self.at):
            return False
        self.at += len(text)
        return True

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self.spec, self.at)
        if match is not None:
            self.at = match.end()
        return match

    def _skip(self) -> None:
        self._match(_SPACE)


def _scalar(text: str, spec: str) -> Scalar:
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        if len(text) > _LONGEST_INTEGER:  # int() itself refuses some thousand digits
            raise ValueError(f"reward arguments must be shorter numbers, got {_start(text)}")
        return int(text)
    if _DECIMAL.fullmatch(text):
        value = float(text)
        if not math.isfinite(value):
            raise ValueError(f"reward arguments must be finite, got {_start(text)} in {spec!r}")
        return value
    return text


def _start(text: str) -> str:
    return repr(text if len(text) <= 30 else text[:30] + "...")
