"""Tests of agents/train.py: interruption, unusual settings, and runs that go wrong."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agents.config import TrainConfig
from agents.train import Training, TrainResult, train
from tests.agents.runs import config, lines, training_of, without_seconds


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_after_its_iteration(number: signal.Signals, tmp_path: Path) -> None:
    before = signal.getsignal(number)

    class Interrupted(Training):
        def _log(self, iteration: int, row: Any, records: Any) -> None:
            super()._log(iteration, row, records)
            if iteration == 1:
                os.kill(os.getpid(), number)

    result = training_of(tmp_path / "run", Interrupted, iterations=9).run()
    assert not result.finished and len(result.metrics) == 1
    assert (tmp_path / "run/checkpoints/latest").read_text() == "000001\n"
    assert signal.getsignal(number) is before


def test_a_second_signal_ends_it_at_once_and_the_run_can_go_on(tmp_path: Path) -> None:
    class Impatient(Training):
        def _log(self, iteration: int, row: Any, records: Any) -> None:
            if iteration == 3:
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)
            super()._log(iteration, row, records)

    # A shell that starts the tests in the background has them ignore Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            training_of(tmp_path / "run", Impatient).run()
    finally:
        signal.signal(signal.SIGINT, before)
    assert (tmp_path / "run/checkpoints/latest").read_text() == "000002\n"
    assert train(config(tmp_path / "run", resume=True)).finished


def test_a_run_in_another_thread_sets_no_handlers(tmp_path: Path) -> None:
    found: list[TrainResult] = []
    run = threading.Thread(target=lambda: found.append(train(config(tmp_path / "r", iterations=1))))
    run.start()
    run.join()
    assert found[0].finished


def test_the_result_says_what_is_in_the_folder(cory_run: TrainResult) -> None:
    assert cory_run.finished
    assert cory_run.metrics == lines(cory_run.out / "metrics.jsonl")
    assert cory_run.config.out == cory_run.out


@pytest.mark.parametrize("estimator", ["k1", "k3", "reference"])
def test_estimators_give_different_runs(
    estimator: str, cory_run: TrainResult, run_of: Callable[..., TrainResult]
) -> None:
    run = run_of(kl_estimator=estimator, iterations=2, kl_coef=0.5)
    other = run_of(kl_estimator="exact", iterations=2, kl_coef=0.5)
    assert run.metrics[0]["agent_0/score"] == other.metrics[0]["agent_0/score"]
    assert run.metrics[1]["agent_0/kl"] != other.metrics[1]["agent_0/kl"]


@pytest.mark.parametrize(
    "settings",
    [
        {"dtype": "bfloat16"},
        {"dtype": "float64"},
        {"temperature": 1.7},
        {"kl_scope": "team"},
        {"whiten": "none", "value_clip": 0.2, "ent_coef": 0.01},
        {"batch_size": 2},
        {"max_response_tokens": 1},
        {"minibatch_size": 100},
        {"learning_rate_schedule": "linear", "max_grad_norm": None},
        {"kl_coef": 0.0},
        {"kl_coef": 0.01, "kl_target": 1.0},
        {"task_args": "kappa=1.0"},
        {"method": "solo", "batch_size": 1},
    ],
    ids="-".join,
)
def test_unusual_settings_run(settings: dict[str, Any], run_of: Callable[..., TrainResult]) -> None:
    run = run_of(iterations=2, **settings)
    assert run.finished and len(run.metrics) == 2
    for row in run.metrics:
        if settings.get("max_response_tokens") == 1:
            assert row["agent_0/response_tokens"] == 1.0


@pytest.mark.case(7, 9)
def test_the_first_step_is_taken_at_ratio_one(run_of: Callable[..., TrainResult]) -> None:
    run = run_of(iterations=1, minibatch_size=None, update_epochs=1, temperature=1.7)
    for agent in ("agent_0", "agent_1"):
        assert run.metrics[0][f"{agent}/approx_kl"] == pytest.approx(0.0, abs=1e-6)
        assert run.metrics[0][f"{agent}/clip_fraction"] == 0.0


def test_chunks_of_the_update_do_not_change_the_data(run_of: Callable[..., TrainResult]) -> None:
    one = run_of(iterations=1, minibatch_size=None, update_epochs=1)
    two = run_of(iterations=1, minibatch_size=1, update_epochs=1)
    same = [f"agent_{i}/{name}" for i in (0, 1) for name in ("score", "reward", "kl", "entropy")]
    assert [one.metrics[0][k] for k in same] == [two.metrics[0][k] for k in same]
    assert two.metrics[0]["optimizer_steps"] == 8 and one.metrics[0]["optimizer_steps"] == 2


def test_evaluation_does_not_touch_the_training(
    cory_run: TrainResult, run_of: Callable[..., TrainResult]
) -> None:
    rare = run_of(eval_interval=100)
    for a, b in zip(without_seconds(cory_run.metrics), without_seconds(rare.metrics), strict=True):
        training = {k for k in a if "eval/" not in k}
        assert {k: a[k] for k in training} == {k: b[k] for k in training}


def test_a_learning_rate_that_destroys_the_model_ends_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"diverged|not finite"):
        train(config(tmp_path / "run", learning_rate=1e30, max_grad_norm=None))
    # Nothing that is not a number was written as one.
    for path in (tmp_path / "run").rglob("*.json*"):
        assert "NaN" not in path.read_text() and "Infinity" not in path.read_text()


def test_defaults_are_those_of_the_task() -> None:
    assert TrainConfig().learning_rate is None
