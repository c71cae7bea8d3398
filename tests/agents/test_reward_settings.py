"""Tests of how a run calls its reward, and of the parts of weighted rewards in its logs."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from agents.evaluate import EvalCommand, evaluate
from agents.session import resolve_config
from agents.train import TrainResult, train
from cory_env.records import Query
from cory_env.rewards import RewardError, WeightedReward
from cory_env.rewards.calling import CalledReward, CallSettings
from tests.agents import rewards
from tests.agents.classifiers import classifier_folder
from tests.agents.runs import (
    assert_same_tensors,
    config,
    lines,
    session_of,
    stopping_after,
    training_of,
    weights,
    without_seconds,
)

AGENTS = ("agent_0", "agent_1")
CALLS: list[list[str]] = []
"""What `counted` was asked in this process."""


def counted(queries: Sequence[Query], responses: Sequence[str]) -> list[float]:
    """The scores of `distinct`, with a note of each call."""
    CALLS.append(list(responses))
    return rewards.distinct(queries, responses)


def flaky(queries: Sequence[Query], responses: Sequence[str]) -> list[float]:
    """Fails in every second call."""
    CALLS.append(list(responses))
    if len(CALLS) % 2:
        raise ConnectionError("no answer")
    return rewards.distinct(queries, responses)


@pytest.fixture(autouse=True)
def _no_calls_yet() -> None:
    CALLS.clear()


# Parts in the logs.

SUM = "0.5*target - 0.25*tests.agents.rewards:distinct"
DISTINCT = "tests.agents.rewards:distinct"


@pytest.fixture(scope="module")
def weighted(tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    """A run with a weighted reward."""
    out = tmp_path_factory.mktemp("weighted") / "run"
    return train(config(out, reward=SUM, iterations=2, tensorboard=True))


def test_parts_are_logged_one_by_one_and_add_up(weighted: TrainResult) -> None:
    for row in weighted.metrics:
        for agent in AGENTS:
            one, two = row[f"{agent}/score/target"], row[f"{agent}/score/{DISTINCT}"]
            assert row[f"{agent}/score"] == pytest.approx(0.5 * one - 0.25 * two)
            assert 0 <= one <= 1 and -1 <= two < 1
    last = weighted.metrics[-1]
    for prefix, values in (("eval", last), ("observer_eval", last), ("eval", weighted.initial)):
        for agent in AGENTS:
            start = f"{prefix}/{agent}/score"
            one, two = values[f"{start}/target"], values[f"{start}/{DISTINCT}"]
            assert values[start] == pytest.approx(0.5 * one - 0.25 * two)


def test_samples_have_the_parts_whose_means_are_logged(weighted: TrainResult) -> None:
    samples = lines(weighted.out / "samples.jsonl")  # all episodes
    assert len(samples) == 8
    for row in weighted.metrics:
        here = [s for s in samples if s["iteration"] == row["iteration"]]
        for agent in AGENTS:
            for sample in here:
                parts = sample["parts"][agent]
                assert sample["scores"][agent] == 0.5 * parts["target"] - 0.25 * parts[DISTINCT]
            for name in ("target", DISTINCT):
                mean = np.mean([s["parts"][agent][name] for s in here])
                assert row[f"{agent}/score/{name}"] == pytest.approx(mean)


def test_a_single_reward_has_no_parts_in_its_logs(cory_run: TrainResult) -> None:
    assert not any("/score/" in key for row in cory_run.metrics for key in row)
    assert all(
        s["parts"] == {"agent_0": None, "agent_1": None}
        for s in lines(cory_run.out / "samples.jsonl")
    )


def test_tensorboard_and_the_best_agent_have_the_parts(weighted: TrainResult) -> None:
    events = EventAccumulator(str(weighted.out / "tensorboard"))
    events.Reload()
    logged = [event.value for event in events.Scalars(f"agent_0/score/{DISTINCT}")]
    expected = [row[f"agent_0/score/{DISTINCT}"] for row in weighted.metrics]
    assert logged == pytest.approx(expected)
    best = json.loads((weighted.out / "best" / "selection.json").read_text())
    assert {"score/target", f"score/{DISTINCT}"} <= set(best)


def test_an_evaluation_of_the_run_shows_the_parts(
    weighted: TrainResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = EvalCommand(run=weighted.out, split="validation", queries=6, out=tmp_path / "e.json")
    rows = evaluate(command)
    last = weighted.metrics[-1]
    for agent in AGENTS:
        key = f"score/{DISTINCT}"
        assert rows[agent][key] == pytest.approx(last[f"eval/{agent}/{key}"], rel=1e-5)
    shown = capsys.readouterr().out
    assert "target" in shown and "distinct" in shown


# Settings.


def test_without_settings_the_reward_is_called_as_it_is() -> None:
    session = session_of(reward=f"{__name__}:counted")
    assert session.rules.reward is counted
    assert session.alone_runner.rules.reward is counted


def test_settings_reach_the_reward_in_training_and_evaluation(tmp_path: Path) -> None:
    session = session_of(
        reward=f"2*target + {__name__}:counted",
        reward_workers=3,
        reward_batch_size=2,
        reward_timeout=30,
        reward_retries=4,
        reward_cache=tmp_path / "scores",
        progress=True,
    )
    reward = session.rules.reward
    assert isinstance(reward, WeightedReward)
    settings = CallSettings(3, 2, 30, 4, (tmp_path / "scores").resolve(), True)
    for _, part in reward.parts:
        assert isinstance(part, CalledReward)
        assert part.settings == settings
    assert session.alone_runner.rules.reward is reward
    assert session.evaluation_runner.rules.reward is reward


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reward_workers": 0}, "reward_workers must be at least 1, got 0"),
        ({"reward_batch_size": 0}, "reward_batch_size must be at least 1, got 0"),
        ({"reward_timeout": 0.0}, "reward_timeout must be positive, got 0.0"),
        ({"reward_timeout": float("inf")}, "reward_timeout must be positive, got inf"),
        ({"reward_retries": -1}, "reward_retries must be at least 0, got -1"),
        ({"reward_retries": 1.5}, "reward_retries must be a whole number, got 1.5"),
        ({"reward_cache": 3}, "reward_cache must be a path, got 3"),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        config(**settings)


def test_a_cache_that_cannot_be_used_is_refused_before_there_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "scores").write_text("no database" * 100)
    with pytest.raises(
        ValueError, match=r"reward_cache .*scores cannot be used: file is not a data"
    ):
        train(config(tmp_path / "run", reward_cache=tmp_path / "scores"))
    assert not (tmp_path / "run").exists()


def same(one: TrainResult, two: TrainResult) -> None:
    """Equal in models, samples and metrics."""
    assert without_seconds(one.metrics) == without_seconds(two.metrics)
    assert lines(one.out / "samples.jsonl") == lines(two.out / "samples.jsonl")
    assert_same_tensors(weights(one.out / "final"), weights(two.out / "final"))


SHORT: dict[str, Any] = {"iterations": 2, "checkpoint_interval": 1}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    """A short run whose reward is called as it is."""
    return train(config(tmp_path_factory.mktemp("plain") / "run", reward=DISTINCT, **SHORT))


def test_no_setting_of_the_calls_changes_a_run(plain: TrainResult, tmp_path: Path) -> None:
    called = {"reward_workers": 2, "reward_timeout": 30.0, "reward_cache": tmp_path / "scores"}
    settings = {"reward": f"{__name__}:counted", **SHORT, **called}
    same(plain, train(config(tmp_path / "called", **settings)))
    # 16 responses in training; twice each agent alone (6) and as observer (6 of each agent), of
    # which many are known already: the agents start alike.
    asked = sum(len(rows) for rows in CALLS)
    assert 16 < asked < 16 + 2 * 2 * (6 + 12)
    CALLS.clear()
    same(plain, train(config(tmp_path / "again", **settings)))
    assert CALLS == []


def test_a_flaky_reward_is_asked_again(
    plain: TrainResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CalledReward, "_paused", lambda self, seconds, stop: False)
    name = f"{__name__}:flaky"
    same(plain, train(config(tmp_path / "flaky", reward=name, reward_retries=1, **SHORT)))
    CALLS.clear()
    with pytest.raises(
        RewardError, match="flaky raised ConnectionError: no answer; it does so for"
    ):
        train(config(tmp_path / "once", reward=name))


def test_a_run_whose_cache_is_gone_can_be_evaluated(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    cached = {"reward": f"{__name__}:counted", "reward_cache": tmp_path / "cache" / "scores"}
    run = train(config(tmp_path / "run", iterations=1, **cached)).out
    command = EvalCommand(run=run, split="validation", queries=6, out=tmp_path / "e.json")
    CALLS.clear()
    known = evaluate(command)
    assert CALLS == []
    shutil.rmtree(tmp_path / "cache")
    assert evaluate(command) == known
    assert CALLS != []


# Resume.


def test_a_resumed_run_may_be_called_otherwise(plain: TrainResult, tmp_path: Path) -> None:
    own = {"reward": DISTINCT, **SHORT}
    cut = {"reward_retries": 2, "reward_cache": tmp_path / "scores"}
    training_of(tmp_path / "cut", stopping_after(1), **own, **cut).run()
    changed = {"reward_workers": 2, "reward_timeout": 30.0, "reward_cache": tmp_path / "other"}
    same(plain, train(config(tmp_path / "cut", resume=True, **own, **changed)))


def test_the_size_of_calls_stays(tmp_path: Path) -> None:
    # A float32 classifier may round otherwise in batches of another size.
    training_of(tmp_path / "run", stopping_after(1)).run()
    with pytest.raises(ValueError, match="resume must keep reward_batch_size: the run has None"):
        train(config(tmp_path / "run", resume=True, reward_batch_size=4))


# Classifiers.


def test_a_run_with_a_classifier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    classifier_folder(tmp_path / "models" / "judge")
    reward = "classifier(models/judge)"
    whole = train(config(tmp_path / "whole", reward=reward, **SHORT))
    assert whole.config.reward == f"classifier({tmp_path.resolve()}/models/judge)"
    scores = [row[f"{agent}/score"] for row in whole.metrics for agent in AGENTS]
    assert len(set(scores)) == 4
    training_of(tmp_path / "cut", stopping_after(1), reward=reward, **SHORT).run()
    monkeypatch.chdir("/")  # a run is opened from other working directories too
    same(whole, train(config(tmp_path / "cut", reward=whole.config.reward, resume=True, **SHORT)))


def test_a_classifier_that_was_changed_is_not_gone_on_with(tmp_path: Path) -> None:
    folder = classifier_folder(tmp_path / "judge")
    reward = f"0.5*classifier({folder}) + target"
    training_of(tmp_path / "run", stopping_after(1), reward=reward).run()
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors["classifier.bias"] += 1
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match="fingerprints of the reward"):
        train(config(tmp_path / "run", reward=reward, resume=True))


def test_the_task_is_made_once_with_the_reward_that_was_named(tmp_path: Path) -> None:
    resolved, task = resolve_config(config(reward="0.50*target+ 0.5*vader"))
    assert resolved.reward == "0.50*target+ 0.5*vader"  # without paths it stays as it was typed
    assert isinstance(task.reward, WeightedReward)
