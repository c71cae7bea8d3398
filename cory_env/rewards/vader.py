"""The reward of positive wording: VADER's sentiment of query and response read as one text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

from cory_env.records import Query


@dataclass(frozen=True)
class VaderReward:
    """Score VADER's `compound`, in [-1, 1], of the query's text followed by the response.

    The two are joined as they are: a response brings its own leading space.

    Source: C. J. Hutto and E. Gilbert, "VADER: A Parsimonious Rule-based Model for Sentiment
        Analysis of Social Media Text", ICWSM 2014.
    """

    # Reading the word list takes a tenth of a second, so it is done once per reward.
    _analyzer: SentimentIntensityAnalyzer = field(
        default_factory=SentimentIntensityAnalyzer, repr=False, compare=False
    )

    def __call__(self, queries: Sequence[Query], responses: Sequence[str]) -> list[float]:
        """Return one score for each response, in [-1, 1]."""
        texts = (query.text + text for query, text in zip(queries, responses, strict=True))
        return [float(self._analyzer.polarity_scores(text)["compound"]) for text in texts]
