"""Which tokens only a template may write, and where a text spells one of them out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True, eq=False)
class SpecialTokens:
    """The added tokens of a tokenizer: those that it finds in a text by their whole name.

    Attributes:
        names: all of them, by id.
        special: those that no query and no response may become.
        unknown: special ones that stand for what the vocabulary has not: any text may become one.
        control: those of `special` that the tokenizer itself takes for text, and a chat template
            uses as marks.
    """

    names: Mapping[int, str] = field(default_factory=dict)
    special: frozenset[int] = frozenset()
    unknown: frozenset[int] = frozenset()
    control: frozenset[int] = frozenset()

    def among(self, ids: Iterable[int]) -> tuple[int, ...]:
        """Return the special tokens among ids, in order, without those for what is unknown."""
        return tuple(token for token in ids if token in self._guarded)

    def spelled_in(self, text: str) -> bool:
        """Whether a text has the name of a special token in it."""
        return self._pattern is not None and self._pattern.search(text) is not None

    def cuts(self, text: str, spans: Sequence[tuple[int, int]]) -> Iterator[int]:
        """Yield where to cut a text so that no name that begins or ends in a span stays whole."""
        for match in self._pattern.finditer(text) if self._pattern is not None else ():
            start, end = match.span(1)
            if any(start < stop and begin < end for begin, stop in spans):
                yield start + 1

    @cached_property
    def _guarded(self) -> frozenset[int]:
        # A name of one character cannot be cut: such a character keeps its meaning everywhere.
        return frozenset(t for t in self.special - self.unknown if len(self.names[t]) > 1)

    @cached_property
    def _pattern(self) -> re.Pattern[str] | None:
        """Finds every place where a name begins, also inside another; the longest first."""
        names = {self.names[token] for token in self.special if len(self.names[token]) > 1}
        choices = "|".join(map(re.escape, sorted(names, key=lambda name: (-len(name), name))))
        return re.compile(f"(?=({choices}))") if choices else None
