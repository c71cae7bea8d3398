"""The `reviews` task: continue the opening words of a film review in a positive way."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from cory_env.records import Query
from cory_env.rewards.base import RewardSpec
from cory_env.rewards.hidden_sentiment import HiddenSentiment
from cory_env.tasks.base import Task, check_split
from cory_env.tokens import TextTokenizer, as_tokenizer

FOLDER = Path(__file__).resolve().parent.parent / "data" / "reviews"


class ReviewsTask(Task):
    """Continue an opening of 2 to 8 tokens; the score is VADER's sentiment of the whole text.

    The query-only prompt is the opening itself. An observer also reads what the earlier agents
    made of it: `I can make this sentence "..." more positive:` and then the opening. The queries
    come from snippets that neither the built-in model nor the hidden scorer was trained on.
    """

    name = "reviews"
    default_model = "builtin:reviews"
    default_reward = "vader"
    completion = True
    max_prompt_tokens = 64
    max_response_tokens = 12
    training_defaults: Mapping[str, float | int | str] = {
        "learning_rate": 2e-4,
        "kl_coef": 0.03,
        "iterations": 40,
        "batch_size": 128,
    }

    def __init__(self, *, data: str | Path | None = None, reward: RewardSpec | None = None) -> None:
        """Take the user's own openings and reward, where given; see `Task`."""
        super().__init__(data=data, reward=reward)
        self.hidden_reward = HiddenSentiment()

    def queries(self, split: str) -> Sequence[Query]:
        """Return the openings of a split, the user's own where given; see `Task.queries`."""
        check_split(split)
        return self.user_queries(split) if self.data is not None else _openings(split)

    def prompt(
        self,
        role: str,
        query: Query,
        earlier_responses: Sequence[str],
    ) -> str:
        """Return the opening, or the template with what the role may read; see `Task.prompt`."""
        return more_positive(query, earlier_responses)

    def tokenizer(self) -> TextTokenizer:
        """Return the byte-level tokenizer of the built-in model."""
        return reviews_tokenizer()


def more_positive(query: Query, earlier_responses: Sequence[str]) -> str:
    """Return the opening, or the paper's template with what an observer may read.

    Source: Ma et al., "Coevolving with the Other You" (CORY), NeurIPS 2024, the IMDB task; the
        quotes are those of its code, and several earlier responses stand one after the other.
    """
    if not earlier_responses:
        return query.text
    quoted = " ".join(f'"{query.text}{text}"' for text in earlier_responses)
    return f"I can make this sentence {quoted} more positive: {query.text}"


def reviews_tokenizer() -> TextTokenizer:
    """Return the byte-level tokenizer of the built-in model, which spells any text."""
    return as_tokenizer(FOLDER / "tokenizer")


@lru_cache
def _openings(split: str) -> tuple[Query, ...]:
    rows = map(json.loads, (FOLDER / "openings.jsonl").read_text(encoding="utf-8").splitlines())
    return tuple(Query(row["query"]) for row in rows if row["split"] == split)
