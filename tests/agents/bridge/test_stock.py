"""Tests of agents/bridge/stock/: stock PPO at token level is our PPO at response level."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np
import pytest
import torch
from tianshou.data import Batch, Collector, VectorReplayBuffer
from tianshou.utils.torch_utils import policy_within_training_step
from torch import Tensor

from agents.bridge.credit import CreditHook
from agents.bridge.stock import seeded, stock_ppo, token_vector_env, train_stock
from agents.models import ActorCritic
from agents.models.target import draw_weights
from agents.rollout import Rollout
from cory_env import cory_v0
from tests.agents.runs import session_of

AGENTS = ["agent_0", "agent_1"]
EPISODES = 12


def rollout_of(rows: Batch, column: int, actor: ActorCritic, width: int) -> Rollout:
    """An agent's turns, read by hand from token rows: a turn ends where `terminated` is set."""
    ends = np.flatnonzero(rows.terminated) + 1
    turns = [rows[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)]
    n = len(turns)
    response = torch.full((n, 3), -1, dtype=torch.int64)
    prompts = torch.full((n, width), -1, dtype=torch.int64)
    payoffs = torch.zeros(n, dtype=torch.float64)
    for i, turn in enumerate(turns):
        response[i, : len(turn)] = torch.as_tensor(turn.act)
        ids = [t for t in turn.obs.obs[0].tolist() if t >= 0]
        prompts[i, width - len(ids) :] = torch.tensor(ids)
        payoffs[i] = float(turn.rew[-1, column])
    with torch.no_grad():
        scored = actor.score(prompts, response, 1.0)
    zeros = torch.zeros_like(scored.logprobs)
    return Rollout(
        prompt_ids=prompts,
        response_ids=response,
        logprobs=scored.logprobs,
        values=scored.values.masked_fill(response < 0, 0.0),
        kl=zeros,
        entropy=zeros,
        ref_logprobs=zeros,
        ref_hidden=torch.zeros(n, 3, 64),
        payoffs=payoffs,
        episode=torch.arange(n),
        seat=column,
    )


def gradients(actor: ActorCritic) -> Tensor:
    found = [p.grad for p in actor.parameters() if p.grad is not None]
    assert len(found) == len(list(actor.parameters()))
    return torch.cat([g.flatten() for g in found]).double()


@pytest.mark.case(57)
@pytest.mark.parametrize("gae_lambda", [1.0, 0.8])
def test_stock_ppo_at_token_level_has_our_loss_and_gradient(gae_lambda: float) -> None:
    # The conventions of equality: gamma 1, same lambda, no KL, no entropy bonus, one minibatch,
    # whitened over its tokens, value loss mean((R - V)^2), means over tokens.
    session = session_of(
        learning_rate=1e-30,  # the gradients are wanted, not the steps
        kl_coef=0.0,
        gae_lambda=gae_lambda,
        whiten="minibatch",
        vf_coef=0.3,
        clip_coef=0.2,
        max_grad_norm=None,
    )
    actors = {agent: learner.actor for agent, learner in session.learners.items()}
    for i, actor in enumerate(actors.values()):  # no duplicates, and critics that say something
        draw_weights(actor.model, 20 + i, std=0.2)
        draw_weights(actor.value_head, 30 + i, std=0.2)
    copies = [copy.deepcopy(actor) for actor in actors.values()]
    env = token_vector_env(4, 0, reward="tests.agents.rewards:distinct")
    team = stock_ppo(
        copies,
        env.workers[0].env,
        learning_rate=1e-30,
        gamma=1.0,
        gae_lambda=gae_lambda,
        eps_clip=0.2,
        vf_coef=0.3,
        ent_coef=0.0,
        advantage_normalization=True,
        max_grad_norm=None,
    )
    buffer = VectorReplayBuffer(400, 4)
    collector = Collector(team, env, buffer, on_episode_done_hook=CreditHook(AGENTS))
    with seeded(0, "test"), policy_within_training_step(team.policy):
        collector.reset()
        collector.collect(n_episode=EPISODES)
        rows, _ = buffer.sample(0)
        statistics = team.update(buffer=buffer, batch_size=None, repeat=1)
    for column, (agent, learner) in enumerate(session.learners.items()):
        own = rows[np.flatnonzero(rows.obs.agent_id == agent)]
        rollout = rollout_of(own, column, learner.actor, session.rules.observation_width)
        assert len(rollout) == EPISODES
        assert len(set(rollout.payoffs.tolist())) > EPISODES // 2
        learner.set_iteration(1, 1)
        ours = learner.update_from(learner.prepare(rollout), None, 1)
        stock: Any = statistics._agent_id_to_stats[agent]
        assert ours.policy_loss == pytest.approx(stock.actor_loss.mean, rel=1e-5, abs=1e-6)
        assert ours.value_loss == pytest.approx(stock.vf_loss.mean, rel=1e-5)
        one, two = gradients(learner.actor), gradients(copies[column])
        assert one.norm() > 1e-2
        assert ((one - two).norm() / two.norm()).item() < 1e-5


def test_seeded_puts_the_global_generators_back() -> None:
    def state() -> tuple[Any, ...]:
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore[index]

    def drawn(seed: int, component: str, iteration: int) -> tuple[float, float, float]:
        with seeded(seed, component, iteration):
            return random.random(), float(np.random.rand()), float(torch.rand(()))

    before = state()
    first = drawn(0, "a", 1)
    assert state() == before
    assert drawn(0, "a", 1) == first
    assert drawn(0, "a", 2) != first and drawn(1, "a", 1) != first and drawn(0, "b", 1) != first


@pytest.mark.case(59)
def test_stock_training_is_a_function_of_its_seed() -> None:
    def rewards(seed: int) -> list[dict[str, float]]:
        session = session_of()
        env = token_vector_env(4, 0, reward="tests.agents.rewards:distinct")
        models = [learner.actor for learner in session.learners.values()]
        team = stock_ppo(models, env.workers[0].env, learning_rate=1e-2)
        return train_stock(
            team,
            env,
            AGENTS,
            iterations=2,
            update_epochs=1,
            minibatch_size=None,
            max_episode_steps=6,
            seed=seed,
        )

    first = rewards(0)
    assert len(first) == 2 and set(first[0]) == set(AGENTS)
    # Both are paid the sum of both scores.
    assert all(row["agent_0"] == pytest.approx(row["agent_1"]) for row in first)
    assert rewards(0) == first
    assert rewards(1) != first


def test_the_token_environment_is_the_registered_one() -> None:
    env = token_vector_env(2, 0, n_agents=3)
    inner = env.workers[0].env
    assert inner.agents == list(cory_v0.env(n_agents=3).possible_agents)
