"""Text generation as a sequential game for any multi-agent RL library.

Importing the package registers `cory/<task>-v0` with PettingZoo.
"""

from cory_env import cory_v0
from cory_env.episode import Episode
from cory_env.queries import QuerySource
from cory_env.records import EpisodeRecord, Query, Turn
from cory_env.registration import register_environments
from cory_env.rewards import REWARDS, Reward, RewardError, make_reward
from cory_env.rules import GameRules
from cory_env.runner import LockStepRunner
from cory_env.tasks import TASKS, Task, make_task
from cory_env.tokens import TextTokenizer, as_tokenizer

__all__ = [
    "REWARDS",
    "TASKS",
    "Episode",
    "EpisodeRecord",
    "GameRules",
    "LockStepRunner",
    "Query",
    "QuerySource",
    "Reward",
    "RewardError",
    "Task",
    "TextTokenizer",
    "Turn",
    "as_tokenizer",
    "cory_v0",
    "make_reward",
    "make_task",
    "register_environments",
]

register_environments()
