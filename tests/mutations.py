"""Broken inputs for parsers: good examples, changed a little, a lot, or beyond recognition."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

WORDS = """
0 -0 -1 1e999 -1e999 NaN Infinity -Infinity 1e-999 0x1F 1_0 0b 0o9 1:99 2026-99-99
null true None ~ {} [] ' , : ; # #### $ % * + - ../ / %s {0} .. . :: *a <<:*a
__class__ query answer format iteration
"""
NASTY = [
    *WORDS.split(),
    *(f"!!{kind} x" for kind in ("float", "bool", "binary", "timestamp")),
    *(
        "",
        " ",
        "\n",
        "\r",
        "\t",
        '"',
        '""',
        "---\n---",
        "- ",
        "!!int ''",
        "&a [*a]",
        "? {}",
        "? []",
    ),
    "!!python/object/apply:os.getcwd []",
    *("9" * 400, "9" * 5000, "[" * 2000, '{"a":' * 2000, "(" * 500),
    *("\\ud800", "\\u0000", "\x00", "\ufeff", "\u2028", "\u0664", "\u221212", "\U0001f600", "é"),
]
"""What parsers stumble over."""


def mutants(examples: Sequence[str], n: int, seed: int) -> Iterator[str]:
    """`n` broken texts.

    Args:
        examples: good inputs.
        n: how many.
        seed: of the generator, which is this function's own.
    """
    rng = random.Random(seed)
    for _ in range(n):
        text = rng.choice(examples) if rng.random() < 0.9 else noise(rng)
        for _ in range(rng.choice((0, 1, 1, 1, 2, 3, 8))):
            text = _changed(rng, text, examples)
        yield text


def noise(rng: random.Random, longest: int = 30) -> str:
    """Characters of every plane, with the frequent ones more frequent."""
    ranges = (
        (32, 126),
        (0, 31),
        (128, 0x2FF),
        (0x2000, 0x2FFF),
        (0x1F300, 0x1FAFF),
        (0xE000, 0xFFFF),
    )
    weights = (20, 3, 3, 3, 2, 1)
    picked = rng.choices(ranges, weights, k=rng.randrange(longest))
    return "".join(chr(rng.randint(*bounds)) for bounds in picked)


def _changed(rng: random.Random, text: str, examples: Sequence[str]) -> str:
    at = rng.randint(0, len(text))
    to = min(len(text), at + rng.choice((0, 1, 1, 2, 5, 20)))
    kind = rng.randrange(6)
    if kind == 0:
        return text[:at] + text[to:]
    if kind == 1:
        return text[:at] + rng.choice(NASTY) + text[to:]
    if kind == 2:
        return text[:at] + noise(rng, 5) + text[to:]
    if kind == 3:
        return text[:at] + text[at:to] * rng.choice((2, 3, 50)) + text[to:]
    if kind == 4:
        return text[:at]
    other = rng.choice(examples)
    return text[:at] + other[rng.randint(0, len(other)) :]


def as_bytes(text: str, rng: random.Random) -> bytes:
    """The text in a file: mostly UTF-8, sometimes another encoding or a broken byte."""
    data = text.encode("utf-8", "surrogatepass")
    if rng.random() < 0.1:
        at = rng.randint(0, len(data))
        return data[:at] + bytes([rng.randrange(256)]) + data[at:]
    return text.encode("utf-16") if rng.random() < 0.02 else data
