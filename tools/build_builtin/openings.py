"""Cut the openings of the `reviews` task from the snippets set aside for the game."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import tyro
from tokenizers import Tokenizer

from tools.build_builtin.paths import DATA, write_text
from tools.build_builtin.snippets import Snippet, movie_snippets, near_duplicates, select

SPLITS = {"train": "rl_train", "validation": "rl_validation", "test": "rl_test"}
SHORTEST, LONGEST = 2, 8
"""Length of an opening in tokens of the shipped tokenizer."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of the build."""

    snippets: Path | None = None
    """The snippets' file; without it the public source distribution is downloaded."""


def opening_of(text: str, tokenizer: Tokenizer) -> str | None:
    """Cut the first words of a text.

    A length of 2 to 8 tokens is drawn by a hash of the text, and the longest beginning of whole
    words that is no longer is taken, or the shortest possible one.

    Returns:
        The beginning, without a space at its end, leaving at least one word; or None if no
        beginning has 2 to 8 tokens.
    """
    drawn = _digest(text)[0] % (LONGEST - SHORTEST + 1)
    words = text.split(" ")
    fitting = []
    for count in range(1, len(words)):
        beginning = " ".join(words[:count])
        length = len(tokenizer.encode(beginning, add_special_tokens=False).ids)
        if length > LONGEST:
            break
        if length >= SHORTEST:
            fitting.append((length, beginning))
    within = [pair for pair in fitting if pair[0] <= SHORTEST + drawn]
    chosen = within[-1:] or fitting[:1]
    return chosen[0][1] if chosen else None


def rows(snippets: list[Snippet], tokenizer: Tokenizer) -> list[dict[str, str]]:
    """Make one row for each distinct opening; near-duplicates of training snippets give none."""
    training = select(snippets, "training")
    made: dict[str, dict[str, str]] = {}
    for split, part in SPLITS.items():
        chosen = select(snippets, part)
        skipped = near_duplicates(chosen, training)
        for index, snippet in enumerate(chosen):
            opening = None if index in skipped else opening_of(snippet.text, tokenizer)
            if opening is not None:
                # Short openings repeat ("It's a"); the first split that has one keeps it.
                made.setdefault(opening, {"query": opening, "split": split})
    # In the order of a hash the first n are a fair sample; the snippets are sorted by rating.
    return sorted(made.values(), key=lambda row: _digest(row["query"]))


def _digest(text: str) -> bytes:
    return hashlib.sha256(f"opening {text}".encode()).digest()


def main(settings: Settings) -> None:
    """Write cory_env/data/reviews/openings.jsonl."""
    tokenizer = Tokenizer.from_file(str(DATA / "reviews" / "tokenizer" / "tokenizer.json"))
    found = rows(movie_snippets(settings.snippets), tokenizer)
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in found]
    write_text(DATA / "reviews" / "openings.jsonl", "".join(lines))
    counts = {split: sum(row["split"] == split for row in found) for split in SPLITS}
    print(f"{len(found)} openings: {counts}")


if __name__ == "__main__":
    main(tyro.cli(Settings))
