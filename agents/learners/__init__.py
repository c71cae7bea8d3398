"""The learners. A new one is one file and one line in `LEARNERS`."""

from __future__ import annotations

from agents.bridge.learner import Learner
from agents.learners.ppo import PPO

LEARNERS: dict[str, type[Learner]] = {
    "ppo": PPO,
}
"""Name after `--algorithm` -> class."""

__all__ = ["LEARNERS", "PPO", "Learner"]
