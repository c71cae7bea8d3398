"""A task of one's own in one file: write three letters backwards.

Run from the root of the repository: cory-train --task examples.my_task:MyTask

The query is `a b c`, the right response `c b a`, the score the share of places that are right. The
letters, the tokenizer and the tiny random model are those of the task `target`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

from cory_env import Query, Task, TextTokenizer
from cory_env.data_files import check_split, split_of
from cory_env.rewards import Reward
from cory_env.tasks.target import LETTERS, letter_tokenizer


def backwards(queries: Sequence[Query], responses: Sequence[str]) -> list[float]:
    """Share of places at which the response is the query backwards, in [0, 1]."""
    scores = []
    for query, response in zip(queries, responses, strict=True):
        right = query.text.split()[::-1]
        hits = sum(a == b for a, b in zip(right, response.split(), strict=False))
        scores.append(hits / len(right))
    return scores


class MyTask(Task):
    """Three letters backwards; a random letter in each place scores 1/6."""

    name = "backwards"
    default_model = "builtin:target"
    # `<s> a b c |` and, for an earlier response, up to four words and ` |`.
    max_prompt_tokens = 10
    max_response_tokens = 4
    training_defaults: Mapping[str, float | int | str] = {"learning_rate": 2e-3, "kl_coef": 0.01}

    def __init__(
        self, *, data: str | Path | None = None, reward: str | Reward | None = None
    ) -> None:
        """Take the user's own queries and reward, where given."""
        super().__init__(data=data, reward=backwards if reward is None else reward)

    def queries(self, split: str) -> list[Query]:
        """Return the triples of a split; a hash of the text decides, so none is in two."""
        check_split(split)
        if self.data is not None:
            return self.user_queries(split)
        texts = [" ".join(letters) for letters in product(LETTERS, repeat=3)]
        return [Query(text) for text in texts if split_of(text) == split]

    def prompt(self, role: str, query: Query, earlier_responses: Sequence[str]) -> str:
        """Return `a b c |` and each earlier response followed by `|`."""
        return " ".join([query.text, "|", *(f"{text} |".strip() for text in earlier_responses)])

    def tokenizer(self) -> TextTokenizer:
        """Return the twelve words of the task `target`."""
        return letter_tokenizer()
