"""The `sums` task: additions and subtractions of numbers up to 99, graded right or wrong."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from cory_env.records import Query
from cory_env.tasks.base import Task, check_split
from cory_env.tokens import TextTokenizer, as_tokenizer

TOKENIZER_FOLDER = Path(__file__).resolve().parent.parent / "data" / "sums" / "tokenizer"

PARTS: Mapping[str, range] = {
    "model": range(0, 50),
    "train": range(50, 80),
    "validation": range(80, 90),
    "test": range(90, 100),
}
"""Buckets of 100 by part. The built-in model learnt from `model` only; the game uses the rest."""


@lru_cache
def problems(part: str) -> tuple[Query, ...]:
    """List all problems `a + b` and `a - b` with a, b in 0..99 that belong to one part.

    They stand in the order of a hash, so that the first n are a fair sample.

    Args:
        part: "model", "train", "validation" or "test".

    Raises:
        ValueError: if there is no such part.
    """
    if part not in PARTS:
        raise ValueError(f"part must be one of {sorted(PARTS)}, got {part!r}")
    signed = [(a, sign, b) for a in range(100) for sign in (1, -1) for b in range(100)]
    found = [
        Query(text=f"{a} {'+' if sign == 1 else '-'} {b}", answer=str(a + sign * b))
        for a, sign, b in signed
    ]
    chosen = [query for query in found if _hash(query.text) % 100 in PARTS[part]]
    return tuple(sorted(chosen, key=lambda query: _hash(query.text)))


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode("ascii")).digest()[:8], "big")


class SumsTask(Task):
    """Two-digit arithmetic, one character a token.

    The query-only prompt is `Q: 47 + 38`, a new line, `A:`; an observer also reads one line
    `R: ...` for each earlier response, in which new lines have become spaces. A response such as
    ` 85` scores 1.0 if its final number equals the answer, else 0.0.
    """

    name = "sums"
    default_model = "builtin:sums"
    default_reward = "exact_number"
    completion = True
    max_prompt_tokens = 64
    max_response_tokens = 8
    # Scores of 0 and 1 are noisy: large batches, and small minibatches for enough steps.
    training_defaults: Mapping[str, float | int | str] = {
        "learning_rate": 1e-4,
        "kl_coef": 0.01,
        "iterations": 100,
        "batch_size": 512,
        "minibatch_size": 128,
        "update_epochs": 2,
        "eval_interval": 20,
        "eval_queries": 512,
    }

    def queries(self, split: str) -> Sequence[Query]:
        """Return the problems of a split, the user's own where given; see `Task.queries`."""
        check_split(split)
        return self.user_queries(split) if self.data is not None else problems(split)

    def prompt(
        self,
        role: str,
        query: Query,
        earlier_responses: Sequence[str],
    ) -> str:
        """Return the question with what the role may read; see `Task.prompt`."""
        # Any line break, not only a new line, would look like the end of the reference.
        references = [f"R: {' '.join(text.splitlines())}\n" for text in earlier_responses]
        return f"Q: {query.text}\n{''.join(references)}A:"

    def query_from_text(self, text: str) -> Query:
        """Make a query of `a + b` or `a - b` with its answer, of any other text without one."""
        match = re.fullmatch(r"\s*([0-9]{1,9})\s*([-+])\s*([0-9]{1,9})\s*", text)
        if match is None:
            return Query(text)
        a, sign, b = int(match[1]), match[2], int(match[3])
        return Query(text, str(a + b if sign == "+" else a - b))

    def tokenizer(self) -> TextTokenizer:
        """Return the character-level tokenizer of the built-in model."""
        return as_tokenizer(TOKENIZER_FOLDER)
