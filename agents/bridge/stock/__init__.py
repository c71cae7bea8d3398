"""Stock Tianshou algorithms, unmodified, in the token-level game.

Ours are the adapters (a language model as Tianshou's networks), an environment without masks, keys
and values kept from token to token, and the credit hook, without which Tianshou pays all but the
last agent nothing.
"""

from __future__ import annotations

from agents.bridge.stock.algorithms import ALGORITHMS, stock_class
from agents.bridge.stock.envs import TokenVectorEnv, token_vector_env
from agents.bridge.stock.learner import PREFIX, StockLearner
from agents.bridge.stock.networks import TokenActor, TokenCritic, TokenQ, token_ids, turns_kept
from agents.bridge.stock.team import StockTeam
from agents.bridge.stock.trainers import StockIterations, seeded, stock_ppo, train_stock

__all__ = [
    "ALGORITHMS",
    "PREFIX",
    "StockIterations",
    "StockLearner",
    "StockTeam",
    "TokenActor",
    "TokenCritic",
    "TokenQ",
    "TokenVectorEnv",
    "seeded",
    "stock_class",
    "stock_ppo",
    "token_ids",
    "token_vector_env",
    "train_stock",
    "turns_kept",
]
