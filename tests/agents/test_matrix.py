"""Every learner in every method, in one process: it trains, or is refused with its sentence."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from agents.learners import LEARNERS
from agents.learners.combinations import refusal
from agents.methods import METHODS
from agents.session import build_session, resolve_config
from agents.train import Training, TrainResult
from tests.agents.runs import config, lines, training_of

pytestmark = pytest.mark.slow

TOGETHER = ("mappo", "happo", "magrpo")
REFUSED = {
    *((x, m) for x in TOGETHER for m in ("cory_own_reward", "independent", "competitive")),
    *((x, m) for x in (*TOGETHER, "counterfactual") for m in ("placebo_sum", "placebo_transfer")),
    *(("counterfactual", m) for m in ("cory_no_transfer", "cory_own_reward", "independent")),
}
"""Written out, so that a rule that refuses more or less than it did is seen."""

ALL = [(learner, method) for learner in LEARNERS for method in METHODS]
ALLOWED = [pair for pair in ALL if pair not in REFUSED]

SMALL: dict[str, Any] = {
    "iterations": 2,
    "batch_size": 16,
    "minibatch_size": None,
    "update_epochs": None,
    "role_exchange_interval": 1,
    "eval_queries": 4,
    "checkpoint_interval": 2,
}
"""Two groups of four responses to each agent in an iteration, and roles exchanged between the two;
the passes are the learner's own."""


class Quick(Training):
    """Without checkpoints, exports and pictures, which other tests look at."""

    def _save(self) -> None: ...

    def _keep_best(self, iteration: int, alone: Any) -> None: ...

    def _finish(self) -> None: ...


def played(out: Path, learner: str, method: str, **settings: Any) -> tuple[TrainResult, set[str]]:
    """A run, and the agents whose weights have moved."""
    named = {"algorithm": learner, "method": method}
    training = training_of(out, Quick, **{**SMALL, **named, **settings})
    before = dict(weights(training))
    result = training.run()
    moved = {a for a, values in weights(training) if not torch.equal(values, before[a])}
    return result, moved


def weights(training: Training) -> Iterator[tuple[str, torch.Tensor]]:
    """All weights of each agent's language model in one row."""
    for agent, learner in training.session.learners.items():
        rows = [p.detach().flatten() for p in learner.actor.model.parameters()]
        yield agent, torch.cat(rows)


def check(result: TrainResult, moved: set[str], method: str, responses: int) -> None:
    """What holds for every run of two iterations."""
    agents = ["agent_0"] if method == "solo" else ["agent_0", "agent_1"]
    assert result.finished
    assert [row["iteration"] for row in result.metrics] == [1, 2]
    assert [row["scored_responses"] for row in result.metrics] == [responses, 2 * responses]
    assert moved == set(agents)
    for row in result.metrics:
        for name, value in row.items():
            assert value is None or isinstance(value, str) or math.isfinite(value), name
    for agent in agents:
        assert result.metrics[-1][f"{agent}/policy_loss"] is not None
        assert result.metrics[-1][f"eval/{agent}/score"] is not None
    seats = [[row[f"{agent}/role"] for agent in agents] for row in result.metrics]
    first = ["pioneer", "observer"][: len(agents)]
    assert seats == [first, first[::-1] if METHODS[method].role_exchange else first]


def test_the_refused_are_those_that_are_written_out() -> None:
    found = {(x, m) for x, m in ALL if why_not(x, m) is not None}
    assert found == REFUSED


def why_not(learner: str, method: str) -> str | None:
    resolved, _ = resolve_config(config(**SMALL, algorithm=learner, method=method))
    return refusal(LEARNERS[learner].traits, resolved)


@pytest.mark.parametrize(("learner", "method"), sorted(REFUSED))
def test_a_combination_that_is_ill_defined_is_refused(learner: str, method: str) -> None:
    with pytest.raises(ValueError, match=f"algorithm {learner}: it ") as error:
        build_session(*resolve_config(config(**SMALL, algorithm=learner, method=method)))
    assert str(error.value) == f"algorithm {learner}: {why_not(learner, method)}"
    assert f"method {method}" in str(error.value)


@pytest.mark.parametrize(("learner", "method"), ALLOWED)
def test_an_allowed_combination_trains(learner: str, method: str, tmp_path: Path) -> None:
    # Scores that always differ: with equal ones there would be nothing to learn.
    reward = "tests.agents.rewards:distinct"
    result, moved = played(tmp_path / "run", learner, method, reward=reward)
    # The counterfactual learner lets the observers answer once more, without what they read.
    extra = 8 if learner == "counterfactual" and method != "solo" else 0
    check(result, moved, method, responses=16 + extra)
    for sample in lines(tmp_path / "run" / "samples.jsonl"):
        pioneer = next(a for a, role in sample["roles"].items() if role == "pioneer")
        alone = f"{sample['query']} |"
        for agent, prompt in sample["prompts"].items():
            if agent == pioneer or not METHODS[method].knowledge_transfer:
                assert prompt == alone
            elif METHODS[method].transfer == "own":
                assert prompt == f"{alone} {sample['responses'][pioneer]} |".replace("|  |", "| |")
            else:
                assert prompt.startswith(alone) and len(prompt) > len(alone)


@pytest.mark.parametrize("task", ["sums", "reviews"])
@pytest.mark.parametrize("method", ["solo", "cory"])
@pytest.mark.parametrize("learner", ["ppo", "grpo", "magrpo", "happo"])
def test_the_other_tasks_train_too(learner: str, method: str, task: str, tmp_path: Path) -> None:
    reward = "tests.agents.rewards:distinct"
    result, moved = played(
        tmp_path / "run", learner, method, task=task, reward=reward, max_response_tokens=4
    )
    check(result, moved, method, responses=16)
