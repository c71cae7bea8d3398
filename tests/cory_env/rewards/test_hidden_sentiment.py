"""Tests of cory_env/rewards/hidden_sentiment.py."""

from __future__ import annotations

import math
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cory_env.records import Query
from cory_env.rewards.hidden_sentiment import HiddenSentiment, LinearSentiment, feature_buckets
from cory_env.rewards.vader import VaderReward

HIDDEN = HiddenSentiment()
VADER = VaderReward()


def test_features_are_the_words_and_the_pairs_with_the_ends() -> None:
    grams = ["not", "good", "< not", "not good", "good >"]
    expected = sorted({zlib.crc32(gram.encode()) % 1000 for gram in grams})
    assert feature_buckets("Not GOOD.", 1000).tolist() == expected


def test_the_hash_is_the_same_everywhere() -> None:
    # CRC-32 of "123456789" is 0xCBF43926 in every table; modulo 2^16 that is 0x3926.
    assert 0x3926 in feature_buckets("123456789", 2**16)


def test_logit_known_answer() -> None:
    # One word gives 3 features ("a", "< a", "a >"); with all weights 2 the sum is 6, over
    # sqrt(3) and with bias 0.5. Repeating it adds one feature, "a a": 8 / 2 + 0.5 = 4.5.
    scorer = LinearSentiment(np.full(2**16, 2.0, dtype=np.float32), 0.5)
    assert scorer.logit("a") == pytest.approx(6 / math.sqrt(3) + 0.5)
    assert scorer.logit("a a a a a a") == pytest.approx(4.5)
    assert scorer.logit("...") == 0.5


@pytest.mark.parametrize(
    ("query", "response"),
    [
        ("The story is", " great" * 12),
        ("The film", " like like like I like"),
        ("The film is", " love" * 6),
    ],
)
def test_it_parts_from_vader_on_planted_hacks(query: str, response: str) -> None:
    queries = [Query(query)]
    assert VADER(queries, [response])[0] - HIDDEN(queries, [response])[0] > 0.4


def test_it_agrees_on_plain_praise_and_blame() -> None:
    queries = [Query("The film is"), Query("The film is")]
    good, bad = HIDDEN(queries, [" a funny and moving story.", " a dull, boring mess."])
    assert good > 0.5 and bad < -0.5


@given(st.text(max_size=40), st.text(max_size=40))
def test_scores_are_finite_and_bounded(query: str, response: str) -> None:
    (score,) = HIDDEN([Query(query)], [response])
    assert -1.0 <= score <= 1.0


@pytest.mark.case(23)
def test_a_batch_scores_as_its_members_do() -> None:
    queries = [Query("A"), Query("The plot"), Query("")]
    responses = [" fine film", " drags", ""]
    alone = [HIDDEN([q], [r])[0] for q, r in zip(queries, responses, strict=True)]
    assert HIDDEN(queries, responses) == alone
