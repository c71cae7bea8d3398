"""Faults of the platform this library stands on, pinned as they are in the tested versions.

If one of these fails, the platform has changed: the fault is gone, and what was built around it
may go too. The row of `docs/checks.md` says what that is.
"""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from tianshou.algorithm.algorithm_base import Policy
from tianshou.algorithm.multiagent.marl import MultiAgentPolicy
from tianshou.data import Batch, Collector, CollectStats, ReplayBuffer, VectorReplayBuffer
from tianshou.env import DummyVectorEnv, PettingZooEnv
from tianshou.utils.torch_utils import policy_within_training_step

from agents.bridge.stock import stock_ppo, token_ids, token_vector_env
from agents.bridge.vector_env import ResponseVectorEnv
from cory_env import GameRules, Query, cory_v0
from cory_env.runner import LockStepRunner
from tests.agents.runs import session_of, training_of
from tests.cory_env.games import END

AGENTS = ["agent_0", "agent_1"]
STOP = np.array([END, -1, -1])


class Ends(Policy):
    """Ends every response at once, and records a number beside it."""

    def forward(self, batch: Batch, state: Any = None, **kwargs: Any) -> Batch:
        obs = batch.obs.obs if isinstance(batch.obs, Batch) else batch.obs
        n = len(obs)
        return Batch(act=np.tile(STOP, (n, 1)), policy=Batch(seen=np.arange(n)), state=None)


def ends(action_space: spaces.Space[Any]) -> Ends:
    return Ends(action_space=action_space, action_bound_method=None)


def stock_env(**game: Any) -> DummyVectorEnv:
    return DummyVectorEnv([lambda: PettingZooEnv(cory_v0.env(**game))] * 2)


@pytest.mark.case("P1")
def test_the_stock_multi_agent_policy_can_not_collect_whole_responses() -> None:
    env = stock_env()
    team = MultiAgentPolicy({agent: ends(env.action_space[0]) for agent in AGENTS})
    collector = Collector(team, env, VectorReplayBuffer(8, 2))
    collector.reset()
    with pytest.raises(AttributeError, match="obs_next"):
        collector.collect(n_episode=2)


def acting(**more: Any) -> Batch:
    """A row of each agent, as the stock collector hands it to a policy with Discrete actions."""
    obs = Batch(
        agent_id=np.array(AGENTS, dtype=object),
        mask=np.ones((2, 12), dtype=bool),
        obs=np.zeros((2, 12), dtype=np.int64),
    )
    return Batch(obs=obs, **more)


@pytest.mark.case("P2")
def test_the_stock_multi_agent_policy_reads_columns_that_it_was_never_given() -> None:
    space = GameRules.make("target").action_space
    team = MultiAgentPolicy({agent: ends(space) for agent in AGENTS})
    with pytest.raises(AttributeError, match="agent_idx"):
        team(acting(rew=np.zeros((2, 2))))


@pytest.mark.case("P3")
def test_the_stock_multi_agent_policy_loses_what_its_policies_record() -> None:
    space = GameRules.make("target").action_space
    team = MultiAgentPolicy({agent: ends(space) for agent in AGENTS})
    assert set(team(acting()).get_keys()) == {"act", "out", "state"}


@pytest.mark.case("P3")
def test_our_policy_keeps_what_the_agents_record(tmp_path: Any) -> None:
    training = training_of(tmp_path / "run", iterations=1)
    training.run()
    for rollout in training.session.team.rollouts.values():
        assert rollout.logprobs[rollout.mask].max() < 0


@pytest.mark.case("P4")
def test_our_adapters_read_both_shapes_of_an_observation() -> None:
    ids = np.array([[-1, -1, 1, 5], [-1, 1, 5, 6]])
    with_mask = Batch(agent_id="agent_0", mask=np.ones((2, 12), bool), obs=Batch(obs=ids))
    expected = ids[:, 1:].tolist()
    for obs in (ids, Batch(obs=ids, mask=np.ones((2, 12), bool)), with_mask):
        assert token_ids(obs, torch.device("cpu")).tolist() == expected


@pytest.mark.case("P5")
def test_the_stock_wrapper_returns_one_and_the_same_list_of_rewards() -> None:
    env = PettingZooEnv(cory_v0.env())
    env.reset()
    first = env.step(STOP)[1]
    assert env.step(STOP)[1] is first


@pytest.mark.case("P5")
def test_our_vector_env_returns_rewards_of_their_own() -> None:
    runner = LockStepRunner(GameRules.make("target", reward=lambda q, r: [1.0] * len(r)))
    env = ResponseVectorEnv(runner, 2)
    env.begin([Query("a b", "a"), Query("b c", "b")], AGENTS)
    env.reset()
    first = env.step(np.stack([STOP] * 2))[1]
    second = env.step(np.stack([STOP] * 2))[1]
    assert first.tolist() == [[0, 0], [0, 0]] and second.tolist() == [[2, 2], [2, 2]]


@pytest.mark.case("P6")
def test_the_stock_buffer_drops_keys_that_it_does_not_know() -> None:
    buffer = VectorReplayBuffer(1, 1)
    row = {"obs": [0], "act": [0], "rew": [0.0], "terminated": [True], "truncated": [False]}
    buffer.add(Batch(**row, obs_next=[0], info={}, extra=[7], policy=Batch(kept=[7])))
    stored = buffer[:1]
    assert "extra" not in stored.get_keys()
    assert stored.policy.kept.tolist() == [7]


@pytest.mark.case("P7")
def test_stock_statistics_pool_the_returns_of_all_agents(tmp_path: Any) -> None:
    stats = CollectStats(returns=np.array([[1.0, 3.0], [2.0, 6.0]]))
    stats.refresh_return_stats()
    assert stats.returns_stat is not None and stats.returns_stat.std > 1.5  # of 1, 3, 2, 6
    # Ours keep the agents apart; who is paid what is in the metrics of each.
    training = training_of(tmp_path / "run", iterations=1, method="cory_own_reward")
    row = training.run().metrics[0]
    assert {f"{agent}/reward" for agent in AGENTS} <= set(row)


@pytest.mark.case("P8")
def test_the_stock_trainer_reads_its_whole_buffer_after_each_collection(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    # The reason why our buffer is exactly as large as one batch: 4 episodes of two turns.
    read: list[int] = []
    stock = ReplayBuffer.hasnull

    def counted(self: ReplayBuffer) -> bool:
        read.append(len(self))
        return bool(stock(self))

    monkeypatch.setattr(ReplayBuffer, "hasnull", counted)
    training_of(tmp_path / "run", iterations=2).run()
    assert len(read) >= 2 and set(read) == {8}


class Counting(gym.Env[Any, Any]):
    """Ends after one step and counts its resets."""

    observation_space = spaces.Discrete(2)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.resets: list[dict[str, Any]] = []

    def reset(self, **kwargs: Any) -> tuple[int, dict[str, Any]]:
        self.resets.append(kwargs)
        return 0, {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        return 0, 0.0, True, False, {}


class Zero(Policy):
    """Always acts 0."""

    def forward(self, batch: Batch, state: Any = None, **kwargs: Any) -> Batch:
        return Batch(act=np.zeros(len(batch.obs), dtype=np.int64), state=None)


def counting_collector() -> tuple[list[Counting], Collector]:
    games = [Counting(), Counting()]
    venv = DummyVectorEnv([lambda game=game: game for game in games])
    policy = Zero(action_space=games[0].action_space, action_bound_method=None)
    return games, Collector(policy, venv, VectorReplayBuffer(8, 2))


@pytest.mark.case("P9")
def test_the_stock_collector_resets_everything_once_more_at_the_end() -> None:
    games, collector = counting_collector()
    collector.reset()
    collector.collect(n_episode=2)
    # One reset to begin with, one after the only episode, and one more for no episode.
    assert [len(game.resets) for game in games] == [3, 3]


@pytest.mark.case("P10")
def test_the_stock_collector_gives_every_environment_one_seed() -> None:
    games, collector = counting_collector()
    collector.reset(gym_reset_kwargs={"seed": 5})
    assert [game.resets[0] for game in games] == [{"seed": 5}, {"seed": 5}]


@pytest.mark.case("P10", 59)
def test_our_token_environments_count_their_seeds_on() -> None:
    env = token_vector_env(3, 7)
    _, infos = env.reset()
    dealt = []
    for seed in (7, 8, 9):
        game = cory_v0.env(action_level="token")
        game.reset(seed=seed)
        dealt.append(game.unwrapped.episode.query.text)
    assert [info["query"] for info in infos] == dealt


@pytest.mark.case("P11")
def test_stock_policies_clip_and_stretch_actions_of_a_box() -> None:
    box = Zero(action_space=spaces.Box(-1, 9, (1,)), action_scaling=True)
    # Token 5 is clipped to 1, which is then stretched to the largest token, 9.
    assert box.map_action(np.array([[5.0]])).tolist() == [[9.0]]


@pytest.mark.case("P11")
@pytest.mark.parametrize("level", ["response", "token"])
def test_our_actions_reach_the_game_as_they_are(level: str) -> None:
    space = GameRules.make("target", action_level=level).action_space
    assert not isinstance(space, spaces.Box)
    act = np.array([space.sample() for _ in range(4)])
    assert np.array_equal(Zero(action_space=space, action_bound_method=None).map_action(act), act)


@pytest.mark.case("P12")
def test_a_mask_can_not_be_sampled_with_whole_responses() -> None:
    space = GameRules.make("target").action_space
    with pytest.raises((AssertionError, ValueError, TypeError)):
        space.sample(mask=np.ones(13, dtype=np.int8))
    # So no observation of this game has a mask.
    assert isinstance(GameRules.make("target").observation_space, spaces.Box)


def test_stock_vector_envs_do_not_take_observations_in_tuples() -> None:
    class Pair(Counting):
        observation_space = spaces.Tuple((spaces.Discrete(2), spaces.Discrete(2)))  # type: ignore[assignment]

        def reset(self, **kwargs: Any) -> Any:
            return (0, 1), {}

    with pytest.raises(TypeError):
        DummyVectorEnv([Pair]).reset()


@pytest.mark.case("P14")
def test_the_stock_multi_agent_algorithm_does_not_load_its_own_state() -> None:
    session = session_of()
    models = [learner.actor for learner in session.learners.values()]
    env = token_vector_env(1, 0)
    team = stock_ppo(models, env.workers[0].env, learning_rate=1e-3)
    with pytest.raises(RuntimeError, match="_optimizers"):
        team.load_state_dict(copy.deepcopy(team.state_dict()))


@pytest.mark.case("P15")
def test_the_stock_training_flag_does_not_reach_the_agents() -> None:
    session = session_of()
    models = [learner.actor for learner in session.learners.values()]
    env = token_vector_env(1, 0)
    team = stock_ppo(models, env.workers[0].env, learning_rate=1e-3)
    with policy_within_training_step(team.policy):
        policies = team.policy.policies.values()
        assert [policy.is_within_training_step for policy in policies] == [False, False]
        # With the stock default the agents would collect greedily; the adapter turns it off.
        assert [policy.deterministic_eval for policy in policies] == [False, False]
