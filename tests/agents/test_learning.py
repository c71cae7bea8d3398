"""The learners learn: held-out scores of the toy task rise, for every agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.config import TrainConfig
from agents.train import train


@pytest.mark.case(58)
@pytest.mark.slow
@pytest.mark.parametrize("method", ["solo", "cory"])
def test_held_out_scores_rise(method: str, tmp_path: Path) -> None:
    result = train(
        TrainConfig(
            method=method,
            iterations=20,
            learning_rate=3e-3,
            eval_interval=20,
            out=tmp_path / "run",
            progress=False,
            tensorboard=False,
            checkpoint_interval=20,
        )
    )
    agents = ("agent_0",) if method == "solo" else ("agent_0", "agent_1")
    for agent in agents:
        before, after = result.initial[f"eval/{agent}/score"], result.metrics[-1]
        assert after[f"eval/{agent}/score"] >= before + 0.1, agent
        # By words that score, not by drifting anywhere: the KL stays finite and small.
        assert 0.1 < after[f"eval/{agent}/kl"] < 30


@pytest.mark.slow
def test_the_tasks_own_defaults_learn(tmp_path: Path) -> None:
    # The README's first command: both agents, by at least 0.1.
    result = train(
        TrainConfig(iterations=20, out=tmp_path / "run", progress=False, tensorboard=False)
    )
    for agent in ("agent_0", "agent_1"):
        before = result.initial[f"eval/{agent}/score"]
        assert result.metrics[-1][f"eval/{agent}/score"] >= before + 0.1, agent
