"""Tests of agents/bridge/credit.py, alone and through the stock Collector at both levels."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tianshou.algorithm import PPO
from tianshou.algorithm.algorithm_base import Policy
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.algorithm.multiagent.marl import MultiAgentOnPolicyAlgorithm
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Batch, Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv, PettingZooEnv

from agents.bridge.credit import CreditHook, turn_credit
from agents.bridge.vector_env import ResponseVectorEnv
from cory_env import GameRules, Query, cory_v0
from cory_env.runner import LockStepRunner
from cory_env.tasks.target import VOCABULARY

Floats = NDArray[np.float64]
TOKEN = {word: token for token, word in enumerate(VOCABULARY)}
END = TOKEN["</s>"]


def credit(rewards: list[list[float]], actors: list[int]) -> tuple[list[list[float]], list[bool]]:
    credited, last = turn_credit(np.array(rewards, dtype=np.float64), np.array(actors))
    return credited.tolist(), last.tolist()


# Known answers.


@pytest.mark.case(54)
@pytest.mark.parametrize("order", list(permutations(range(2))))
def test_two_agents_one_step_each(order: tuple[int, ...]) -> None:
    # Both are paid at the second step, agent 0 gets 3 and agent 1 gets 5, whoever goes first.
    credited, last = credit([[0, 0], [3, 5]], list(order))
    expected = [[0.0, 0.0], [0.0, 0.0]]
    for step, agent in enumerate(order):
        expected[step][agent] = [3.0, 5.0][agent]
    assert credited == expected
    assert last == [True, True]


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_three_agents_one_step_each(order: tuple[int, ...]) -> None:
    credited, last = credit([[0, 0, 0], [0, 0, 0], [3, 5, 7]], list(order))
    for step, agent in enumerate(order):
        assert credited[step] == [[3.0, 5.0, 7.0][k] if k == agent else 0.0 for k in range(3)]
    assert last == [True, True, True]


@pytest.mark.parametrize("order", list(permutations(range(2))))
def test_token_level_pays_the_last_token_of_each_turn(order: tuple[int, ...]) -> None:
    # Turns of 3 and 2 tokens, paid 3 and 5 at the very end.
    first, second = order
    actors = [first] * 3 + [second] * 2
    credited, last = credit([[0, 0]] * 4 + [[3, 5]], actors)
    paid = [row[agent] for row, agent in zip(credited, actors, strict=True)]
    assert paid == [0, 0, [3, 5][first], 0, [3, 5][second]]
    assert last == [False, False, True, False, True]


def test_three_agents_at_token_level() -> None:
    actors = [2, 2, 0, 1, 1, 1]
    credited, last = credit([[0, 0, 0]] * 5 + [[3, 5, 7]], actors)
    paid = [row[agent] for row, agent in zip(credited, actors, strict=True)]
    assert paid == [0, 7, 3, 0, 0, 5]
    assert last == [False, True, True, False, False, True]


def test_payments_in_the_middle_go_to_the_step_that_earned_them() -> None:
    # Agent 0 acts at steps 0, 1; agent 1 at 2, 3. Column 0 is paid 1, 2, 4, 8 at the four steps:
    # step 0 earns 1 (until it acts again), step 1 earns 2 + 4 + 8.
    # Column 1 is paid 16, 32, 64, 128: 16 + 32 came before its first step and belong to nobody.
    credited, last = credit([[1, 16], [2, 32], [4, 64], [8, 128]], [0, 0, 1, 1])
    assert credited == [[1, 0], [14, 0], [0, 64], [0, 128]]
    assert last == [False, True, False, True]


def test_one_agent_keeps_its_own_rewards() -> None:
    assert credit([[1], [2]], [0, 0]) == ([[1.0], [2.0]], [False, True])


def test_interleaved_turns_are_refused() -> None:
    with pytest.raises(ValueError, match=r"one block, got \[0, 2\]"):
        credit([[0, 0]] * 3, [0, 1, 0])


@pytest.mark.parametrize("rewards", [np.zeros(2), np.zeros((3, 2))])
def test_other_shapes_are_refused(rewards: Floats) -> None:
    with pytest.raises(ValueError, match=r"rewards must be \[2, N\]"):
        turn_credit(rewards, np.array([0, 1]))


@given(data=st.data(), n=st.integers(1, 4))
def test_credit_sums_to_what_each_earned_from_its_first_step_on(data: Any, n: int) -> None:
    order = data.draw(st.permutations(range(n)))
    actors = [agent for agent in order for _ in range(data.draw(st.integers(1, 4)))]
    rewards = np.array(
        data.draw(
            st.lists(
                st.lists(st.integers(-9, 9), min_size=n, max_size=n),
                min_size=len(actors),
                max_size=len(actors),
            )
        ),
        dtype=np.float64,
    )
    given_rewards = rewards.copy()
    credited, last = turn_credit(rewards, np.array(actors))
    for agent in range(n):
        first = actors.index(agent)
        assert credited[:, agent].sum() == rewards[first:, agent].sum()
        steps = np.flatnonzero(np.array(actors) == agent)
        assert last[steps].tolist() == [False] * (len(steps) - 1) + [True]
        assert not credited[np.array(actors) != agent, agent].any()
    assert np.array_equal(rewards, given_rewards)


# Through the stock Collector, response level.


class Scripted(Policy):
    """Each agent always writes the same words."""

    def __init__(self, action_space: gym.Space[Any], words: dict[str, list[int]]) -> None:
        super().__init__(action_space=action_space, action_bound_method=None)
        self.words = words

    def forward(self, batch: Batch, state: Any = None, **kwargs: Any) -> Batch:
        return Batch(act=np.array([self.words[agent] for agent in batch.obs.agent_id]), state=None)


QUERIES = [Query(f"{a} {b}", answer=a) for a, b in ("ab", "bc", "ca", "ac", "de")]
MIXINGS: dict[str, Any] = {
    "sum": "sum",
    "own": "own",
    "competitive": "competitive",
    "matrix": None,
}


def weights(name: str, n: int) -> Floats:
    """W over seats, written down here once more."""
    return {
        "sum": np.ones((n, n)),
        "own": np.eye(n),
        "competitive": np.eye(n) - (np.ones((n, n)) - np.eye(n)) / max(n - 1, 1),
        "matrix": np.arange(1.0, n * n + 1).reshape(n, n),
    }[name]


@pytest.mark.case("P13", 54)
@pytest.mark.parametrize("mixing", MIXINGS)
@pytest.mark.parametrize(
    "order", [*permutations(range(2)), *permutations(range(3))], ids=lambda o: "".join(map(str, o))
)
def test_every_agent_is_paid_in_the_buffer(mixing: str, order: tuple[int, ...]) -> None:
    n = len(order)
    w = weights(mixing, n)
    rules = GameRules.make("target", n_agents=n, reward_mixing=w)
    env = ResponseVectorEnv(LockStepRunner(rules), len(QUERIES))
    # agent_0 always says a, agent_1 says b, agent_2 says c: right for queries that begin with it.
    said = {f"agent_{k}": [TOKEN["abc"[k]], END, -1] for k in range(n)}
    policy = Scripted(rules.action_space, said)
    buffer = VectorReplayBuffer(len(QUERIES) * n, len(QUERIES))
    collector = Collector(policy, env, buffer, on_episode_done_hook=CreditHook(env.agents))
    turn_order = [f"agent_{k}" for k in order]
    env.begin(QUERIES, turn_order)
    collector.reset()
    stats = collector.collect(n_episode=len(QUERIES))
    assert stats.n_collected_episodes == len(QUERIES)
    rows, _ = buffer.sample(0)
    assert len(rows) == n * len(QUERIES)
    for row in rows:
        agent = int(str(row.obs.agent_id).removeprefix("agent_"))
        seat = order.index(agent)
        first_letter = QUERIES[int(row.info.episode)].text[0]
        scores = np.array([float("abc"[k] == first_letter) for k in order])  # by seat
        assert row.rew[agent] == pytest.approx(w[seat] @ scores)
        assert bool(row.terminated) and bool(row.done) and not bool(row.truncated)


# Through the stock Collector, token level, with the stock environment wrapper.


class TokenScript(Policy):
    """Writes letters until the turn's script is used up; a turn is known by its prompt."""

    def __init__(self, action_space: gym.Space[Any], words: dict[str, list[int]]) -> None:
        super().__init__(action_space=action_space, action_bound_method=None)
        self.words = words

    def forward(self, batch: Batch, state: Any = None, **kwargs: Any) -> Batch:
        acts = []
        for agent, obs in zip(batch.obs.agent_id, batch.obs.obs, strict=True):
            ids = [t for t in obs.tolist() if t >= 0]
            written = len(ids) - 1 - max(i for i, t in enumerate(ids) if t == TOKEN["|"])
            acts.append(self.words[agent][written])
        return Batch(act=np.array(acts), state=None)


def token_envs(n_envs: int) -> DummyVectorEnv:
    def make() -> PettingZooEnv:
        return PettingZooEnv(
            cory_v0.env(action_level="token", reward_mixing=[[1, 10], [100, 1000]])
        )

    return DummyVectorEnv([make for _ in range(n_envs)])


@pytest.mark.case("P13", 54)
def test_token_level_through_the_stock_environment_and_collector() -> None:
    env = token_envs(3)
    env.seed(0)
    # agent_0 writes "a b </s>", agent_1 "b </s>".
    words = {"agent_0": [TOKEN["a"], TOKEN["b"], END], "agent_1": [TOKEN["b"], END]}
    policy = TokenScript(env.action_space[0], words)
    buffer = VectorReplayBuffer(300, 3)
    hook = CreditHook(["agent_0", "agent_1"])
    collector = Collector(policy, env, buffer, on_episode_done_hook=hook)
    collector.reset()
    collector.collect(n_episode=30)
    rows, _ = buffer.sample(0)
    assert len(rows) == 30 * 5
    paid = set()
    for start in range(0, len(rows), 5):
        episode = rows[start : start + 5]
        assert list(episode.obs.agent_id) == ["agent_0"] * 3 + ["agent_1"] * 2
        letter = VOCABULARY[[t for t in episode.obs.obs[0].tolist() if t >= 0][1]]
        scores = np.array([letter == "a", letter == "b"], dtype=np.float64)
        assert episode.rew[:, 0].tolist() == [0, 0, scores @ [1, 10], 0, 0]
        assert episode.rew[:, 1].tolist() == [0, 0, 0, 0, scores @ [100, 1000]]
        assert episode.terminated.tolist() == [False, False, True, False, True]
        assert episode.done.tolist() == [False, False, True, False, True]
        assert not episode.truncated.any()
        paid.add(float(episode.rew[2, 0]))
    assert paid == {0.0, 1.0, 10.0}


# The stock library without the hook. If these fail, Tianshou has changed, and the hook may go.


@pytest.mark.case("P13")
def test_stock_collector_pays_the_pioneer_nothing() -> None:
    rules = GameRules.make("target", reward=lambda queries, responses: [1.0] * len(responses))
    env = ResponseVectorEnv(LockStepRunner(rules), 3)
    words = {"agent_0": [END, -1, -1], "agent_1": [END, -1, -1]}
    buffer = VectorReplayBuffer(6, 3)
    collector = Collector(Scripted(rules.action_space, words), env, buffer)
    env.begin(QUERIES[:3], ["agent_0", "agent_1"])
    collector.reset()
    collector.collect(n_episode=3)
    rows, _ = buffer.sample(0)
    pioneer = rows[rows.obs.agent_id == "agent_0"]
    observer = rows[rows.obs.agent_id == "agent_1"]
    assert pioneer.rew[:, 0].tolist() == [0.0] * 3
    assert pioneer.terminated.tolist() == [False] * 3
    assert observer.rew[:, 1].tolist() == [2.0] * 3
    assert observer.terminated.tolist() == [True] * 3


class Uniform(torch.nn.Module):
    """Stock actor: every token is as likely as every other."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.logits = torch.nn.Parameter(torch.zeros(n))

    def forward(self, obs: Any, state: Any = None, info: Any = None) -> tuple[Any, Any]:
        ids = obs.obs if hasattr(obs, "obs") else obs
        return self.logits.expand(len(ids), -1), state


class Constant(torch.nn.Module):
    """Stock critic: the same value everywhere, 0.3 at first."""

    def __init__(self) -> None:
        super().__init__()
        self.value = torch.nn.Parameter(torch.tensor([0.3]))

    def forward(self, obs: Any, **kwargs: Any) -> torch.Tensor:
        ids = obs.obs if hasattr(obs, "obs") else obs
        return self.value * torch.ones(len(ids), 1)


@pytest.mark.case("P13")
@pytest.mark.parametrize("hook", [False, True])
def test_stock_multi_agent_ppo_needs_the_hook(hook: bool) -> None:
    def make() -> PettingZooEnv:
        return PettingZooEnv(
            cory_v0.env(
                action_level="token",
                max_response_tokens=1,
                reward_mixing="own",
                reward=lambda queries, responses: [1.0] * len(responses),
            )
        )

    env = DummyVectorEnv([make for _ in range(3)])
    space = env.action_space[0]
    stocks = [
        PPO(
            policy=DiscreteActorPolicy(actor=Uniform(int(space.n)), action_space=space),
            critic=Constant(),
            optim=AdamOptimizerFactory(lr=1e-3),
            gamma=1.0,
            gae_lambda=1.0,
        )
        for _ in range(2)
    ]
    team = MultiAgentOnPolicyAlgorithm(algorithms=stocks, env=make())
    buffer = VectorReplayBuffer(6, 3)
    collector = Collector(
        team,
        env,
        buffer,
        on_episode_done_hook=CreditHook(["agent_0", "agent_1"]) if hook else None,
    )
    collector.reset()
    torch.manual_seed(0)
    np.random.seed(0)
    collector.collect(n_episode=3)
    batch, indices = buffer.sample(0)
    seen = team._preprocess_batch(batch, buffer, indices)
    pioneer, observer = seen["agent_0"], seen["agent_1"]
    assert observer.returns.flatten().tolist() == pytest.approx([1.0] * 3)
    assert observer.adv.flatten().tolist() == pytest.approx([0.7] * 3)
    # Paid 1 like the observer: with the hook return 1 and advantage 0.7; without it no reward
    # reaches the pioneer, it bootstraps from its critic and its advantage is 0.
    expected = (1.0, 0.7) if hook else (0.3, 0.0)
    assert pioneer.returns.flatten().tolist() == pytest.approx([expected[0]] * 3)
    assert pioneer.adv.flatten().tolist() == pytest.approx([expected[1]] * 3, abs=1e-6)
