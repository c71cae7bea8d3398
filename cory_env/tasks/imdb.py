"""The `imdb` task: continue the first words of a film review in a positive way, as in the paper."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from cory_env.data_files import Row
from cory_env.records import Query
from cory_env.rewards.base import RewardSpec
from cory_env.rewards.hidden_sentiment import HiddenSentiment
from cory_env.tasks.from_data import DataTask
from cory_env.tasks.reviews import more_positive, reviews_tokenizer
from cory_env.tokens import TextTokenizer

SHORTEST_REVIEW = 200
"""Characters that a review must exceed."""
WORDS = range(2, 8)
"""Possible numbers of words in an opening."""
_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)


class ImdbTask(DataTask):
    """Continue the first 2 to 7 words of a review; the user names the reward.

    The prompts are those of `reviews`. How many words a review gives is drawn from a hash of its
    text: no seed, and the same for ever. (The paper cuts 2 to 7 tokens of GPT-2's tokenizer; words
    make the queries the same for every model.) Only reviews of more than 200 characters are used,
    `<br />` marks become spaces. An opening that several reviews share is one query, and belongs to
    the test if one of them does; so train may have fewer queries than reviews.

    Source: Ma et al., "Coevolving with the Other You" (CORY), NeurIPS 2024, section 4.1 and its
        code. The scores of the paper are logits of a classifier (`classifier(FOLDER)`).
    """

    name = "imdb"
    default_model = "builtin:reviews"
    default_reward = None
    reward_example = "classifier(FOLDER) or vader"
    completion = True
    max_prompt_tokens = 128
    max_response_tokens = 15
    formats = "an aclImdb folder, a CSV file with 'review', parquet files or a hub name"
    usable = f"a review of more than {SHORTEST_REVIEW} characters"
    names = ("review", "text")
    subset = "plain_text"
    # Those of `reviews`, for the built-in model; larger ones want the paper's: --preset paper_imdb.
    training_defaults: Mapping[str, float | int | str] = {
        "learning_rate": 2e-4,
        "kl_coef": 0.03,
        "iterations": 40,
        "batch_size": 128,
    }

    def __init__(self, *, data: str | Path | None = None, reward: RewardSpec | None = None) -> None:
        """Take the user's reviews and reward; see `Task`."""
        super().__init__(data=data, reward=reward)
        self.hidden_reward = HiddenSentiment()
        self._unique: dict[str, tuple[Query, ...]] = {}

    def queries(self, split: str) -> tuple[Query, ...]:
        """Return the openings of a split, each once; see `Task.queries`."""
        if split not in self._unique:
            first: dict[str, Query] = {}
            for query in super().queries(split):
                first.setdefault(query.text, query)
            self._unique[split] = tuple(first.values())
        return self._unique[split]

    def query_of(self, row: Row) -> Query | None:
        """Return the opening of a review, or None for a short one."""
        words = _BREAK.sub(" ", row.text(*self.names)).split()
        review = " ".join(words)
        if len(review) <= SHORTEST_REVIEW or len(words) < max(WORDS):
            return None
        label = {name: row.values[name] for name in ("sentiment", "label") if name in row.values}
        return Query(" ".join(words[: opening_length(review)]), metadata={**label, **row.place})

    def prompt(self, role: str, query: Query, earlier_responses: Sequence[str]) -> str:
        """Return the opening, or the paper's template with what the role may read."""
        return more_positive(query, earlier_responses)

    def tokenizer(self) -> TextTokenizer:
        """Return the byte-level tokenizer of the built-in model."""
        return reviews_tokenizer()


def opening_length(review: str) -> int:
    """Return how many words of a review are its query: 2 to 7, by a hash of its text.

    The text is that with single spaces, so that all published formats give the same.
    """
    digest = hashlib.sha256(b"imdb/opening/" + review.encode()).digest()
    return WORDS[int.from_bytes(digest[:8], "big") % len(WORDS)]
