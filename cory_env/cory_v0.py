"""Version 0 of the game, in PettingZoo's module form: `env()` and `raw_env()`."""

from cory_env.env import CoryEnv, env

raw_env = CoryEnv

__all__ = ["env", "raw_env"]
