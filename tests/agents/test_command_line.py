"""Tests of agents/command_line.py and of `cory-train`: bad input ends in one sentence."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import AutoTokenizer

from agents.command_line import settings_from_file, train_config
from agents.config import PRESETS, TrainConfig
from agents.train import TrainResult, main, train
from tests.agents import broken_rewards
from tests.agents.runs import config, lines

FAST = [
    "--iterations", "2", "--batch-size", "8", "--eval-queries", "4", "--no-progress",
    "--no-tensorboard", "--update-epochs", "1", "--checkpoint-interval", "1",
]  # fmt: skip


# Flags and files.


def test_no_flags_are_the_defaults() -> None:
    assert train_config([]) == TrainConfig()


def test_flags_have_dashes() -> None:
    got = train_config(
        [
            "--task",
            "sums",
            "--method",
            "competitive",
            "--algorithm",
            "ppo",
            "--model",
            "builtin:sums",
            "--iterations",
            "20",
            "--batch-size",
            "128",
            "--seed",
            "3",
            "--out",
            "runs/demo",
            "--learning-rate",
            "1e-3",
            "--kl-coef",
            "0.1",
            "--kl-estimator",
            "k3",
            "--clip-coef",
            "0.1",
            "--vf-coef",
            "0.2",
            "--gamma",
            "0.9",
            "--gae-lambda",
            "0.8",
            "--update-epochs",
            "2",
            "--minibatch-size",
            "4",
            "--max-response-tokens",
            "5",
            "--temperature",
            "0.7",
            "--role-exchange-interval",
            "6",
            "--n-agents",
            "4",
            "--reward",
            "vader",
            "--data",
            "a.txt",
            "--eval-interval",
            "7",
            "--eval-queries",
            "8",
            "--checkpoint-interval",
            "9",
            "--keep-checkpoints",
            "3",
            "--threads",
            "1",
            "--device",
            "cpu",
            "--dtype",
            "float64",
            "--resume",
            "--max-grad-norm",
            "None",
        ]
    )
    assert got == TrainConfig(
        task="sums",
        method="competitive",
        model="builtin:sums",
        iterations=20,
        batch_size=128,
        seed=3,
        out=Path("runs/demo"),
        learning_rate=1e-3,
        kl_coef=0.1,
        kl_estimator="k3",
        clip_coef=0.1,
        vf_coef=0.2,
        gamma=0.9,
        gae_lambda=0.8,
        update_epochs=2,
        minibatch_size=4,
        max_response_tokens=5,
        temperature=0.7,
        role_exchange_interval=6,
        n_agents=4,
        reward="vader",
        data=Path("a.txt"),
        eval_interval=7,
        eval_queries=8,
        checkpoint_interval=9,
        keep_checkpoints=3,
        threads=1,
        dtype="float64",
        resume=True,
        max_grad_norm=None,
    )


def test_yaml_and_json_say_the_same(tmp_path: Path) -> None:
    values = {"task": "sums", "learning_rate": 0.002, "batch-size": 64, "n_agents": None}
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(values))
    (tmp_path / "a.json").write_text(json.dumps(values))
    expected = TrainConfig(task="sums", learning_rate=0.002, batch_size=64)
    for name in ("a.yaml", "a.json"):
        assert train_config(["--config", str(tmp_path / name)]) == expected
        assert train_config([f"--config={tmp_path / name}"]) == expected


def test_yaml_numbers_without_a_point(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("learning_rate: 2e-4\n")  # text, for YAML
    assert train_config(["--config", str(tmp_path / "a.yaml")]).learning_rate == 2e-4


def test_flags_override_files_and_files_override_presets(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("kl_coef: 0.5\nlearning_rate: 0.5\n")
    got = train_config(
        [
            "--learning-rate", "0.25", "--config", str(tmp_path / "a.yaml"),
            "--preset", "paper_imdb",
        ]
    )  # fmt: skip
    assert got.learning_rate == 0.25  # the flag
    assert got.kl_coef == 0.5  # the file
    assert got.batch_size == 512 and got.max_grad_norm is None  # the preset


@pytest.mark.parametrize("name", PRESETS)
def test_presets(name: str) -> None:
    assert train_config(["--preset", name]) == TrainConfig(**PRESETS[name])  # type: ignore[arg-type]


def test_a_flag_may_mend_what_a_file_says(tmp_path: Path) -> None:
    # For solo an odd batch is fine; the file alone would be refused for two agents.
    (tmp_path / "a.yaml").write_text("batch_size: 7\n")
    got = train_config(["--config", str(tmp_path / "a.yaml"), "--method", "solo"])
    assert got.batch_size == 7


def test_a_runs_own_config_repeats_it(cory_run: TrainResult, tmp_path: Path) -> None:
    file = str(cory_run.out / "config.json")
    got = train_config(["--config", file, "--out", str(tmp_path / "again")])
    assert got.out == tmp_path / "again" and not got.resume
    # Seconds aside, the same settings are the same run.
    again = train(got)
    drop = {"seconds"}
    assert [{k: v for k, v in r.items() if k not in drop} for r in again.metrics] == [
        {k: v for k, v in r.items() if k not in drop} for r in cory_run.metrics
    ]


def test_resume_needs_only_the_folder(cory_run: TrainResult, tmp_path: Path) -> None:
    shutil.copytree(cory_run.out, tmp_path / "run")
    got = train_config(["--resume", "--out", str(tmp_path / "run"), "--iterations", "5"])
    assert got.iterations == 5 and got.resume and got.out == tmp_path / "run"
    result = train(got)
    assert [r["iteration"] for r in result.metrics] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "learning_rte: 1", "setting 'learning_rte' is not known"),
        ("a.yaml", "iterations: 2.5", "iterations must be"),
        ("a.yaml", "a: [", "is not valid"),
        ("a.json", "{", "is not valid"),
        ("a.json", "[1]", "must hold settings by name, got list"),
        ("a.yaml", "", "must hold settings by name, got NoneType"),
        ("missing.yaml", None, "cannot be read"),
    ],
)
def test_broken_files_are_refused(
    name: str, text: str | None, message: str, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        settings_from_file(tmp_path / name)


def test_help_explains_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        train_config(["--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    for name in vars(TrainConfig()):
        assert f"--{name.replace('_', '-')}" in shown, name


# The command.


def command(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """Run `cory-train`; it must fail with one line, which is returned."""
    monkeypatch.setattr(sys, "argv", ["cory-train", *arguments])
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code not in (0, None)
    lines_shown = capsys.readouterr().err.strip().splitlines()
    shown = "\n".join(line for line in lines_shown if not line.startswith("warning: "))
    assert "Traceback" not in shown
    assert shown.startswith("error: ")
    assert len(shown.splitlines()) == 1, shown
    return shown


def without_weights(path: Path) -> Path:
    path.mkdir()
    (path / "config.json").write_text("{}")
    return path


REFUSED: dict[str, tuple[list[str], str]] = {
    "task": (
        ["--task", "riddles"],
        "unknown task 'riddles'; known are custom, gsm8k, gsm_symbolic, imdb",
    ),
    "task module": (["--task", "nowhere:Task"], "task 'nowhere:Task': cannot import"),
    "task name": (["--task", "json:Task"], "task 'json:Task': json has no"),
    "no task": (["--task", "json:dumps"], "task 'json:dumps'"),
    "method": (["--method", "corry"], "method must be one of solo, cory"),
    "algorithm": (["--algorithm", "sac"], "unknown algorithm 'sac'; known are"),
    "no algorithm": (["--algorithm", "json:dumps"], "algorithm 'json:dumps'"),
    "builtin": (["--model", "builtin:gpt5"], "model must be one of builtin:reviews"),
    "folder": (["--model", "./nowhere"], "there is no such folder"),
    "hub": (["--model", "somebody/a-model"], "could not be loaded"),
    "short name": (["--model", "a-model"], "could not be loaded"),
    "two models for three": (
        ["--model", "a,b", "--n-agents", "3", "--batch-size", "6"],
        "model must name one model or 3",
    ),
    "reward": (["--reward", "likes"], "unknown reward 'likes'"),
    "reward sum": (["--reward", "0.5*target + "], "reward"),
    "reward module": (["--reward", "nowhere:f"], "cannot import 'nowhere'"),
    "data": (["--data", "nowhere.txt"], "nowhere.txt"),
    "task args": (["--task-args", "kappa"], "task_args must be name=value"),
    "unknown task arg": (["--task-args", "kapa=1"], "kapa"),
    "bad task arg": (["--task-args", "kappa=2"], "kappa must be in"),
    "task arg that is no YAML": (["--task-args", "kappa=["], "task_args"),
    "task arg of another kind": (["--task-args", "kappa=high"], "kappa"),
    "batch size": (["--batch-size", "0"], "batch_size must be at least 1, got 0"),
    "odd batch": (["--batch-size", "7"], "batch_size must be a multiple of the 2 agents, got 7"),
    "context": (["--max-response-tokens", "500"], "max_prompt_tokens .* must fit the context"),
    "prompt": (["--max-prompt-tokens", "2"], "max_prompt_tokens"),
    "preset": (["--preset", "paper_mnist"], "preset must be one of paper_imdb, paper_gsm8k"),
    "config": (["--config", "nowhere.yaml"], "config nowhere.yaml cannot be read"),
    "device": (["--device", "tpu9"], "device"),
    "resume": (["--resume"], "resume needs a run"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_bad_input_ends_with_one_sentence(
    what: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments, message = REFUSED[what]
    out = tmp_path / "run"
    shown = command([*FAST, "--out", str(out), *arguments], monkeypatch, capsys)
    assert re.search(message, shown), shown
    assert not out.exists()  # a refused run leaves no folder behind


def test_a_model_folder_is_checked(
    cory_run: TrainResult,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refused(folder: Path) -> str:
        return command([*FAST, "--model", str(folder)], monkeypatch, capsys)

    empty = tmp_path / "empty"
    empty.mkdir()
    assert "must hold a config.json" in refused(empty)
    good = cory_run.out / "final/agent_0"
    no_weights = shutil.copytree(good, tmp_path / "no_weights")
    (no_weights / "model.safetensors").unlink()
    (no_weights / "pytorch_model.bin").write_bytes(b"x")
    assert "must hold its weights as *.safetensors" in refused(no_weights)
    no_tokenizer = shutil.copytree(good, tmp_path / "no_tokenizer")
    for file in no_tokenizer.glob("tokenizer*"):
        file.unlink()
    assert "must hold a tokenizer" in refused(no_tokenizer)
    broken = shutil.copytree(good, tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"x" * 100)
    assert "could not be loaded" in refused(broken)
    unknown = shutil.copytree(good, tmp_path / "unknown")
    (unknown / "config.json").write_text('{"model_type": "abacus"}')
    assert "could not be loaded" in refused(unknown)


def test_a_tokenizer_without_an_end_is_refused(
    cory_run: TrainResult,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = shutil.copytree(cory_run.out / "final/agent_0", tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.eos_token = None
    tokenizer.save_pretrained(folder)
    for name in ("config.json", "generation_config.json"):
        if (folder / name).is_file():
            values = json.loads((folder / name).read_text())
            values["eos_token_id"] = None
            (folder / name).write_text(json.dumps(values))
    shown = command([*FAST, "--model", str(folder)], monkeypatch, capsys)
    assert "end-of-sequence" in shown


@pytest.mark.case(31)
def test_models_with_different_tokenizers_are_refused(
    cory_run: TrainResult,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = shutil.copytree(cory_run.out / "final/agent_0", tmp_path / "model")
    text = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(text.replace('"?": 4', '"!": 4'))
    shown = command([*FAST, "--model", f"builtin:target,{folder}"], monkeypatch, capsys)
    assert "must share a tokenizer" in shown


def test_a_query_longer_than_the_prompt_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "q.txt"
    data.write_text("\n".join(["1 + 1"] * 40 + ["what is 10 + 10 then"]))
    options = ["--task", "sums", "--model", "builtin:target", "--data", str(data)]
    shown = command([*FAST, *options, "--max-prompt-tokens", "8"], monkeypatch, capsys)
    assert "max_prompt_tokens" in shown or "query" in shown
    assert "Traceback" not in shown


def test_a_folder_that_is_not_empty_is_refused(
    cory_run: TrainResult,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = command([*FAST, "--out", str(cory_run.out)], monkeypatch, capsys)
    assert "holds another run" in shown and "--resume" in shown
    (tmp_path / "note").write_text("")
    assert "not empty" in command([*FAST, "--out", str(tmp_path)], monkeypatch, capsys)


# Rewards that fail: the run says where, and keeps its last checkpoint.

FAILURES = {
    "raises": "raised RuntimeError: no scorer",
    "too_short": "must give 8 scores, got 7 scores",
    "nothing": "must give 8 scores, got NoneType",
    "text": "must give finite numbers, got '0.5'",
    "none_inside": "must give finite numbers, got None",
    "nan": "must give finite numbers, got nan",
    "infinite": "must give finite numbers, got inf",
    "a_list": r"must give finite numbers, got \[1.0\]",
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_reward_that_fails(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Calls: 4 of the initial evaluation (two agents, two seats), then one an iteration.
    monkeypatch.setitem(broken_rewards.CALLS, "n", 0)
    monkeypatch.setitem(broken_rewards.CALLS, "good", 6)
    out = tmp_path / "run"
    flags = [*FAST, "--iterations", "9", "--eval-interval", "9", "--out", str(out)]
    flags += ["--reward", f"tests.agents.broken_rewards:{name}", "--checkpoint-interval", "5"]
    shown = command(flags, monkeypatch, capsys)
    assert re.search(FAILURES[name], shown), shown
    assert "query" in shown and "response" in shown
    # Two iterations went well, and the state after the second is there although none was due.
    assert [r["iteration"] for r in lines(out / "metrics.jsonl")] == [1, 2]
    assert (out / "checkpoints/latest").read_text() == "000002\n"
    # With the reward mended the run goes on.
    monkeypatch.setitem(broken_rewards.CALLS, "good", 10**9)
    monkeypatch.setattr(
        sys, "argv", ["cory-train", "--resume", "--out", str(out), "--iterations", "3"]
    )
    main()
    assert [r["iteration"] for r in lines(out / "metrics.jsonl")] == [1, 2, 3]


def test_a_reward_that_fails_at_once_leaves_nothing_in_the_way_of_a_new_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(broken_rewards.CALLS, "n", 0)
    monkeypatch.setitem(broken_rewards.CALLS, "good", 0)
    out = tmp_path / "run"
    flags = [*FAST, "--out", str(out), "--reward", "tests.agents.broken_rewards:nan"]
    command(flags, monkeypatch, capsys)
    assert not out.exists()
    monkeypatch.setitem(broken_rewards.CALLS, "good", 10**9)
    monkeypatch.setattr(sys, "argv", ["cory-train", *flags])
    main()
    assert len(lines(out / "metrics.jsonl")) == 2


def test_a_resumed_folder_is_never_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Four good calls are the first evaluation; the first iteration fails, before any checkpoint.
    monkeypatch.setitem(broken_rewards.CALLS, "n", 0)
    monkeypatch.setitem(broken_rewards.CALLS, "good", 4)
    out = tmp_path / "run"
    flags = [*FAST, "--out", str(out), "--reward", "tests.agents.broken_rewards:nan"]
    command(flags, monkeypatch, capsys)
    (out / "notes.txt").write_text("mine")
    command(["--resume", "--out", str(out)], monkeypatch, capsys)
    assert (out / "notes.txt").read_text() == "mine"
    monkeypatch.setitem(broken_rewards.CALLS, "good", 10**9)
    monkeypatch.setattr(sys, "argv", ["cory-train", "--resume", "--out", str(out)])
    main()
    assert len(lines(out / "metrics.jsonl")) == 2


# The whole command.


def test_a_run_ends_with_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["cory-train", *FAST, "--out", str(tmp_path / "run")])
    main()
    shown = capsys.readouterr().out
    assert "agent_0 before" in shown and "agent_1 after" in shown
    assert str(tmp_path / "run") in shown.replace("\n", "")


def test_a_run_without_out_takes_a_numbered_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = train(config(None, iterations=1, update_epochs=1))
    assert result.out == Path("runs/target-001")
    assert (tmp_path / "runs/target-001/metrics.jsonl").is_file()


def test_as_a_module_in_a_process_of_its_own(tmp_path: Path) -> None:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])

    def run(*arguments: str) -> subprocess.CompletedProcess[Any]:
        return subprocess.run(
            [sys.executable, "-m", "agents.train", *arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment,
            check=False,
        )

    refused = run("--task", "riddles")
    assert refused.returncode == 1
    assert refused.stderr.strip().splitlines()[-1].startswith("error: unknown task 'riddles'")
    assert "Traceback" not in refused.stderr
