"""What every learner has to keep, whatever its formulas are.

    pytest tests/agents/learners/test_contract.py --learner examples.my_learner:MyLearner

runs the same tests with a learner of one's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from agents.bridge.learner import Learner
from agents.config import TrainConfig
from agents.learners import LEARNERS, learner_class
from agents.learners.combinations import refusal
from agents.methods import METHODS
from agents.session import Session, resolve_config
from agents.train import Training, TrainResult, train
from tests.agents.bridge.test_team import played
from tests.agents.runs import (
    assert_same_tensors,
    config,
    learner_state,
    session_of,
    training_of,
    weights,
    without_seconds,
)

QUIET: dict[str, Any] = {"progress": False, "tensorboard": False}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "learner" in metafunc.fixturenames:
        asked = metafunc.config.getoption("--learner")
        metafunc.parametrize("learner", [asked] if asked else list(LEARNERS), scope="session")


def small(learner: str, method: str = "cory", **settings: Any) -> dict[str, Any]:
    """Settings of a small run: 8 responses of each agent, so that groups of 4 are whole.

    Roles are exchanged after each iteration, so in four an agent comes back to a role with what
    it kept from before.
    """
    exchanged = {"role_exchange_interval": 1}
    return {"algorithm": learner, "method": method, "batch_size": 16, **exchanged, **settings}


def allowed(learner: str) -> list[str]:
    kind = learner_class(learner)
    open_settings = {"algorithm": learner, "kl_scope": None}
    return [
        m
        for m in METHODS
        if refusal(kind.traits, resolve_config(TrainConfig(method=m, **open_settings))[0]) is None
    ]


@pytest.fixture(scope="session")
def whole(run_of: Callable[..., TrainResult]) -> Callable[[str], TrainResult]:
    """Four iterations."""
    return lambda learner: run_of(**small(learner))


def test_it_trains_where_it_says_it_does(
    learner: str, run_of: Callable[..., TrainResult], whole: Callable[[str], TrainResult]
) -> None:
    assert {"solo", "cory"} <= set(allowed(learner))
    for run in (whole(learner), run_of(**small(learner, "solo", iterations=1))):
        assert run.finished
        assert run.metrics[-1]["optimizer_steps"] > 0


def test_its_numbers_are_numbers(learner: str, whole: Callable[[str], TrainResult]) -> None:
    for row in whole(learner).metrics:
        for name, value in row.items():
            assert value is None or isinstance(value, str) or math.isfinite(value), name


@pytest.mark.case(37, 51, 58)
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(
    learner: str, whole: Callable[[str], TrainResult], tmp_path: Path
) -> None:
    # The second half is played anew, so this also says that the same seed gives the same run.
    first = train(config(tmp_path / "run", **small(learner, iterations=2)))
    assert first.finished
    again = train(config(tmp_path / "run", **small(learner), resume=True))
    run = whole(learner)
    # The last iteration of the shorter run was evaluated as well, as it is in the longer one.
    assert without_seconds(again.metrics) == without_seconds(run.metrics)
    assert_same_tensors(
        weights(again.out / "checkpoints/000004"), weights(run.out / "checkpoints/000004")
    )


@pytest.mark.case(33)
def test_role_exchange_touches_nothing(learner: str, tmp_path: Path) -> None:
    training = training_of(tmp_path / "run", **small(learner, iterations=2))
    training.run()
    session = training.session
    before, kept = learner_state(session), {a: x.state() for a, x in session.learners.items()}
    assert session.turn_order(2) != session.turn_order(3)
    session.begin(3)
    assert_same_tensors(before, learner_state(session))
    assert {a: x.state() for a, x in session.learners.items()} == kept


def plain(learner: str, **settings: Any) -> dict[str, Any]:
    """Nothing but the policy's own loss: no KL, no critic, no entropy bonus, full traces."""
    reads = learner_class(learner).traits.reads
    off = {"vf_coef": 0.0, "gae_lambda": 1.0}
    wanted = {n: v for n, v in off.items() if reads is None or n in reads}
    return small(learner, **{"kl_coef": 0.0, "iterations": 1, **wanted, **settings})


def test_equal_payoffs_teach_nothing(learner: str, tmp_path: Path) -> None:
    reward = "tests.agents.rewards:constant"
    training = training_of(tmp_path / "run", **plain(learner, reward=reward))
    before = models(training)
    training.run()
    assert_same_tensors(before, models(training))


def models(training: Training) -> dict[str, Tensor]:
    """Weights of the language models, without value heads."""
    return {
        f"{agent}/{name}": tensor.clone()
        for agent, learner in training.session.learners.items()
        for name, tensor in learner.actor.model.state_dict().items()
    }


def prepared_of(session: Session) -> tuple[Learner, Any]:
    batches = session.team._preprocess_batch(played(session), None, None)
    return session.learners["agent_0"], batches["agent_0"]


def test_pieces_of_a_minibatch_add_up(learner: str) -> None:
    settings = small(learner, dtype="float64", reward="tests.agents.rewards:distinct")
    session = session_of(**settings)
    own, batch = prepared_of(session)
    found = []
    for size in (len(batch), 1):
        own.config = replace(own.config, micro_batch_size=size)
        own.optim._optim.zero_grad(set_to_none=True)
        own._gradient(batch)
        gradients = [p.grad for p in own.parameters_in_training if p.grad is not None]
        found.append(torch.cat([g.flatten() for g in gradients]))
    assert found[0].norm() > 0
    assert torch.allclose(found[0], found[1], atol=1e-12)


def test_what_padding_holds_does_not_matter(learner: str) -> None:
    session = session_of(**small(learner, reward="tests.agents.rewards:distinct"))
    own, batch = prepared_of(session)
    noise = {
        name: torch.where(batch.mask, getattr(batch, name), 777.0)
        for name in ("logprobs", "values", "kl", "entropy", "ref_logprobs", "advantages", "returns")
    }
    losses = []
    for part in (batch, replace(batch, **noise)):
        minibatch = own.minibatch(part)
        losses.append(own.loss(own.score(minibatch), minibatch)[0].item())
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


@pytest.mark.slow
@pytest.mark.case(58)
@pytest.mark.parametrize("method", ["solo", "cory"])
def test_it_learns(learner: str, method: str, tmp_path: Path) -> None:
    # By its own defaults: as many optimizer steps as any other, 20 iterations alone and 40 of two.
    iterations = 20 if method == "solo" else 40
    result = train(
        TrainConfig(
            algorithm=learner,
            method=method,
            iterations=iterations,
            eval_interval=iterations,
            checkpoint_interval=iterations,
            out=tmp_path / "run",
            **QUIET,
        )
    )
    agents = ("agent_0",) if method == "solo" else ("agent_0", "agent_1")
    last = result.metrics[-1]
    for agent in agents:
        assert last[f"eval/{agent}/score"] >= result.initial[f"eval/{agent}/score"] + 0.1, agent
        assert last[f"eval/{agent}/kl"] < 30
