"""Tests of agents/bridge/stock/algorithms.py and learner.py: stock algorithms by name."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from tianshou.data import Collector, VectorReplayBuffer

from agents.bridge.credit import CreditHook
from agents.bridge.stock import ALGORITHMS, StockTeam, TokenVectorEnv, seeded
from agents.bridge.stock.networks import TokenActor, TokenCritic, last_hidden
from agents.learners import learner_class
from agents.models import ActorCritic
from tests.agents.runs import session_of
from tests.markdown import ROOT, table_rows


def refused(match: str, **settings: Any) -> None:
    with pytest.raises(ValueError, match=match) as caught:
        session_of(**settings)
    assert "\n" not in str(caught.value)


def test_the_names_are_those_of_the_page() -> None:
    rows = table_rows((ROOT / "docs" / "tianshou.md").read_text(encoding="utf-8"), "`--algorithm`")
    assert [row[0] for row in rows] == [f"`tianshou:{name}`" for name in ALGORITHMS]
    assert len(ALGORITHMS) == 7


def test_an_unknown_name_is_told_the_seven() -> None:
    known = ", ".join(f"tianshou:{name}" for name in ALGORITHMS)
    with pytest.raises(ValueError, match=re.escape(known)) as caught:
        learner_class("tianshou:SAC")
    assert "got 'tianshou:SAC'" in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"method": "placebo_sum"}, "method placebo_sum permutes whole responses"),
        ({"method": "placebo_transfer"}, "method placebo_transfer permutes whole responses"),
        (
            {"group_structure": "nested", "batch_size": 16, "group_size": 2},
            "group_structure must be",
        ),
        ({"temperature": 0.5}, "temperature must be 1.0, got 0.5"),
        ({"kl_estimator": "k3"}, "kl_estimator must be k1, got k3"),
        ({"kl_estimator": "reference"}, "kl_estimator must be k1, got reference"),
        ({"kl_scope": "team"}, "kl_scope must be own, got team"),
        ({"micro_batch_size": 2}, "does not read micro_batch_size, which must stay None, got 2"),
        ({"gradient_checkpointing": True}, "does not read gradient_checkpointing"),
        ({"compile": True}, "does not read compile"),
        ({"lora_rank": 4}, "does not read lora_rank"),
        ({"clip_coef": 0.3}, "does not read clip_coef"),
        ({"whiten": "none"}, "does not read whiten"),
    ],
)
def test_what_a_stock_algorithm_cannot_honour_is_refused(
    settings: dict[str, Any], match: str
) -> None:
    refused(match, algorithm="tianshou:A2C", **settings)


@pytest.mark.parametrize("name", ["DQN", "DiscreteSAC"])
@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"kl_coef": 0.01}, "kl_coef must be 0, got 0.01"),
        ({"resume": True}, "cannot be resumed"),
        ({"learning_rate_schedule": "linear"}, "does not read learning_rate_schedule"),
        ({"max_grad_norm": 2.0}, "does not read max_grad_norm"),
    ],
)
def test_what_a_replay_cannot_honour_is_refused(
    name: str, settings: dict[str, Any], match: str
) -> None:
    refused(match, algorithm=f"tianshou:{name}", **settings)


def test_several_processes_are_refused() -> None:
    config = session_of(algorithm="tianshou:PPO").config
    with pytest.raises(ValueError, match="it runs in one process, got 2"):
        ALGORITHMS["PPO"].check(config, 2)


def test_the_defaults_are_what_it_can_honour() -> None:
    on, off = session_of(algorithm="tianshou:A2C"), session_of(algorithm="tianshou:DQN")
    assert (on.config.kl_estimator, on.config.kl_coef) == ("k1", 0.01)  # the task's own weight
    assert (off.config.kl_estimator, off.config.kl_coef) == ("k1", 0.0)


def test_an_actor_has_the_parameters_of_its_logits_and_a_head_moves_alone() -> None:
    session = session_of()
    model = next(iter(session.learners.values())).actor
    actor, critic = TokenActor(model), TokenCritic(model, head_only=True)
    ids = np.array([[-1, 1, 5], [1, 6, 7]])
    parameters = list(actor.parameters())
    gradients = torch.autograd.grad(actor(ids)[0].square().sum(), parameters)
    assert all(bool(g.abs().sum() > 0) for g in gradients)
    critic(ids).sum().backward()
    moved = [name for name, p in critic.named_parameters() if p.grad is not None]
    assert moved == ["model.value_head.weight", "model.value_head.bias"]
    whole = TokenCritic(model)
    with torch.no_grad():
        model.value_head.weight.fill_(0.1)
    whole(ids).sum().backward()
    assert model.model.get_input_embeddings().weight.grad is not None


def joined(name: str, n: int = 6, **settings: Any) -> tuple[Any, StockTeam, TokenVectorEnv]:
    session = session_of(
        algorithm=f"tianshou:{name}",
        batch_size=2 * n,
        reward="tests.agents.rewards:distinct",
        **settings,
    )
    env = TokenVectorEnv(session.rules, n)
    learners: Any = session.learners
    team = StockTeam(learners=learners, policy=session.team.policy, env=env)
    env.begin(session.queries.take(n), ("agent_1", "agent_0"))
    return session, team, env


@pytest.mark.parametrize("steps", [1, 3])
def test_no_value_crosses_from_one_turn_to_the_next(steps: int) -> None:
    # Double DQN by hand. In one step: r + gamma * Q_old(s', argmax Q(s')), with s' the agent's own
    # text one token longer; at the end of its turn, what it was paid at the end of the episode.
    # In as many steps as a turn may have: gamma^k times that, k tokens before the end.
    session, team, env = joined("DQN", gamma=0.9)
    buffer = VectorReplayBuffer(6 * 6, 6)
    hook = CreditHook(env.agents)
    collector = Collector(
        team.algorithm, env, buffer, on_episode_done_hook=hook, exploration_noise=True
    )
    with seeded(1, "test"):
        collector.reset()
        collector.collect(n_episode=6)
    for learner in session.learners.values():  # targets that differ from the networks
        with torch.no_grad():
            learner.actor.model.get_output_embeddings().weight.mul_(-2.0)
    rows, indices = buffer.sample(0)
    records = env.records()
    assert {record.turns[0].agent for record in records} == {"agent_1"}
    for agent in env.agents:
        algorithm: Any = team.algorithm.get_algorithm(agent)
        assert algorithm.n_step == 3
        algorithm.n_step = steps
    made = team.algorithm._preprocess_batch(rows, buffer, indices)
    for agent in env.agents:
        algorithm = team.algorithm.get_algorithm(agent)
        old: ActorCritic = algorithm.model_old.module._whole[0]
        own: ActorCritic = session.learners[agent].actor
        mine = rows[np.flatnonzero(rows.obs.agent_id == agent)]
        returns = made[agent].returns.flatten().tolist()
        assert int(mine.done.sum()) == 6 < len(mine)
        for place, (row, found) in enumerate(zip(mine, returns, strict=True)):
            record = records[int(row.info.env_id)]
            payoff = next(t.payoff for t in record.turns if t.agent == agent)
            assert payoff
            left = int(np.flatnonzero(mine.done[place:])[0])
            if left < steps:
                assert found == pytest.approx(0.9**left * payoff, abs=1e-5)
                continue
            text = [t for t in row.obs.obs.tolist() if t >= 0] + [int(row.act)]
            with torch.no_grad():
                ids = torch.tensor([text])
                best = int(own.logits(last_hidden(own, ids))[0].argmax())
                value = float(old.logits(last_hidden(old, ids))[0, best])
            assert found == pytest.approx(0.9 * value, abs=1e-5)


@pytest.mark.parametrize("name", ["NPG", "TRPO"])
def test_natural_gradients_use_attention_that_can_be_differentiated_twice(name: str) -> None:
    session, team, _ = joined(name)
    for agent, learner in session.learners.items():
        team.algorithm.get_algorithm(agent).critic(np.array([[1, 5]])).sum().backward()
        moved = [name for name, p in learner.actor.named_parameters() if p.grad is not None]
        assert moved == ["value_head.weight", "value_head.bias"]
        for model in (learner.actor.model, learner.reference.model):  # or the KL would be rounding
            assert model.config._attn_implementation == "eager"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_both_agents_move_and_only_their_own_weights(name: str) -> None:
    session, team, env = joined(name)
    buffer = VectorReplayBuffer(6 * 6, 6)
    collector = Collector(team.algorithm, env, buffer, on_episode_done_hook=CreditHook(env.agents))
    lists = [[id(p) for p in x.actor.parameters()] for x in session.learners.values()]
    assert not set(lists[0]) & set(lists[1])
    before = {
        a: [p.clone() for p in x.actor.model.parameters()] for a, x in session.learners.items()
    }
    team.algorithm.policy.is_within_training_step = True
    with seeded(1, "test"):
        collector.reset()
        collector.collect(n_episode=6)
        if session.learners["agent_0"].off_policy:
            found = team.algorithm.update(sample_size=64, buffer=buffer)
        else:
            found = team.algorithm.update(buffer=buffer, batch_size=None, repeat=1)
    team.collected(buffer)
    team.updated([found], None, 1)
    for agent, learner in session.learners.items():
        pairs = zip(before[agent], learner.actor.model.parameters(), strict=True)
        assert any(not torch.equal(a, b) for a, b in pairs)
        stats = team.update_stats[agent]
        assert stats.optimizer_steps == 1
        losses = (stats.policy_loss, stats.value_loss)
        expected = (learner.policy_loss is not None, bool(learner.value_losses))
        assert tuple(loss is not None for loss in losses) == expected


@pytest.mark.parametrize("stop_on", ["kl", "repetition, entropy"])
def test_guards_that_a_replay_could_never_trip_must_not_be_named(stop_on: str) -> None:
    refused(
        "it measures no (kl|entropy) while it trains", algorithm="tianshou:DQN", stop_on=stop_on
    )


def test_natural_gradients_in_double_precision_are_refused() -> None:
    refused("dtype must be another than float64", algorithm="tianshou:TRPO", dtype="float64")
