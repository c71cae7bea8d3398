"""A second sentiment scorer, for reporting only: what VADER's exploits do not fool the same way.

A policy trained on one scorer learns that scorer's faults. This one learnt from human ratings of
other sentences than the game's openings and knows nothing of VADER's word list, so a score that
rises there and not here is a sign of reward hacking. It shares one weakness, being a bag of words
too, but each word counts once, so repeating a good one adds little.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cory_env.records import Query

WEIGHTS_FILE = Path(__file__).resolve().parent.parent / "data" / "reviews" / "hidden_scorer.npz"
_WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)?|[!?]")


def feature_buckets(text: str, buckets: int) -> NDArray[np.int64]:
    """Hash the distinct words and pairs of neighbouring words of a text.

    CRC-32 is used because it is the same in every process and on every machine.

    Args:
        text: any text.
        buckets: number of hash buckets.

    Returns:
        Sorted bucket numbers without repeats, int64 [K]; K is 0 for a text without words.
    """
    words = ["<", *_WORD.findall(text.lower().replace("\u2019", "'")), ">"]
    grams = [*words[1:-1], *(f"{a} {b}" for a, b in pairwise(words))]
    if len(words) == 2:
        return np.empty(0, dtype=np.int64)
    codes = {zlib.crc32(gram.encode("utf-8")) % buckets for gram in grams}
    return np.array(sorted(codes), dtype=np.int64)


@dataclass(frozen=True)
class LinearSentiment:
    """Logistic regression on hashed words and word pairs.

    Attributes:
        weights: one weight per bucket, float32 [buckets].
        bias: the log-odds of a text without known words.
    """

    weights: NDArray[np.float32]
    bias: float

    @classmethod
    def load(cls, path: Path) -> LinearSentiment:
        """Read weights written by `tools.build_builtin.hidden_scorer`."""
        with np.load(path, allow_pickle=False) as stored:
            return cls(stored["weights"].astype(np.float32), float(stored["bias"]))

    def logit(self, text: str) -> float:
        """Return the log-odds that a text is positive: the sum of weights over the root of K."""
        found = feature_buckets(text, len(self.weights))
        total = float(self.weights[found].sum(dtype=np.float64))
        return self.bias + total / max(1.0, float(np.sqrt(len(found))))


@dataclass(frozen=True)
class HiddenSentiment:
    """Score 2p - 1, in [-1, 1], where p is the chance that query and response are positive."""

    _scorer: LinearSentiment = field(
        default_factory=lambda: LinearSentiment.load(WEIGHTS_FILE), repr=False, compare=False
    )

    def __call__(self, queries: Sequence[Query], responses: Sequence[str]) -> list[float]:
        """Return one score for each response, in [-1, 1]."""
        texts = (query.text + text for query, text in zip(queries, responses, strict=True))
        # 2 sigmoid(x) - 1 = tanh(x / 2), which cannot overflow.
        return [float(np.tanh(self._scorer.logit(text) / 2.0)) for text in texts]
