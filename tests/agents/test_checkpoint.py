"""Tests of agents/checkpoint.py: what is written, what is refused, and that resuming is exact."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import agents
import cory_env
from agents.checkpoint import (
    _state_sum,
    capture,
    latest_checkpoint,
    load_checkpoint,
    prune_checkpoints,
    save_checkpoint,
)
from agents.session import Session
from agents.train import Training, TrainResult, train
from tests.agents.runs import (
    assert_same_tensors,
    config,
    learner_state,
    lines,
    reseal,
    session_of,
    stopping_after,
    training_of,
    weights,
    without_seconds,
)

LONG: dict[str, Any] = {
    "iterations": 6,
    "checkpoint_interval": 3,
    "eval_interval": 2,
    "role_exchange_interval": 2,
    "keep_checkpoints": 9,
    "kl_target": 0.05,
    "kl_horizon": 50,
}
"""Evaluations 2 4 6, exchanges before 3 and 5, checkpoints 3 6, and an adaptive KL weight."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nobody interrupts."""
    return train(config(tmp_path_factory.mktemp("whole") / "run", **LONG)).out


def assert_same_run(one: Path, two: Path) -> None:
    """Equal in metrics (without seconds), samples, models and the state of the end."""
    assert without_seconds(lines(one / "metrics.jsonl")) == without_seconds(
        lines(two / "metrics.jsonl")
    )
    for name in ("samples.jsonl", "eval_initial.json", "answers_final.json", "best/README"):
        assert (one / name).read_text() == (two / name).read_text(), name
    for folder in ("final", "best", "checkpoints/000006"):
        assert_same_tensors(weights(one / folder), weights(two / folder))
    for agent in ("agent_0", "agent_1"):
        extra = [
            json.loads((r / f"checkpoints/000006/{agent}.json").read_text()) for r in (one, two)
        ]
        assert extra[0] == extra[1]
    states = [json.loads((r / "checkpoints/000006/state.json").read_text()) for r in (one, two)]
    for state in states:
        del state["counters"]["seconds"], state["checksum"]
    assert states[0] == states[1]


@pytest.mark.case(49, 50, 52)
@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
def test_an_interrupted_run_that_goes_on_is_the_uninterrupted_one(
    k: int, whole: Path, tmp_path: Path
) -> None:
    # k = 1: nothing yet; 2: an evaluation, and an exchange comes; 3: a checkpoint of its own.
    first = training_of(tmp_path / "run", stopping_after(k), **LONG).run()
    assert not first.finished
    assert len(first.metrics) == k
    assert (tmp_path / "run/checkpoints/latest").read_text() == f"00000{k}\n"
    assert not (tmp_path / "run/final").exists()
    second = train(config(tmp_path / "run", resume=True, **LONG))
    assert second.finished
    shutil.rmtree(tmp_path / f"run/checkpoints/00000{k}") if k != 3 else None
    assert_same_run(whole, tmp_path / "run")


class _PowerCutError(Exception):
    """A power cut."""


def crashing_in(iteration: int, where: str) -> type[Training]:
    """A run that dies in an iteration, before or after its lines are in the logs."""

    class Crashing(Training):
        def _log(self, number: int, row: Any, records: Any) -> None:
            if number == iteration and where == "before its log":
                raise _PowerCutError
            super()._log(number, row, records)
            if number == iteration:
                with self.folder.samples_file.open("a") as file:
                    file.write('{"iteration": 5, "que')  # half a line
                raise _PowerCutError

    return Crashing


@pytest.mark.case(50)
@pytest.mark.parametrize("where", ["before its log", "after its log"])
def test_after_a_crash_later_lines_are_cut_off_and_the_work_is_redone(
    where: str, whole: Path, tmp_path: Path
) -> None:
    training = training_of(tmp_path / "run", crashing_in(5, where), **LONG)
    with pytest.raises(_PowerCutError):
        training.run()
    logged = len(lines(tmp_path / "run/metrics.jsonl"))
    assert logged == (4 if where == "before its log" else 5)  # the checkpoint is of iteration 3
    train(config(tmp_path / "run", resume=True, **LONG))
    assert_same_run(whole, tmp_path / "run")


def test_a_crash_before_the_first_checkpoint_begins_again(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(_PowerCutError):
        training_of(tmp_path / "run", crashing_in(2, "after its log"), **LONG).run()
    train(config(tmp_path / "run", resume=True, **LONG))
    assert_same_run(whole, tmp_path / "run")


def test_a_finished_run_can_be_made_longer(whole: Path, tmp_path: Path) -> None:
    short = train(config(tmp_path / "run", **{**LONG, "iterations": 4}))
    assert short.finished and [r["iteration"] for r in short.metrics] == [1, 2, 3, 4]
    train(config(tmp_path / "run", resume=True, **LONG))
    shutil.rmtree(tmp_path / "run/checkpoints/000004")
    assert_same_run(whole, tmp_path / "run")


def test_resuming_a_finished_run_changes_nothing(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "run")
    result = train(config(tmp_path / "run", resume=True, **LONG))
    assert result.finished
    assert_same_run(whole, tmp_path / "run")


def test_a_folder_that_was_moved_can_be_resumed(whole: Path, tmp_path: Path) -> None:
    training_of(tmp_path / "run", stopping_after(2), **LONG).run()
    (tmp_path / "run").rename(tmp_path / "moved")
    train(config(tmp_path / "moved", resume=True, **LONG))
    shutil.rmtree(tmp_path / "moved/checkpoints/000002")
    assert_same_run(whole, tmp_path / "moved")


@pytest.mark.case(49)
@pytest.mark.parametrize("k", [1, 2])
def test_runs_that_start_from_a_model_folder_resume_exactly(
    k: int, cory_run: TrainResult, run_of: Callable[..., TrainResult], tmp_path: Path
) -> None:
    options = {"model": str(cory_run.out / "final/agent_0"), "iterations": 3}
    whole = run_of(**options)
    training_of(tmp_path / "run", stopping_after(k), **options).run()
    again = train(config(tmp_path / "run", resume=True, **options))
    assert without_seconds(again.metrics) == without_seconds(whole.metrics)
    assert_same_tensors(weights(again.out / "final"), weights(whole.out / "final"))


def test_the_cadence_may_change_on_resume(whole: Path, tmp_path: Path) -> None:
    training_of(tmp_path / "run", stopping_after(3), **LONG).run()
    other = {**LONG, "checkpoint_interval": 1, "eval_interval": 5, "samples_per_iteration": 0}
    train(config(tmp_path / "run", resume=True, **other))
    final = [weights(run / "final") for run in (whole, tmp_path / "run")]
    assert_same_tensors(*final)
    for a, b in zip(
        lines(whole / "metrics.jsonl"), lines(tmp_path / "run/metrics.jsonl"), strict=True
    ):
        assert a["agent_0/score"] == b["agent_0/score"]


# What cannot be resumed.


def test_resume_needs_a_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"resume needs a run in .*nowhere, and there is none"):
        train(config(tmp_path / "nowhere", resume=True))
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seed", 1),
        ("method", "competitive"),
        ("learning_rate", 1e-4),
        ("batch_size", 4),
        ("kl_coef", 0.5),
        ("temperature", 0.9),
        ("task_args", "kappa=0.5"),
        ("role_exchange_interval", 3),
        ("eval_queries", 5),
    ],
)
def test_resume_refuses_another_setting_by_name(
    name: str, value: Any, cory_run: TrainResult
) -> None:
    before = sorted(p.stat().st_mtime_ns for p in cory_run.out.rglob("*"))
    with pytest.raises(ValueError, match=rf"resume must keep {name}: the run has .*, got "):
        train(config(cory_run.out, resume=True, **{"tensorboard": True, name: value}))
    assert sorted(p.stat().st_mtime_ns for p in cory_run.out.rglob("*")) == before


@pytest.mark.parametrize("text", ["", "{", "[1]", "3"])
def test_resume_refuses_a_broken_config(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=r"resume cannot read .*config\.json"):
        train(config(tmp_path, resume=True))


def test_a_linear_schedule_cannot_be_made_longer(tmp_path: Path) -> None:
    linear = {"learning_rate_schedule": "linear", "iterations": 2}
    train(config(tmp_path / "run", **linear))
    with pytest.raises(ValueError, match="resume must keep iterations"):
        train(config(tmp_path / "run", **{**linear, "iterations": 3}, resume=True))


# A checkpoint by itself.


@pytest.fixture
def saved(tmp_path: Path, cory_run: TrainResult) -> Path:
    """A copy of a real checkpoint, to be broken."""
    shutil.copytree(cory_run.out / "checkpoints/000004", tmp_path / "000004")
    return tmp_path / "000004"


@pytest.mark.case(37, 51, "P14")
def test_what_is_saved_is_what_is_loaded(saved: Path, tmp_path: Path) -> None:
    fresh = session_of()
    state = load_checkpoint(saved, fresh.learners)
    assert state["iteration"] == 4
    for agent, learner in fresh.learners.items():
        assert_same_tensors(
            dict(learner.actor.state_dict()), load_file(saved / f"{agent}.safetensors")
        )
    again = save_checkpoint(tmp_path / "again", 4, capture(fresh.learners), {"counters": 1})
    for file in saved.glob("*.safetensors"):
        assert_same_tensors(load_file(file), load_file(again / file.name))
    for file in saved.glob("agent_?.json"):
        assert json.loads(file.read_text()) == json.loads((again / file.name).read_text())
    groups = fresh.learners["agent_0"].optim._optim.param_groups
    assert groups[0]["betas"] == (0.9, 0.999)  # a tuple again, as Adam wants it


@pytest.mark.case(51)
def test_the_adaptive_weight_is_restored(whole: Path) -> None:
    session = session_of(**LONG)
    load_checkpoint(whole / "checkpoints/000006", session.learners)
    coefs = [learner.kl_controller.coef for learner in session.learners.values()]
    stored = [
        json.loads((whole / f"checkpoints/000006/{a}.json").read_text())["kl_coef"]
        for a in session.learners
    ]
    assert coefs == stored
    assert all(coef != session.config.kl_coef for coef in coefs)


def truncate(name: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        data = (path / name).read_bytes()
        (path / name).write_bytes(data[: len(data) // 2])

    return change


def remove(name: str) -> Callable[[Path], None]:
    return lambda path: (path / name).unlink()


def write(name: str, text: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        (path / name).write_text(text)

    return change


def foreign(path: Path) -> None:
    tensors = load_file(path / "agent_1.safetensors")
    name = next(iter(tensors))
    save_file({**tensors, name: tensors[name][:-1].contiguous()}, path / "agent_1.safetensors")


def foreign_optimizer(path: Path) -> None:
    tensors = load_file(path / "agent_1.optimizer.safetensors")
    tensors["0/exp_avg"] = tensors["0/exp_avg"][:-1].contiguous()
    save_file(tensors, path / "agent_1.optimizer.safetensors")


def lost_moment(path: Path) -> None:
    tensors = load_file(path / "agent_1.optimizer.safetensors")
    del tensors["0/exp_avg_sq"]
    save_file(tensors, path / "agent_1.optimizer.safetensors")


def flip_bit(name: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        data = bytearray((path / name).read_bytes())
        data[-len(data) // 3] ^= 1
        (path / name).write_bytes(data)

    return change


def sealed(change: Callable[[Path], None]) -> Callable[[Path], None]:
    """The change, with checksums that fit it: what a forger would hand over."""

    def forge(path: Path) -> None:
        change(path)
        reseal(path)

    return forge


def state_with(**values: Any) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        state = json.loads((path / "state.json").read_text())
        state = {**state, **values}
        del state["checksum"]
        state["checksum"] = _state_sum(state)
        (path / "state.json").write_text(json.dumps(state))

    return change


def not_finite(path: Path) -> None:
    tensors = load_file(path / "agent_1.safetensors")
    next(iter(tensors.values())).view(-1)[0] = torch.nan
    save_file(tensors, path / "agent_1.safetensors")


def other_dtype(path: Path) -> None:
    tensors = load_file(path / "agent_1.safetensors")
    save_file({k: v.double() for k, v in tensors.items()}, path / "agent_1.safetensors")


BROKEN: dict[str, Callable[[Path], None]] = {
    "truncated weights": truncate("agent_1.safetensors"),
    "truncated optimizer": truncate("agent_1.optimizer.safetensors"),
    "truncated state": truncate("state.json"),
    "truncated numbers": truncate("agent_1.json"),
    "no weights": remove("agent_1.safetensors"),
    "no optimizer": remove("agent_1.optimizer.safetensors"),
    "no state": remove("state.json"),
    "no numbers": remove("agent_1.json"),
    "empty weights": write("agent_1.safetensors", ""),
    "another model": sealed(foreign),
    "another optimizer": sealed(foreign_optimizer),
    "a lost moment": sealed(lost_moment),
    "another format": state_with(format=99),
    "another iteration": state_with(iteration=3),
    "an iteration that is no number": state_with(iteration="4"),
    "a file elsewhere": state_with(files={"../latest": "0"}),
    "nested state": write("state.json", "[" * 100_000),
    "other types": sealed(other_dtype),
    "weights that are not finite": sealed(not_finite),
    "forged numbers": sealed(write("agent_1.json", "[1]")),
    "forged groups": sealed(write("agent_1.json", '{"kl_coef": 0.1, "param_groups": [1]}')),
    **{
        f"a flipped bit in {name}": flip_bit(name)
        for name in (
            "agent_0.safetensors",
            "agent_1.optimizer.safetensors",
            "agent_0.json",
            "state.json",
        )
    },
    "a list for a state": write("state.json", "[1]"),
    "a list for numbers": write("agent_1.json", "[1]"),
    "a state without iteration": write("state.json", '{"format": 1}'),
    "numbers without a weight": write("agent_1.json", '{"param_groups": []}'),
}


@pytest.mark.case(51)
@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_checkpoint_is_refused_and_changes_no_learner(what: str, saved: Path) -> None:
    BROKEN[what](saved)
    session = session_of()
    before = learner_state(session)
    with pytest.raises(
        ValueError, match=r"checkpoint .*000004 cannot be used: .*there is no other checkpoint"
    ):
        load_checkpoint(saved, session.learners)
    assert_same_tensors(before, learner_state(session))
    assert [x.kl_controller.coef for x in session.learners.values()] == [
        session.config.kl_coef,
        session.config.kl_coef,
    ]


@pytest.mark.parametrize(
    "values",
    [
        {"counters": None},
        {"counters": {"steps": 1}},
        {"query_position": -1},
        {"query_position": "x"},
        {"best": 3},
        {"guards": {}},
    ],
    ids=str,
)
def test_a_forged_state_is_refused_when_a_run_resumes(
    values: dict[str, Any], cory_run: TrainResult, tmp_path: Path
) -> None:
    shutil.copytree(cory_run.out, tmp_path / "run")
    state_with(**values)(tmp_path / "run/checkpoints/000004")
    with pytest.raises(ValueError, match=r"checkpoint .*000004 cannot be used: .*resume-from 2"):
        train(config(tmp_path / "run", resume=True, tensorboard=True))


def test_latest_semantics(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path) is None
    session = session_of()
    save_checkpoint(tmp_path, 3, capture(session.learners), {})
    assert latest_checkpoint(tmp_path) == tmp_path / "000003"
    save_checkpoint(tmp_path, 12, capture(session.learners), {})
    assert (tmp_path / "latest").read_text() == "000012\n"
    # The pointer decides, not the highest number: a newer folder may be of a run that died.
    (tmp_path / "latest").write_text("000003\n")
    assert latest_checkpoint(tmp_path) == tmp_path / "000003"
    (tmp_path / "latest").write_text("000007\n")
    with pytest.raises(ValueError, match="names '000007', and there is no such checkpoint"):
        latest_checkpoint(tmp_path)


def test_saving_the_same_iteration_again_replaces_it(tmp_path: Path) -> None:
    session = session_of()
    save_checkpoint(tmp_path, 3, capture(session.learners), {"note": "old"})
    (tmp_path / "000003/stray").write_text("x")
    save_checkpoint(tmp_path, 3, capture(session.learners), {"note": "new"})
    assert json.loads((tmp_path / "000003/state.json").read_text())["note"] == "new"
    assert not (tmp_path / "000003/stray").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["000003", "latest"]


def test_pruning_keeps_the_newest_and_always_the_latest(tmp_path: Path) -> None:
    for number in (2, 4, 6, 8):
        (tmp_path / f"{number:06d}").mkdir()
    (tmp_path / "latest").write_text("000004\n")
    prune_checkpoints(tmp_path, 2)
    assert sorted(p.name for p in tmp_path.glob("0*")) == ["000004", "000006", "000008"]
    prune_checkpoints(tmp_path, 1)
    assert sorted(p.name for p in tmp_path.glob("0*")) == ["000004", "000008"]


def test_a_run_keeps_as_many_as_it_is_told(run_of: Callable[..., TrainResult]) -> None:
    run = run_of(iterations=4, checkpoint_interval=1, keep_checkpoints=2, eval_interval=9)
    names = sorted(p.name for p in (run.out / "checkpoints").iterdir())
    assert names == ["000003", "000004", "latest"]


def test_a_failed_write_leaves_the_old_checkpoint_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session: Session = session_of()
    save_checkpoint(tmp_path, 1, capture(session.learners), {})

    def full_disk(*args: Any, **kwargs: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("agents.checkpoint.save_file", full_disk)
    for number in (1, 2):
        with pytest.raises(OSError, match="no space"):
            save_checkpoint(tmp_path, number, capture(session.learners), {})
    assert latest_checkpoint(tmp_path) == tmp_path / "000001"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["000001", "latest"]
    load_checkpoint(tmp_path / "000001", session.learners)


def test_a_finished_run_leaves_no_temporary_files(cory_run: TrainResult) -> None:
    assert [p for p in cory_run.out.rglob("*") if p.name.startswith(".") or "tmp" in p.name] == []


def test_nothing_is_pickled_anywhere() -> None:
    forbidden = re.compile(
        r"\btorch\.(load|save)\b|^\s*(import|from)\s+(pickle|dill|joblib|shelve|marshal)\b"
        r"|allow_pickle\s*=\s*True|weights_only\s*=\s*False",
        re.MULTILINE,
    )
    for package in (agents, cory_env):
        for path in Path(str(package.__file__)).parent.rglob("*.py"):
            found = forbidden.search(path.read_text(encoding="utf-8"))
            assert found is None, f"{path}: {found}"


def test_a_checkpoint_is_plain_files(saved: Path) -> None:
    assert {p.suffix for p in saved.iterdir()} == {".safetensors", ".json"}
    assert all(not torch.isnan(t).any() for t in weights(saved).values())


def test_what_is_lent_is_written_as_what_is_copied(tmp_path: Path) -> None:
    session = session_of(task="target")
    copied, lent = capture(session.learners), capture(session.learners, lend=True)
    one = save_checkpoint(tmp_path / "one", 1, copied, {})
    two = save_checkpoint(tmp_path / "two", 1, lent, {})
    assert_same_tensors(weights(one), weights(two))


def test_only_what_shares_memory_is_copied_when_it_is_lent() -> None:
    session = session_of(task="reviews")  # its embedding is tied to its output layer
    actor = session.learners["agent_0"].actor
    own = {t.data_ptr() for t in actor.state_dict().values()}
    lent = capture(session.learners, lend=True)["agent_0"].weights
    copies = [name for name, tensor in lent.items() if tensor.data_ptr() not in own]
    assert copies == ["model.lm_head.weight"]
    assert torch.equal(lent[copies[0]], lent["model.model.embed_tokens.weight"])
