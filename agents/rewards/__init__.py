"""Rewards that need torch; importing this adds them to `cory_env.rewards.REWARDS`.

A new one is one file and one line here. Nothing heavy is imported before one is built.
"""

from __future__ import annotations

from agents.rewards.classifier import SequenceClassifier
from cory_env.rewards import REWARDS

REWARDS["classifier"] = SequenceClassifier

__all__ = ["SequenceClassifier"]
