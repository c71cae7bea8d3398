"""Settings and looks at runs, shared by the tests of the trainer."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from agents.checkpoint import _file_sum, _state_sum
from agents.config import TrainConfig
from agents.run_folder import RunFolder
from agents.session import Session, build_session, resolve_config
from agents.train import Training

SMALL: dict[str, Any] = {
    "iterations": 4,
    "batch_size": 8,
    "minibatch_size": 3,
    "update_epochs": 2,
    "learning_rate": 3e-3,
    "eval_interval": 2,
    "eval_queries": 6,
    "checkpoint_interval": 2,
    "role_exchange_interval": 2,
    "samples_per_iteration": 100,
    "progress": False,
    "tensorboard": False,
}
"""Fractions of a second an iteration, and every kind of event within four of them."""


def config(out: Path | None = None, **settings: Any) -> TrainConfig:
    """A small run; the settings override."""
    return TrainConfig(**{**SMALL, "out": out, **settings})


def session_of(**settings: Any) -> Session:
    """The wired parts of a small run, without a folder."""
    return build_session(*resolve_config(config(**settings)))


def training_of(out: Path, kind: type[Training] = Training, **settings: Any) -> Training:
    """A run that has not begun, in a claimed folder."""
    resolved, task = resolve_config(config(out, **settings))
    folder = RunFolder(out)
    folder.check(resolved)
    session = build_session(resolved, task)
    if resolved.resume:
        folder.resume(resolved)
    else:
        folder.start(resolved)
    return kind(session, folder)


def lines(path: Path) -> list[dict[str, Any]]:
    """The rows of a .jsonl file, each of which must be whole."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def without_seconds(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Metrics without the one value that no two runs share."""
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def weights(path: Path) -> dict[str, Tensor]:
    """All tensors of a folder's safetensors files, by file and name."""
    return {
        f"{file.relative_to(path)}/{name}": tensor
        for file in sorted(path.rglob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }


def assert_same_tensors(one: dict[str, Tensor], two: dict[str, Tensor]) -> None:
    """Equal names and bit-equal values."""
    assert one.keys() == two.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, two[name]), name


def learner_state(session: Session) -> dict[str, Tensor]:
    """Copies of every weight, value head and optimizer tensor, by agent and name."""
    found: dict[str, Tensor] = {}
    for agent, learner in session.learners.items():
        for name, tensor in learner.actor.state_dict().items():
            found[f"{agent}/{name}"] = tensor.detach().clone()
        for index, values in learner.optim._optim.state_dict()["state"].items():
            for name, value in values.items():
                found[f"{agent}/optimizer/{index}/{name}"] = torch.as_tensor(value).clone()
    return found


def stopping_after(iteration: int) -> type[Training]:
    """A run that somebody interrupts during an iteration."""

    class Stopping(Training):
        def _log(self, number: int, row: Any, records: Any) -> None:
            super()._log(number, row, records)
            if number == iteration:
                self.stop.signal = signal.SIGINT

    return Stopping


def reseal(path: Path) -> None:
    """Give a changed checkpoint checksums that fit it."""
    files = {f.name: _file_sum(f) for f in sorted(path.iterdir()) if f.name != "state.json"}
    state = {**json.loads((path / "state.json").read_text()), "files": files}
    state.pop("checksum", None)
    (path / "state.json").write_text(json.dumps({**state, "checksum": _state_sum(state)}))
