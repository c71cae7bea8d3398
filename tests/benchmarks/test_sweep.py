from __future__ import annotations

import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agents.config import TrainConfig
from agents.train import TrainResult
from benchmarks import sweep
from benchmarks.sweep import QUIET, Outcome, Run, Store
from tests.agents.runs import config, lines, stopping_after, training_of, without_seconds


def store_of(folder: Path, seeds: int = 2, **settings: Any) -> Store:
    wanted = {f"seed{i}": config(seed=i, **{"iterations": 2, **settings}) for i in range(seeds)}
    return Store(folder, wanted)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = store_of(tmp_path_factory.mktemp("store"))
    assert store.train(1, progress=False).done == 2
    return store


def rows(store: Store, name: str) -> list[dict[str, Any]]:
    return without_seconds(lines(store.folder / name / "metrics.jsonl"))


def never(config: TrainConfig) -> TrainResult:
    raise AssertionError(f"{config.out} was trained again")


def test_each_run_has_a_folder_and_its_results_are_read_from_it(trained: Store) -> None:
    assert sorted(path.name for path in trained.folder.iterdir()) == ["seed0", "seed1"]
    runs = trained.runs()
    assert list(runs) == ["seed0", "seed1"]
    for name, run in runs.items():
        assert run.last == lines(trained.folder / name / "metrics.jsonl")[-1]
        assert run.initial == json.loads((trained.folder / name / "eval_initial.json").read_text())
        assert run.config["seed"] == int(name[-1])
        assert run.config["max_response_tokens"] == 3  # filled in


def test_the_runs_are_quiet(trained: Store) -> None:
    names = {path.name for path in (trained.folder / "seed0").iterdir()}
    assert "tensorboard" not in names and "samples.jsonl" not in names
    assert trained.configs["seed0"].threads == 1


def test_a_finished_run_is_never_run_again(trained: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "train", never)
    again = Store(trained.folder, trained.wanted)
    assert again.train(1, progress=False) == sweep.Tally()
    # One run more, and only it is tried.
    more = store_of(trained.folder, seeds=3)
    assert list(more.train(1, progress=False).failures) == ["seed2"]


def test_an_interrupted_run_goes_on_as_if_it_had_not_been(trained: Store, tmp_path: Path) -> None:
    settings = {**QUIET, "iterations": 2, "checkpoint_interval": 1}
    assert not training_of(tmp_path / "seed0", stopping_after(1), **settings).run().finished
    store = store_of(tmp_path, checkpoint_interval=1)
    assert store.runs() == {}
    assert store.train(1, progress=False).done == 2
    assert rows(store, "seed0") == rows(trained, "seed0")
    assert rows(store, "seed1") != rows(trained, "seed0")


def test_a_run_that_was_stopped_before_its_first_checkpoint_begins_again(
    trained: Store, tmp_path: Path
) -> None:
    training_of(tmp_path / "seed0", **{**QUIET, "iterations": 2})  # claimed its folder, no more
    store = store_of(tmp_path, seeds=1)
    assert store.train(1, progress=False).done == 1
    assert rows(store, "seed0") == rows(trained, "seed0")


def test_a_run_with_other_settings_is_refused_before_any_work(
    trained: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "train", never)
    other = store_of(trained.folder, seeds=3, kl_coef=0.5)
    with pytest.raises(ValueError, match="has 2 of 3 runs with other settings") as error:
        other.train(1, progress=False)
    assert "seed0 was made with kl_coef 0.01, not 0.5; name another store" in str(error.value)
    with pytest.raises(ValueError, match="seed0 was made with iterations 2, not 3"):
        store_of(trained.folder, iterations=3).check()
    # What does not touch the learning may differ.
    store_of(trained.folder, eval_interval=1, checkpoint_interval=7).check()


def test_a_setting_that_came_later_had_its_default(trained: Store, tmp_path: Path) -> None:
    stored = json.loads((trained.folder / "seed0/config.json").read_text())
    del stored["ratio_level"]
    (tmp_path / "seed0").mkdir()
    (tmp_path / "seed0/config.json").write_text(json.dumps(stored))
    store_of(tmp_path).check()
    with pytest.raises(ValueError, match="made with ratio_level 'token', not 'sequence'"):
        store_of(tmp_path, ratio_level="sequence").check()


def test_a_damaged_config_is_named(tmp_path: Path) -> None:
    (tmp_path / "seed0").mkdir()
    for text in ("{", "[]"):
        (tmp_path / "seed0/config.json").write_text(text)
        with pytest.raises(ValueError, match=r"store cannot read .*seed0.config\.json"):
            store_of(tmp_path).check()


def test_one_run_that_fails_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    wanted = dict(store.wanted)
    wanted["seed0"] = replace(wanted["seed0"], reward="tests.agents.broken_rewards:raises")
    tally = Store(tmp_path, wanted).train(1, progress=False)
    assert tally.done == 1 and not tally.interrupted
    assert list(tally.failures) == ["seed0"]
    assert "\n" not in tally.failures["seed0"]


def test_an_interrupt_ends_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def interrupted(config: TrainConfig) -> TrainResult:
        assert config.out is not None
        asked.append(config.out.name)
        return TrainResult(config.out, config, [], {}, finished=False, stopped="stopped")

    monkeypatch.setattr(sweep, "train", interrupted)
    tally = store_of(tmp_path).train(1, progress=False)
    assert tally.interrupted and tally.done == 0 and tally.failures == {}
    assert asked == ["seed0"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_last_iteration_of_a_run_ends_the_rest(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.signal(number, lambda *_: None)  # as a run does, which then finishes

    def attempt(config: TrainConfig) -> Outcome:
        assert config.out is not None
        if config.out.name == "seed1":
            os.kill(os.getpid(), number)
        return Outcome(config.out.name, finished=True)

    monkeypatch.setattr(sweep, "attempt", attempt)
    try:
        tally = store_of(tmp_path, seeds=4).train(1, progress=False)
    finally:
        signal.signal(number, before)
    assert tally.interrupted and tally.done == 2
    assert signal.set_wakeup_fd(-1) == -1  # nothing is left behind


def test_the_cost_is_said_before_the_first_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []

    def attempt(config: TrainConfig) -> Outcome:
        said.append(capsys.readouterr().out)
        assert config.out is not None
        return Outcome(config.out.name, finished=True)

    monkeypatch.setattr(sweep, "attempt", attempt)
    # 2 runs of 150 iterations of 8 responses, 0.2 s each: one minute.
    store_of(tmp_path, iterations=150).train(1)
    assert said[0] == (
        f"{tmp_path}: 2 runs, 0 of them done; to do: 300 iterations, 2400 scored responses, about "
        f"1 minutes of one core.\n"
    )


def test_the_time_left_is_that_of_the_finished_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(tmp_path, seeds=4, iterations=10)
    done = {
        f"seed{i}": Run(f"seed{i}", {}, {}, {"seconds": seconds, "iteration": 10})
        for i, seconds in enumerate((100.0, 300.0, 9000.0))
    }
    monkeypatch.setattr(Store, "runs", lambda self: done)
    # The middle one took 30 s an iteration; one run of 10 is left.
    assert "about 5 minutes of one core" in store.cost
    assert "4 runs, 3 of them done; to do: 10 iterations, 80 scored responses" in store.cost


@pytest.mark.parametrize("workers", [0, -1])
def test_a_number_of_workers_that_makes_no_sense_is_refused(tmp_path: Path, workers: int) -> None:
    with pytest.raises(ValueError, match="workers must be at least 1"):
        store_of(tmp_path).train(workers)


@pytest.mark.slow
def test_worker_processes_train_the_same(trained: Store, tmp_path: Path) -> None:
    store = store_of(tmp_path)
    wanted = dict(store.wanted)
    wanted["broken"] = replace(wanted["seed0"], reward="tests.agents.broken_rewards:raises")
    tally = Store(tmp_path, wanted).train(2, progress=False)
    assert tally.done == 2 and list(tally.failures) == ["broken"]
    for name in ("seed0", "seed1"):
        assert rows(store, name) == rows(trained, name)


@pytest.mark.parametrize("text", [None, "{cut"])
def test_a_damaged_first_evaluation_is_named(
    trained: Store, tmp_path: Path, text: str | None
) -> None:
    shutil.copytree(trained.folder, tmp_path / "store")
    store = Store(tmp_path / "store", trained.wanted)
    name = next(iter(trained.wanted))
    file = store.folder / name / "eval_initial.json"
    file.unlink() if text is None else file.write_text(text)
    with pytest.raises(ValueError, match=f"evaluation before training of {name}"):
        store.runs()


@pytest.mark.parametrize("line", ["3", "[1]"])
def test_a_log_of_something_else_is_no_finished_run(
    trained: Store, tmp_path: Path, line: str
) -> None:
    shutil.copytree(trained.folder, tmp_path / "store")
    store = Store(tmp_path / "store", trained.wanted)
    name = next(iter(trained.wanted))
    (store.folder / name / "metrics.jsonl").write_text(line + "\n")
    assert name not in store.runs()
