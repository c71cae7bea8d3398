"""The token-level game under unmodified Tianshou: PettingZooEnv, DummyVectorEnv, Collector.

Cases 57 and 59; and the Collector's habit of resetting every environment once more at the end.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cory_env import cory_v0

pytest.importorskip("tianshou")

from tianshou.algorithm.random import MARLRandomDiscreteMaskedOffPolicyAlgorithm
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv, PettingZooEnv

N_ENVS, COLLECTS = 3, 4


def collected(seed: int) -> tuple[Any, list[list[tuple[str, str]]]]:
    """Collect at random; return the buffer and (query, pioneer) of each env's episodes."""
    games = [cory_v0.env(action_level="token", role_schedule="alternate") for _ in range(N_ENVS)]
    venv = DummyVectorEnv([lambda game=game: PettingZooEnv(game) for game in games])
    venv.seed(seed)
    random = MARLRandomDiscreteMaskedOffPolicyAlgorithm(venv.action_space[0])
    collector = Collector(random.policy, venv, VectorReplayBuffer(2000, N_ENVS))
    np.random.seed(seed)  # the stock random policy draws from it
    collector.reset()
    for _ in range(COLLECTS):
        collector.collect(n_episode=N_ENVS)
    buffer = collector.buffer
    dealt = []
    for part in buffer.buffers:
        starts = np.r_[0, np.flatnonzero(part.done[: len(part)])[:-1] + 1]
        dealt.append([(part.info.query[i], part.obs.agent_id[i]) for i in starts])
    return buffer, dealt


def stream(seed: int) -> list[tuple[str, str]]:
    """What one environment deals out when somebody plays it by hand."""
    game = cory_v0.raw_env(action_level="token", role_schedule="alternate")
    game.reset(seed=seed)
    dealt = []
    for _ in range(COLLECTS):
        dealt.append((game.episode.query.text, game.turn_order[0]))
        while not game.episode.over:
            game.step(0)
        game.reset()
    return dealt


@pytest.mark.case("P9", 59)
def test_the_stock_collector_skips_no_query_and_no_role() -> None:
    _, dealt = collected(seed=7)
    assert dealt == [stream(7 + env) for env in range(N_ENVS)]


@pytest.mark.case(57, 59)
def test_what_is_stored_is_what_is_seen_and_the_same_seed_gives_it_again() -> None:
    first, second = collected(seed=1)[0], collected(seed=1)[0]
    assert first.obs.obs.dtype == np.int64
    assert first.rew.shape[1] == 2
    for stored, again in ((first.obs.obs, second.obs.obs), (first.act, second.act)):
        assert np.array_equal(stored, again)
    assert set(first.info.role[: len(first.buffers[0])]) == {"pioneer", "observer"}
