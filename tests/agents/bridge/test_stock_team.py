"""Tests of agents/bridge/stock/team.py: what token rows say, and who pays for the KL."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tianshou.data import Batch

from agents.bridge.stock.team import StockTeam, minibatches, turns
from agents.guards import NonFiniteError
from agents.stock_training import StockTraining
from tests.agents.runs import training_of


def training(tmp_path: Path, **settings: object) -> StockTraining:
    made = training_of(
        tmp_path / "run",
        StockTraining,
        **{"algorithm": "tianshou:A2C", "reward": "tests.agents.rewards:distinct", **settings},
    )
    assert isinstance(made, StockTraining)
    return made


def test_turns_end_where_rows_are_done() -> None:
    # Two turns, by hand: prompt [7, 8] and response [4, 2]; prompt [9] and response [5, 6, 3].
    obs = [[-1, -1, 7, 8], [-1, 7, 8, 4], [-1, -1, -1, 9], [-1, -1, 9, 5], [-1, 9, 5, 6]]
    rows = Batch(
        obs=Batch(obs=np.array(obs)),
        act=np.array([4, 2, 5, 6, 3]),
        done=np.array([False, True, False, False, True]),
    )
    prompts, responses, starts = turns(rows, 3)
    assert prompts.tolist() == [[-1, -1, 7, 8], [-1, -1, -1, 9]]
    assert responses.tolist() == [[4, 2, -1], [5, 6, 3]]
    assert starts.tolist() == [0, 2]


@pytest.mark.parametrize("rows", range(1, 13))
@pytest.mark.parametrize("size", [1, 3, 4])
def test_minibatches_are_counted_as_tianshou_makes_them(rows: int, size: int) -> None:
    batch = Batch(act=np.arange(rows))
    assert minibatches(rows, size) == len(list(batch.split(size, merge_last=True)))


@pytest.mark.parametrize("coef", [0.0, 0.5])
def test_each_token_pays_its_own_log_ratio(tmp_path: Path, coef: float) -> None:
    run = training(tmp_path, kl_coef=coef)
    session = run.session
    for learner in session.learners.values():  # away from the reference
        with torch.no_grad():
            learner.actor.model.get_output_embeddings().weight.mul_(3.0)
    seen = {}
    team = session.team
    assert isinstance(team, StockTeam)
    run.trainer._trainer.found = []  # type: ignore[attr-defined]

    def keep(found: object, *rest: object) -> None:
        pass

    original = team.algorithm.update

    def update(buffer: object, **kwargs: object) -> object:
        seen["rows"] = buffer.sample(0)[0]  # type: ignore[attr-defined]
        return original(buffer=buffer, **kwargs)

    team.algorithm.update = update
    before = {a: [p.clone() for p in x.actor.parameters()] for a, x in session.learners.items()}
    run.trainer.run_iteration()
    rows = seen["rows"]
    records = session.env.records()
    for column, (agent, learner) in enumerate(session.learners.items()):
        with torch.no_grad():
            for parameter, old in zip(learner.actor.parameters(), before[agent], strict=True):
                parameter.copy_(old)
        mine = rows[np.flatnonzero(rows.obs.agent_id == agent)]
        _, _, starts = turns(mine, 3)
        ends = [*starts[1:], len(mine)]
        assert len(starts) == len(records)
        for start, end, record in zip(starts, ends, records, strict=True):
            turn = next(t for t in record.turns if t.agent == agent)
            expected = []
            for row in mine[start:end]:
                ids = torch.tensor([[t for t in row.obs.obs.tolist() if t >= 0]])
                with torch.no_grad():
                    own = learner.actor.model(ids).logits[0, -1].log_softmax(-1)[int(row.act)]
                    ref = learner.reference.model(ids).logits[0, -1].log_softmax(-1)[int(row.act)]
                expected.append(-coef * float(own - ref))
            expected[-1] += turn.payoff or 0.0
            assert mine.rew[start:end, column].tolist() == pytest.approx(expected, abs=1e-4)
            assert mine.act[start:end].tolist() == list(turn.response_ids)
        rollout = team.rollouts[agent]
        # The logged KL is the full one, and payoffs are logged without it.
        assert float(rollout.kl.sum(-1).mean()) > 1e-3
        assert rollout.payoffs.tolist() == [
            t.payoff for r in records for t in r.turns if t.agent == agent
        ]


def test_weights_that_are_not_finite_end_the_run(tmp_path: Path) -> None:
    run = training(tmp_path)
    team = run.session.team
    assert isinstance(team, StockTeam)
    run.trainer.run_iteration()
    with torch.no_grad():
        next(team.stock["agent_1"].actor.parameters())[0] = float("nan")
    run.trainer._trainer.found = run.trainer._trainer.found[:1]  # type: ignore[attr-defined]
    with pytest.raises(NonFiniteError, match="agent_1 in iteration 1 diverged"):
        team.updated(run.trainer._trainer.found, None, 1)  # type: ignore[attr-defined]
