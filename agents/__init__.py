"""Learners that fine-tune language models in the game of `cory_env`.

From Python: `agents.train.train(TrainConfig(...))`. Imports go one way: `agents` knows `cory_env`,
`benchmarks` knows `agents`.
"""

import agents.rewards  # noqa: F401  (adds its rewards to those of the game)
from agents.config import PRESETS, TrainConfig

__all__ = ["PRESETS", "TrainConfig"]
