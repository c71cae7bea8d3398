"""Tests of agents/bridge/stock/envs.py: the token-level game without a mask of the vocabulary."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tianshou.data import Batch, Collector, VectorReplayBuffer

from agents.bridge.credit import CreditHook
from agents.bridge.stock import TokenVectorEnv, seeded, stock_ppo, token_vector_env, turns_kept
from cory_env import GameRules, cory_v0
from tests.agents.runs import session_of

REWARD = "tests.agents.rewards:distinct"


def arrays(batch: Batch, name: str = "") -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Every array that a buffer or batch holds, by its path."""
    for key, value in batch.items():
        path = f"{name}/{key}"
        if isinstance(value, Batch):
            yield from arrays(value, path)
        else:
            yield path, np.asarray(value)


def collected(env: Any, n: int) -> VectorReplayBuffer:
    models = [learner.actor for learner in session_of().learners.values()]
    first = env if isinstance(env, TokenVectorEnv) else env.workers[0].env
    team = stock_ppo(models, first, learning_rate=1e-3)
    buffer = VectorReplayBuffer(n * 6, n)
    hook = CreditHook(["agent_0", "agent_1"])
    collector = Collector(team, env, buffer, on_episode_done_hook=hook)
    with seeded(0, "test"):
        collector.reset()
        collector.collect(n_episode=n)
    return buffer


def our_env(n: int) -> TokenVectorEnv:
    session = session_of(batch_size=2 * n, reward=REWARD)
    env = TokenVectorEnv(session.rules, n)
    env.begin(session.queries.take(n), session.rules.agents)
    return env


@pytest.mark.parametrize("kind", ["ours", "pettingzoo"])
def test_nothing_in_the_buffer_is_as_wide_as_the_vocabulary(kind: str) -> None:
    env = our_env(4) if kind == "ours" else token_vector_env(4, 0, reward=REWARD)
    buffer = collected(env, 4)
    rows, _ = buffer.sample(0)
    found = dict(arrays(rows))
    vocabulary, width = 12, GameRules.make("target", action_level="token").observation_width
    assert width != vocabulary
    assert {path: a.shape for path, a in found.items() if vocabulary in a.shape[1:]} == {}
    assert found["/obs/mask"].shape[1:] == (1,) and found["/obs/mask"].all()
    assert found["/obs/obs"].shape[1:] == (width,)


def test_both_vector_envs_play_the_same_game() -> None:
    # The same queries and order, the same tokens: the same observations, payoffs and ends.
    env = our_env(2)
    single = [
        cory_v0.env("target", action_level="token", reward=REWARD, tokenizer=None) for _ in range(2)
    ]
    for index, game in enumerate(single):
        record_query = env.runner.episodes[index].query
        game.reset(options={"query": record_query, "turn_order": list(env.agents)})
    obs, _ = env.reset()
    rng = np.random.default_rng(0)
    running = [0, 1]
    while running:
        for row, index in enumerate(running):
            game = single[index]
            assert obs.agent_id[row] == game.agent_selection
            assert obs.obs[row].tolist() == game.observe(game.agent_selection).tolist()
        tokens = rng.integers(2, 12, size=len(running))
        obs, paid, ended, truncated, infos = env.step(tokens, running)
        assert not truncated.any()
        for row, index in enumerate(running):
            single[index].step(int(tokens[row]))
            assert paid[row].tolist() == [single[index].rewards[a] for a in env.agents]
            assert bool(ended[row]) == all(single[index].terminations.values())
            assert infos[row]["env_id"] == index
        keep = np.flatnonzero(~ended)
        running = [running[row] for row in keep]
        obs = obs[keep]


def test_the_cache_does_not_change_what_is_drawn() -> None:
    def drawn(*, kept: bool) -> tuple[list[int], list[list[int]]]:
        session = session_of(batch_size=16, reward=REWARD)
        env = TokenVectorEnv(session.rules, 8)
        env.begin(session.queries.take(8), session.rules.agents)
        team = stock_ppo(
            [learner.actor for learner in session.learners.values()], env, learning_rate=1e-3
        )
        buffer = VectorReplayBuffer(8 * 6, 8)
        collector = Collector(team, env, buffer, on_episode_done_hook=CreditHook(env.agents))
        actors = [team.get_algorithm(agent).policy.actor for agent in env.agents]
        with seeded(0, "test"):
            collector.reset()
            if kept:
                with turns_kept(actors, 8):
                    collector.collect(n_episode=8)
            else:
                collector.collect(n_episode=8)
        assert all(actor._cache is None for actor in actors)
        return [r.turns[1].response_ids[0] for r in env.records()], [
            list(t.response_ids) for r in env.records() for t in r.turns
        ]

    one, two = drawn(kept=True), drawn(kept=False)
    assert one == two
    assert len({len(tokens) for tokens in one[1]}) > 1  # turns that begin at different steps
