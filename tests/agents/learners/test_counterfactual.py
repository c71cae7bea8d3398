"""Tests of agents/learners/counterfactual.py and agents/bridge/replay.py."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from agents.bridge.replay import Replay
from agents.learners.counterfactual import Counterfactual
from agents.session import Session
from agents.train import Training
from cory_env import GameRules
from cory_env.runner import LockStepRunner
from tests.agents.learners.toy import made_rollout, toy_learner
from tests.agents.runs import session_of, training_of


def test_what_the_observer_would_have_scored_is_taken_away() -> None:
    # Scores 1, 2 | 3, 5; without the pioneer's answer the observer would have had 4 | 5.
    learner = toy_learner(Counterfactual, kl_coef=0.0)
    learner.baselines = {0: 0.0}
    scores = torch.tensor([[1.0, 2.0], [3.0, 5.0]], dtype=torch.float64)
    without = torch.tensor([4.0, 5.0], dtype=torch.float64)
    rollout = made_rollout(shares=scores, payoffs=scores.sum(-1), without=without)
    assert learner.prepare(rollout).advantages[:, 0].tolist() == [1 + 2 - 4, 3 + 5 - 5]


def collected(session: Session) -> None:
    """Play the first iteration as training does, up to the update."""
    from tests.agents.bridge.test_team import played

    session.team.read(played(session))


@pytest.mark.parametrize("order", ["fixed", "exchanged"])
def test_a_replay_is_the_game_without_transfer(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"algorithm": "counterfactual", "reward": "tests.agents.rewards:distinct"}
    session = session_of(batch_size=24, role_exchange_interval=1, **settings)
    # Policies that listen: random weights large enough that the prompt decides.
    for learner in session.learners.values():
        with torch.no_grad():
            for weight in learner.actor.model.parameters():
                if weight.ndim > 1:
                    weight.mul_(4.0)
    if order == "exchanged":
        monkeypatch.setattr(Session, "turn_order", lambda *_: ("agent_1", "agent_0"))
    collected(session)
    agents = {r.seat: agent for agent, r in session.team.rollouts.items()}
    records = session.env.records()
    pioneer, observer = (session.team.rollouts[agents[seat]] for seat in (0, 1))
    # The same episodes by the runner that shows the observer nothing.
    rules = GameRules.make(
        session.task,
        tokenizer=session.rules.tokenizer,
        knowledge_transfer=False,
        reward=session.rules.reward,
    )
    runner = LockStepRunner(rules)
    ids = list(range(12))
    runner.begin([r.query for r in records], (agents[0], agents[1]))
    runner.step(pioneer.response_ids.numpy(), ids)
    _, prompts = runner.observe(ids)
    uniforms = session.team.policy.uniforms(1, np.arange(12))
    sampled, _ = session.learners[agents[1]].policy.respond(prompts, uniforms)
    runner.step(sampled.response_ids.numpy(), ids)
    expected = [record.turns[1].score for record in runner.finished if record is not None]
    assert pioneer.without.tolist() == expected
    assert not observer.without.any()
    # It is another answer than the real one, and it was counted.
    assert (pioneer.without - pioneer.shares[:, 1]).abs().max() > 0
    assert session.team.extra.responses == 12
    assert session.team.extra.tokens == int((sampled.response_ids >= 0).sum())


def test_everything_downstream_is_played_again() -> None:
    session = session_of(algorithm="counterfactual", n_agents=3, batch_size=12)
    collected(session)
    first, second, third = (session.team.rollouts[f"agent_{k}"] for k in range(3))
    assert session.team.extra.responses == (2 + 1) * 4
    replay = Replay(session.rules, session.team.policy)
    records = session.env.records()
    both = replay.contributions(records, 0, {1: 2.0, 2: 10.0})
    parts = [replay.contributions(records, 0, w) for w in ({1: 1.0, 2: 0.0}, {1: 0.0, 2: 1.0})]
    assert both == pytest.approx(2 * parts[0] + 10 * parts[1])
    assert first.without.tolist() == pytest.approx((parts[0] + parts[1]).tolist())
    assert second.without.tolist() == replay.contributions(records, 1, {2: 1.0}).tolist()
    assert not third.without.any()


def test_the_budget_counts_it(tmp_path_factory: pytest.TempPathFactory) -> None:
    def counts(algorithm: str) -> tuple[int, int]:
        folder = tmp_path_factory.mktemp(algorithm) / "run"
        training: Training = training_of(folder, iterations=1, algorithm=algorithm)
        training.run()
        row = training.folder.metrics()[0]
        return row["scored_responses"], row["generated_tokens"]

    plain, with_it = counts("reinforce"), counts("counterfactual")
    assert (plain[0], with_it[0]) == (8, 12)
    assert with_it[1] > plain[1]
