"""Tianshou's own PPO, unmodified, plays the token-level game: both agents learn.

Run from the root of the repository: python -m examples.stock_tianshou_ppo
With evaluation, logs and export it is `cory-train --algorithm tianshou:PPO`.
"""

from __future__ import annotations

import sys

from tianshou.env import PettingZooEnv

from agents.bridge.stock import stock_ppo, token_vector_env, train_stock
from agents.models import BUILTIN_MODELS, ActorCritic
from cory_env import cory_v0


def main(iterations: int = 15, episodes: int = 32, seed: int = 0) -> list[dict[str, float]]:
    """Train two agents on `target`; returns each agent's mean score by iteration."""
    # Each is paid its own score, so the payoffs that are printed are the scores.
    game = {"task": "target", "reward_mixing": "own", "role_schedule": "alternate"}
    wrapped = PettingZooEnv(cory_v0.env(action_level="token", **game))
    models = []
    for agent in range(2):
        loaded = BUILTIN_MODELS["target"](seed + agent)
        models.append(ActorCritic(loaded.model, loaded.text_tokenizer.vocab_size))
    algorithm = stock_ppo(
        models,
        wrapped,
        learning_rate=3e-3,
        gamma=1.0,
        ent_coef=0.0,
        vf_coef=0.05,
        max_grad_norm=1.0,
    )
    return train_stock(
        algorithm,
        token_vector_env(episodes, seed, **game),
        wrapped.agents,
        iterations=iterations,
        update_epochs=4,
        minibatch_size=None,
        max_episode_steps=6,
        seed=seed,
        on_iteration=lambda i, paid: print(i, {a: round(v, 2) for a, v in paid.items()}),
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
