"""Tests of docs/recovery.md: interrupted, crashed, killed and full-disk runs reach the same end."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError

import agents.train
from agents.checkpoint import capture, checkpoints, load_checkpoint, prune_checkpoints
from agents.files import append_line
from agents.methods import METHODS
from agents.run_folder import RunFolder
from agents.train import StorageError, Training, TrainResult, main, train
from benchmarks.torture import differences, half_written, torture
from tests.agents.runs import config, lines, session_of, stopping_after, training_of

N = 6
LONG: dict[str, Any] = {
    "iterations": N,
    "checkpoint_interval": 4,
    "keep_checkpoints": 1,
    "eval_interval": 2,
    "role_exchange_interval": 2,
}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what takes time and has no part in the outcome: waits for the disk, and pictures."""
    monkeypatch.setattr("agents.files.os.fsync", lambda handle: None)
    monkeypatch.setattr("agents.training.draw_curves", lambda *args: None)


# Run N = run k, stop, resume to N.


@pytest.mark.case(49, 50)
@pytest.mark.parametrize(
    "settings",
    [
        *({"method": name, "kl_target": 0.05, "kl_horizon": 50} for name in METHODS),
        {"learning_rate_schedule": "linear", "minibatch_size": None, "kl_estimator": "reference"},
        {"n_agents": 3, "batch_size": 9, "role_exchange_interval": 1, "kl_estimator": "k1"},
        {"kl_estimator": "k3", "kl_scope": "team", "whiten": "minibatch", "value_clip": 0.2},
        {"dtype": "bfloat16", "ent_coef": 0.01, "temperature": 1.3},
    ],
    ids=lambda settings: "-".join(str(v) for v in settings.values()),
)
def test_stopping_after_every_iteration_changes_nothing(
    settings: dict[str, Any], tmp_path: Path, quick: None
) -> None:
    # Stopped and resumed after each of the first three iterations: before and after an evaluation
    # (2), an exchange (before 3) and a checkpoint of its own (3).
    short = {"iterations": 4, "checkpoint_interval": 3, "update_epochs": 1, "eval_queries": 3}
    settings = {**LONG, **short, **settings}
    if METHODS[settings.get("method", "cory")].single_agent:
        settings["batch_size"] = 4
    train(config(tmp_path / "whole", **settings))
    for k in range(1, 4):
        kind = stopping_after(k)
        part = training_of(tmp_path / "run", kind, **settings, resume=k > 1).run()
        assert not part.finished and [r["iteration"] for r in part.metrics] == [*range(1, k + 1)]
    assert train(config(tmp_path / "run", **settings, resume=True)).finished
    assert differences(tmp_path / "whole", tmp_path / "run") == []


class _PowerCutError(BaseException):
    """Not an Exception: nothing is rescued."""


def crashing_in(iteration: int) -> type[Training]:
    class Crashing(Training):
        def _log(self, number: int, row: Any, records: Any) -> None:
            super()._log(number, row, records)
            if number == iteration:
                raise _PowerCutError

    return Crashing


@pytest.mark.case(49, 50, 52)
@pytest.mark.parametrize(
    ("checkpoint", "evaluation", "exchange", "crash"),
    [(1, 2, 1, 2), (2, 3, 1, 4), (3, 2, 2, 3), (4, 3, 5, 5)],
)
def test_a_crash_anywhere_changes_nothing(
    checkpoint: int, evaluation: int, exchange: int, crash: int, tmp_path: Path, quick: None
) -> None:
    settings = {
        "iterations": 5,
        "checkpoint_interval": checkpoint,
        "eval_interval": evaluation,
        "role_exchange_interval": exchange,
    }
    train(config(tmp_path / "whole", **settings))
    with pytest.raises(_PowerCutError):
        training_of(tmp_path / "run", crashing_in(crash), **settings).run()
    train(config(tmp_path / "run", resume=True, **settings))
    assert differences(tmp_path / "whole", tmp_path / "run") == []


@pytest.mark.case(49, 50)
@pytest.mark.slow
def test_killed_runs_reach_the_same_end(tmp_path: Path) -> None:
    tally = torture(2, seed=1, folder=tmp_path)
    assert tally.mismatches == []
    assert sum(tally.kills.values()) == 2 and tally.resumes >= 1


# Which checkpoint.


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = {**LONG, "checkpoint_interval": 2, "keep_checkpoints": 9}
    return train(config(tmp_path_factory.mktemp("whole") / "run", **settings)).out


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, stopped after iteration 4."""
    out = tmp_path_factory.mktemp("stopped") / "run"
    settings = {**LONG, "checkpoint_interval": 2, "keep_checkpoints": 9}
    training_of(out, stopping_after(4), **settings).run()
    return out


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    """A finished run with checkpoints 2, 4 and 6, to be broken."""
    shutil.copytree(whole, tmp_path / "run")
    return tmp_path / "run"


def resume(out: Path, **settings: Any) -> TrainResult:
    changed = {**LONG, "checkpoint_interval": 2, "keep_checkpoints": 9, **settings}
    return train(config(out, resume=True, **changed))


def test_a_damaged_checkpoint_names_the_good_ones_and_they_can_be_used(
    run: Path, whole: Path
) -> None:
    for number in (6, 4):
        file = run / f"checkpoints/00000{number}/agent_0.safetensors"
        file.write_bytes(file.read_bytes()[:-1])
    before = {p: p.stat().st_mtime_ns for p in run.rglob("*")}
    with pytest.raises(
        ValueError,
        match=r"checkpoint .*000006 cannot be used: agent_0\.safetensors is damaged.*; go on from "
        r"another one with --resume --resume-from 2 \(there are: 2\)",
    ):
        resume(run)
    assert {p: p.stat().st_mtime_ns for p in run.rglob("*")} == before
    assert resume(run, resume_from=2).finished
    assert differences(whole, run) == []
    assert json.loads((run / "config.json").read_text())["resume_from"] is None


def test_going_on_from_an_earlier_one_removes_the_later_ones_first(run: Path) -> None:
    training = training_of(
        run, resume=True, resume_from=2, **{**LONG, "checkpoint_interval": 2, "keep_checkpoints": 9}
    )
    assert training.last_finished == 2
    assert list(checkpoints(run / "checkpoints")) == [2]
    assert (run / "checkpoints/latest").read_text() == "000002\n"
    assert [row["iteration"] for row in lines(run / "metrics.jsonl")] == [1, 2]


def test_a_checkpoint_that_is_not_there(run: Path) -> None:
    with pytest.raises(ValueError, match=r"resume_from 3 names no .*resume-from 6 .*: 2, 4, 6\)"):
        resume(run, resume_from=3)


@pytest.mark.parametrize("text", ["", "../../elsewhere\n", "000007\n", "\x00", "6"])
def test_a_broken_pointer_is_refused_with_the_way_on(text: str, run: Path, whole: Path) -> None:
    (run / "checkpoints/latest").write_text(text)
    with pytest.raises(ValueError, match=r"latest names .*no such checkpoint; .*resume-from 6"):
        resume(run)
    assert resume(run, resume_from=4).finished
    assert differences(whole, run) == []


def test_without_a_pointer_the_newest_is_used(run: Path, whole: Path) -> None:
    (run / "checkpoints/latest").unlink()
    assert resume(run).finished
    assert differences(whole, run) == []


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"seed": 1}, "its seed is 1, here it is 0"),
        ({"learning_rate": 1e-3}, "its learning_rate is 0.001"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(
    other: dict[str, Any], named: str, run: Path, tmp_path: Path
) -> None:
    foreign = train(config(tmp_path / "foreign", **{**LONG, **other})).out
    shutil.rmtree(run / "checkpoints/000006")
    shutil.copytree(foreign / "checkpoints/000006", run / "checkpoints/000006")
    with pytest.raises(ValueError, match=rf"belongs to another run: {named}.*resume-from 4"):
        resume(run)


def test_queries_that_changed_since_are_refused(tmp_path: Path) -> None:
    data = tmp_path / "queries.jsonl"
    rows = [{"query": f"{a} {b}", "answer": a} for a in "abcdef" for b in "abcdef"]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {"data": data, "reward": "tests.agents.test_guards:length"}
    train(config(tmp_path / "run", iterations=1, **settings))
    data.write_text("".join(json.dumps(row) + "\n" for row in rows[:-1]))
    with pytest.raises(ValueError, match="another run: its sha256 of the"):
        train(config(tmp_path / "run", iterations=2, resume=True, **settings))


def test_a_model_that_changed_since_is_refused(whole: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(whole / "final/agent_0", model)
    train(config(tmp_path / "run", iterations=1, model=str(model)))
    shutil.copy(whole / "final/agent_1/model.safetensors", model)
    with pytest.raises(ValueError, match="another run: its sha256 of the reference of agent_0"):
        train(config(tmp_path / "run", iterations=2, model=str(model), resume=True))


def test_logs_that_lack_an_iteration_are_refused_and_left_alone(run: Path) -> None:
    file = run / "metrics.jsonl"
    kept = [row for i, row in enumerate(file.read_text().split("\n"), start=1) if i != 3]
    file.write_text("\n".join(kept))
    with pytest.raises(ValueError, match=r"iterations 1 to 6 in .*metrics.jsonl, and 3 is missing"):
        resume(run)
    assert file.read_text() == "\n".join(kept)
    assert resume(run, resume_from=2).finished


def test_what_a_killed_process_left_is_cleared_up(run: Path, whole: Path) -> None:
    (run / ".config.json.abcd1234.tmp").write_text("{")
    (run / "checkpoints/.000008.abcd1234.tmp").mkdir()
    (run / "checkpoints/.000008.abcd1234.tmp/agent_0.safetensors").write_text("half")
    (run / "final/.agent_0.abcd1234.old").mkdir()
    # Killed between the two moves of a replacement: only the old one is there, set aside.
    (run / ".best.abcd1234.old").mkdir()
    (run / "best").rename(run / ".best.abcd1234.old/was")
    (run / "notes.txt").write_text("mine")
    (run / ".notes").write_text("mine")
    assert resume(run).finished
    assert (run / "notes.txt").exists() and (run / ".notes").exists()
    assert differences(whole, run) == [".notes", "notes.txt"]


def test_a_kill_before_old_checkpoints_were_removed_is_made_up_for(run: Path) -> None:
    assert resume(run, keep_checkpoints=1).finished
    assert list(checkpoints(run / "checkpoints")) == [6]


def test_two_processes_do_not_train_in_one_folder(run: Path) -> None:
    other_process = pytest.raises(ValueError, match="is being trained by another process")
    with RunFolder(run).locked(), other_process:
        resume(run)
    assert resume(run).finished


def test_a_run_killed_while_it_claimed_its_folder_does_not_block_it(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/.config.json.abcd1234.tmp").write_text("{")
    assert train(config(tmp_path / "run", iterations=1)).finished
    assert not list((tmp_path / "run").glob(".*"))


def test_a_run_killed_before_its_first_file_can_be_resumed(whole: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    shutil.copy(whole / "config.json", tmp_path / "run")
    assert resume(tmp_path / "run").finished
    assert differences(whole, tmp_path / "run") == []


# Full disk and read-only folders.


def no_space(*args: Any, **kwargs: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def no_space_in_rust(*args: Any, **kwargs: Any) -> None:
    raise SafetensorError("Error while serializing: I/O error: No space left (os error 28)")


@pytest.mark.parametrize(
    ("where", "fault", "kept"),
    [
        ("agents.checkpoint.save_file", no_space_in_rust, "000004"),
        ("agents.files.os.fsync", no_space, "000004"),
        ("agents.run_folder.append_line", no_space, "000004"),
        ("agents.training.draw_curves", no_space, "000006"),
        ("agents.export.copy.deepcopy", no_space, "000004"),
    ],
)
def test_a_full_disk_is_one_sentence_and_the_last_checkpoint_is_whole(
    where: str,
    fault: Any,
    kept: str,
    whole: Path,
    stopped: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = {**LONG, "checkpoint_interval": 2, "keep_checkpoints": 9}
    shutil.copytree(stopped, tmp_path / "run")
    training = training_of(tmp_path / "run", resume=True, **settings)
    with monkeypatch.context() as patch:
        patch.setattr(where, fault)
        with pytest.raises(StorageError, match="cannot be written: No space left on device; the "):
            training.run()
    assert (tmp_path / "run/checkpoints/latest").read_text() == f"{kept}\n"
    assert not half_written(tmp_path / "run")
    load_checkpoint(tmp_path / f"run/checkpoints/{kept}", session_of(**settings).learners)
    assert resume(tmp_path / "run").finished
    assert differences(whole, tmp_path / "run") == []


def test_a_real_limit_on_the_size_of_files(whole: Path, stopped: Path, tmp_path: Path) -> None:
    settings = {**LONG, "checkpoint_interval": 2, "keep_checkpoints": 9}
    shutil.copytree(stopped, tmp_path / "run")
    training = training_of(tmp_path / "run", resume=True, **settings)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = (tmp_path / "run/checkpoints/000004/agent_0.safetensors").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, before[1]))
    try:
        with pytest.raises(StorageError, match="cannot be written: File too large; the checkpoint"):
            training.run()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not half_written(tmp_path / "run")
    assert resume(tmp_path / "run").finished
    assert differences(whole, tmp_path / "run") == []


def test_a_full_disk_before_the_first_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = training_of(tmp_path / "run", iterations=2)
    monkeypatch.setattr("agents.checkpoint.save_file", no_space)
    with pytest.raises(StorageError, match="there is no checkpoint yet, so it will begin again"):
        training.run()


def test_a_kill_does_not_half_remove_a_checkpoint(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*args: Any, **kwargs: Any) -> None:
        raise _PowerCutError

    monkeypatch.setattr("agents.files.shutil.rmtree", killed)
    with pytest.raises(_PowerCutError):
        prune_checkpoints(run / "checkpoints", 2)
    # What is listed is whole: the oldest is gone at once, and what is left of it is hidden.
    assert list(checkpoints(run / "checkpoints")) == [4, 6]
    assert half_written(run)


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_read_only_folder_is_refused_before_any_work(
    number: int, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("agents.run_folder.tempfile.TemporaryFile", refuse)
    with pytest.raises(ValueError, match=rf"cannot be written: {os.strerror(number)}; the run in"):
        resume(run)


def test_a_folder_that_becomes_read_only_while_resuming(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agents.run_folder.write_text", no_space)
    with pytest.raises(StorageError, match=r"cannot be read or written: No space left on device"):
        resume(run)


# Ctrl-C and SIGTERM.


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["INT", "TERM"]
)
@pytest.mark.parametrize("when", ["in an iteration", "in the first evaluation"])
def test_a_signal_ends_the_command_with_its_status_and_the_way_on(
    number: signal.Signals,
    status: int,
    when: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Interrupted(Training):
        def _play(self) -> Any:
            if self.trainer.iteration == 2:  # in iteration 3, of which no checkpoint is due
                os.kill(os.getpid(), number)
            return super()._play()

        def _evaluate_initial(self) -> None:
            super()._evaluate_initial()
            if when == "in the first evaluation":
                os.kill(os.getpid(), number)

    out = tmp_path / "run"
    flags = ["--batch-size", "8", "--iterations", "6", "--eval-queries", "4", "--out", str(out)]
    flags += ["--no-progress", "--no-tensorboard", "--checkpoint-interval", "9"]
    monkeypatch.setattr(sys, "argv", ["cory-train", *flags])
    monkeypatch.setattr(agents.train, "Training", Interrupted)
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == status
    last = capsys.readouterr().err.strip().splitlines()[-1]
    done = 3 if when == "in an iteration" else 0
    after = "after iteration 3" if done else "before training"
    assert last == f"stopped {after}; go on with --resume --out {out}"
    assert list(checkpoints(out / "checkpoints")) == [done][: bool(done)]
    monkeypatch.setattr(agents.train, "Training", Training)
    monkeypatch.setattr(sys, "argv", ["cory-train", "--resume", "--out", str(out)])
    main()
    assert len(lines(out / "metrics.jsonl")) == 6


# The last good checkpoint.


def test_a_checkpoint_of_ruined_weights_never_replaces_a_good_one(tmp_path: Path) -> None:
    training = training_of(tmp_path / "run", checkpoint_interval=1, keep_checkpoints=1)

    class Ruined(Training):
        def _play(self) -> Any:
            played = super()._play()
            if self.trainer.iteration == 3:
                for parameter in self.session.learners["agent_1"].actor.parameters():
                    parameter.data.fill_(float("nan"))
            return played

    training.__class__ = Ruined
    with pytest.raises(ValueError, match="weights of agent_1 are not finite after iteration 3"):
        training.run()
    assert list(checkpoints(tmp_path / "run/checkpoints")) == [2]
    assert (tmp_path / "run/checkpoints/latest").read_text() == "000002\n"


def test_a_run_that_fails_keeps_older_checkpoints_too(tmp_path: Path) -> None:
    # What ruined the failed iteration may lie in the one before it.
    class Failing(Training):
        def _play(self) -> Any:
            played = super()._play()
            if self.trainer.iteration == 4:
                raise RuntimeError("something else")
            return played

    settings = {"checkpoint_interval": 2, "keep_checkpoints": 1, "iterations": 6}
    with pytest.raises(RuntimeError, match="something else"):
        training_of(tmp_path / "run", Failing, **settings).run()
    assert list(checkpoints(tmp_path / "run/checkpoints")) == [2, 3]
    train(config(tmp_path / "run", resume=True, **settings))
    train(config(tmp_path / "whole", **settings))
    assert differences(tmp_path / "whole", tmp_path / "run") == []


def test_agents_too_large_for_a_copy_are_saved_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(config(tmp_path / "whole", iterations=2))
    monkeypatch.setattr("agents.training.SNAPSHOT_BYTES", 0)
    train(config(tmp_path / "run", iterations=2))
    assert differences(tmp_path / "whole", tmp_path / "run") == []


def test_a_capture_is_a_copy() -> None:
    session = session_of()
    states = capture(session.learners)
    before = {k: v.clone() for k, v in states["agent_0"].weights.items()}
    for parameter in session.learners["agent_0"].actor.parameters():
        parameter.data.add_(1.0)
    assert all(bool((before[k] == v).all()) for k, v in states["agent_0"].weights.items())


def test_a_half_written_line_inside_a_character_is_left_out(tmp_path: Path) -> None:
    append_line(tmp_path / "a.jsonl", {"iteration": 1})
    with (tmp_path / "a.jsonl").open("ab") as file:
        file.write('{"iteration": 2, "text": "ü'.encode()[:-1])
    folder = RunFolder(tmp_path)
    folder.metrics_file = tmp_path / "a.jsonl"
    folder.cut_after(1)
    assert lines(tmp_path / "a.jsonl") == [{"iteration": 1}]
