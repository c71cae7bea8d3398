"""The rewards by name. A new one is one file and one line here."""

from __future__ import annotations

from collections.abc import Callable

from cory_env.rewards.base import (
    BatchScores,
    Reward,
    RewardError,
    WeightedReward,
    checked_scores,
    make_reward,
    score_batch,
)
from cory_env.rewards.exact_number import ExactNumber
from cory_env.rewards.hidden_sentiment import HiddenSentiment
from cory_env.rewards.target import FirstLetter
from cory_env.rewards.vader import VaderReward

REWARDS: dict[str, Callable[..., Reward]] = {
    "vader": VaderReward,
    "exact_number": ExactNumber,
    "hidden_sentiment": HiddenSentiment,
    "target": FirstLetter,
}

__all__ = [
    "REWARDS",
    "BatchScores",
    "Reward",
    "RewardError",
    "WeightedReward",
    "checked_scores",
    "make_reward",
    "score_batch",
]
