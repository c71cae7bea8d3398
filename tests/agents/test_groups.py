"""Tests of agents/groups.py, and of groups in whole iterations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agents.bridge.outcomes import distinct
from agents.config import TrainConfig
from agents.groups import Groups
from agents.session import Session, resolve_config
from tests.agents.bridge.test_team import played
from tests.agents.runs import session_of, training_of

EPISODES = np.arange(12)


def test_query_groups_by_hand() -> None:
    groups = Groups(size=3)
    assert groups.episodes == 3 and groups.queries(12) == 4
    for seat in (0, 1):
        assert groups.keys(seat, EPISODES).tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
        assert groups.first(seat, EPISODES).tolist() == list(range(12))


def test_nested_groups_by_hand() -> None:
    groups = Groups(size=3, nested=2)  # six episodes a query
    assert groups.episodes == 6 and groups.queries(12) == 2
    assert groups.keys(0, EPISODES).tolist() == [0] * 6 + [1] * 6
    assert groups.keys(1, EPISODES).tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert groups.first(0, EPISODES).tolist() == [0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10]
    assert groups.first(1, EPISODES).tolist() == list(range(12))


def test_groups_must_be_whole() -> None:
    with pytest.raises(ValueError, match="a multiple of 6 episodes an iteration, got 8"):
        Groups(size=3, nested=2).queries(8)
    with pytest.raises(ValueError, match="at least 1 x 1"):
        Groups(size=0)
    with pytest.raises(ValueError, match="batch_size must give whole groups"):
        session_of(algorithm="rloo", batch_size=12)  # 6 episodes of two agents, groups of 4


@pytest.mark.parametrize(
    ("settings", "size", "batch"),
    [
        ({}, 1, 128),
        ({"algorithm": "rloo"}, 4, 128),
        ({"algorithm": "rloo", "n_agents": 3}, 4, 132),  # 44 episodes, 11 queries
        ({"algorithm": "grpo", "group_size": 5}, 5, 130),
        ({"algorithm": "grpo", "group_structure": "nested", "nested_size": 3}, 4, 144),
        ({"algorithm": "rloo", "batch_size": 24}, 4, 24),
    ],
)
def test_defaults_are_whole_groups(settings: dict[str, Any], size: int, batch: int) -> None:
    resolved, _ = resolve_config(TrainConfig(**settings))
    assert (resolved.group_size, resolved.batch_size) == (size, batch)


@pytest.mark.parametrize(
    ("settings", "epochs", "minibatch", "rate"),
    [
        ({"algorithm": "ppo"}, 4, None, 3e-3),
        ({"algorithm": "rloo"}, 1, 16, 1e-3),  # 64 responses, 4 steps
        ({"algorithm": "rloo", "method": "solo"}, 1, 32, 1e-3),
        ({"algorithm": "rloo", "learning_rate": 0.02}, 1, 16, 0.02),
        ({"algorithm": "rloo", "minibatch_size": 8}, 1, 8, 1e-3),
        ({"algorithm": "rloo", "update_epochs": 2}, 2, None, 1e-3),
        ({"algorithm": "grpo"}, 4, None, 3e-3),
        # sums: 256 responses of each, minibatches of 128 and two passes: 4 steps.
        ({"algorithm": "rloo", "task": "sums"}, 1, 64, 1e-4 / 3),
    ],
)
def test_learners_of_one_pass_take_as_many_steps(
    settings: dict[str, Any], epochs: int, minibatch: int | None, rate: float
) -> None:
    resolved, _ = resolve_config(TrainConfig(**settings))
    assert (resolved.update_epochs, resolved.minibatch_size) == (epochs, minibatch)
    assert resolved.learning_rate == pytest.approx(rate)


# In an iteration.


def collected(**settings: Any) -> Session:
    session = session_of(reward="tests.agents.rewards:distinct", **settings)
    session.team.read(played(session))
    return session


@pytest.mark.case(45)
def test_the_episodes_of_a_group_share_their_query_and_nothing_else() -> None:
    session = collected(algorithm="rloo", batch_size=24)
    texts = [record.query.text for record in session.env.records()]
    assert len(texts) == 12 and session.queries.position == 3
    assert [texts[i : i + 4] for i in (0, 4, 8)] == [[texts[i]] * 4 for i in (0, 4, 8)]
    for rollout in session.team.rollouts.values():
        assert rollout.group.tolist() == [0] * 4 + [1] * 4 + [2] * 4
        assert len({tuple(row) for row in rollout.response_ids.tolist()}) > 6
    assert session.team.extra.tokens == 0


def test_scores_and_shares_are_those_of_the_episodes() -> None:
    session = collected(algorithm="rloo", method="competitive", batch_size=16)
    scores = [[turn.score for turn in record.turns] for record in session.env.records()]
    for rollout in session.team.rollouts.values():
        assert rollout.scores.tolist() == scores
        signs = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64)[rollout.seat]
        assert torch.equal(rollout.shares, rollout.scores * signs)
        assert torch.allclose(rollout.shares.sum(-1), rollout.payoffs)
        # The observer earned what it was paid without the pioneer's score.
        own = rollout.scores[:, rollout.seat]
        earned = own if rollout.seat else own - rollout.scores[:, 1]
        assert torch.allclose(rollout.earned, earned)


def test_a_placebos_shares_are_those_of_the_other_episode() -> None:
    session = collected(algorithm="rloo", method="placebo_sum", batch_size=16)
    other = session.env.runner.paid_from
    # Two groups of four: what is permuted comes from the other query.
    assert other == [4, 5, 6, 7, 0, 1, 2, 3]
    for rollout in session.team.rollouts.values():
        partner = 1 - rollout.seat
        assert torch.equal(rollout.shares[:, partner], rollout.scores[other, partner])
        assert torch.allclose(rollout.shares.sum(-1), rollout.payoffs)


def test_a_placebo_reads_answers_to_another_query() -> None:
    session = collected(algorithm="rloo", method="placebo_transfer", batch_size=16)
    records = session.env.records()
    for episode, record in enumerate(records):
        read = records[(episode + 4) % 8].turns[0].response
        assert record.turns[1].prompt == session.task.prompt("observer", record.query, [read])


def test_a_placebo_needs_two_queries() -> None:
    with pytest.raises(ValueError, match="batch_size must give at least 8 episodes, 16 responses"):
        session_of(algorithm="rloo", method="placebo_sum", batch_size=8)


# Nested groups.

NESTED: dict[str, Any] = {
    "group_structure": "nested",
    "group_size": 2,
    "nested_size": 3,
    "batch_size": 24,  # 12 episodes, 2 queries
}


def test_nested_episodes_share_the_first_answer_and_are_answered_anew() -> None:
    session = collected(algorithm="rloo", **NESTED)
    pioneer, observer = (session.team.rollouts[f"agent_{k}"] for k in range(2))
    blocks = pioneer.response_ids.view(4, 3, -1)
    assert torch.equal(blocks, blocks[:, :1].expand(-1, 3, -1))
    assert len({tuple(row) for row in blocks[:, 0].flatten(1).tolist()}) > 1
    prompts = observer.prompt_ids.view(4, 3, -1)
    assert torch.equal(prompts, prompts[:, :1].expand(-1, 3, -1))
    assert len({tuple(row) for row in observer.response_ids.tolist()}) > 6
    assert observer.group.tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    assert pioneer.group.tolist() == [0] * 6 + [1] * 6
    # What stands there three times was drawn once.
    assert session.team.extra.tokens == -2 * int((blocks[:, 0] >= 0).sum())


def test_the_pioneer_is_paid_its_own_score_and_the_mean_of_the_answers() -> None:
    session = collected(algorithm="rloo", **NESTED)
    pioneer = session.team.rollouts["agent_0"]
    once = distinct(pioneer, session.config.groups)
    r1, r2 = pioneer.scores[:, 0].view(4, 3), pioneer.scores[:, 1].view(4, 3)
    assert once.episode.tolist() == [0, 3, 6, 9]
    assert torch.allclose(once.payoffs, r1[:, 0] + r2.mean(-1))
    assert torch.allclose(once.shares, torch.stack([r1[:, 0], r2.mean(-1)], dim=1))
    assert once.group.tolist() == [0, 0, 1, 1]
    # In gradient the same as learning from the copies, by a learner whose rows do not meet.
    observer = session.team.rollouts["agent_1"]
    assert distinct(observer, session.config.groups) is observer


@pytest.mark.parametrize("learner", ["ppo", "reinforce", "rloo", "grpo", "raft", "counterfactual"])
def test_learners_train_with_nested_groups(learner: str, tmp_path: Path) -> None:
    training = training_of(tmp_path / "run", algorithm=learner, iterations=3, **NESTED)
    training.run()
    rows = training.folder.metrics()
    assert [row["episodes"] for row in rows] == [12, 24, 36]
    assert rows[-1]["optimizer_steps"] > 0


def test_learning_from_each_answer_once_is_learning_from_its_copies() -> None:
    settings = {"dtype": "float64", "whiten": "none", "gae_lambda": 1.0, **NESTED}
    session = collected(algorithm="ppo", **settings)
    learner = session.learners["agent_0"]
    rollout = session.team.rollouts["agent_0"]
    found = []
    for rows in (rollout, distinct(rollout, session.config.groups)):
        learner.optim._optim.zero_grad(set_to_none=True)
        learner._gradient(learner.prepare(rows))
        gradients = [p.grad.flatten() for p in learner.parameters_in_training if p.grad is not None]
        found.append(torch.cat(gradients))
    assert found[0].norm() > 0
    # The norms inside a Llama are in single precision.
    assert torch.allclose(found[0], found[1], atol=1e-6)
