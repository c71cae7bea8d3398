"""Checkpoints: everything a run needs to go on as if it had not stopped.

Weights and optimizer moments lie in safetensors, numbers in JSON; nothing is unpickled. Random
streams are functions of (component, iteration, episode), so there is no generator to save.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from agents.bridge.learner import Learner
from agents.files import write_folder, write_json, write_text

FORMAT = 1


def save_checkpoint(
    folder: Path, iteration: int, learners: Mapping[str, Learner], state: Mapping[str, Any]
) -> Path:
    """Write `folder/NNNNNN` and make it the latest.

    Args:
        folder: `checkpoints/` of a run.
        iteration: the iteration that has just ended.
        learners: by agent id.
        state: counters, query position and whatever else is plain JSON.
    """
    path = folder / f"{iteration:06d}"

    def fill(fresh: Path) -> None:
        for agent, learner in learners.items():
            save_file(_owned(learner.actor.state_dict()), fresh / f"{agent}.safetensors")
            tensors, groups = _flat_optimizer(learner.optim.state_dict())
            save_file(tensors, fresh / f"{agent}.optimizer.safetensors")
            write_json(
                fresh / f"{agent}.json",
                {"kl_coef": learner.kl_controller.coef, "param_groups": groups},
            )
        write_json(fresh / "state.json", {"format": FORMAT, "iteration": iteration, **dict(state)})

    write_folder(path, fill)
    write_text(folder / "latest", path.name + "\n")
    return path


def prune_checkpoints(folder: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints, never the latest."""
    latest = latest_checkpoint(folder)
    for path in sorted(folder.glob("[0-9]*"))[:-keep]:
        if path != latest:
            shutil.rmtree(path)


def latest_checkpoint(folder: Path) -> Path | None:
    """The folder that `latest` names, or None where there is no checkpoint yet."""
    pointer = folder / "latest"
    if not pointer.is_file():
        return None
    path = folder / pointer.read_text(encoding="utf-8").strip()
    if not path.is_dir():
        raise ValueError(f"{pointer} names {path.name!r}, and there is no such checkpoint")
    return path


def load_checkpoint(path: Path, learners: Mapping[str, Learner]) -> dict[str, Any]:
    """Put learners back into the state of a checkpoint; returns its `state`.

    Raises:
        ValueError: if a file is missing, broken or does not belong to these learners. No learner
            has been changed then.
    """
    try:
        state: dict[str, Any] = json.loads((path / "state.json").read_text(encoding="utf-8"))
        if state["format"] != FORMAT:
            raise ValueError(f"its format is {state['format']!r}, expected {FORMAT}")
        if not isinstance(state["iteration"], int):
            raise ValueError(f"its iteration is {state['iteration']!r}, expected a number")
        read = {agent: _read(path, agent, learner) for agent, learner in learners.items()}
    except KeyError as error:
        raise ValueError(f"checkpoint {path} cannot be used: it lacks {error}") from error
    except (OSError, TypeError, ValueError, SafetensorError) as error:
        raise ValueError(f"checkpoint {path} cannot be used: {error}") from error
    for agent, learner in learners.items():
        weights, optimizer, kl_coef = read[agent]
        learner.actor.load_state_dict(weights, strict=True)
        learner.optim.load_state_dict(optimizer)
        learner.kl_controller.coef = kl_coef
    return state


def _read(path: Path, agent: str, learner: Learner) -> tuple[dict[str, Tensor], Any, float]:
    weights = load_file(path / f"{agent}.safetensors")
    own = learner.actor.state_dict()
    if {k: v.shape for k, v in weights.items()} != {k: v.shape for k, v in own.items()}:
        raise ValueError(f"the weights of {agent} are those of another model")
    extra = json.loads((path / f"{agent}.json").read_text(encoding="utf-8"))
    tensors = load_file(path / f"{agent}.optimizer.safetensors")
    optimizer = _nested_optimizer(tensors, extra["param_groups"])
    expected = [len(g["params"]) for g in learner.optim.state_dict()["param_groups"]]
    if [len(g["params"]) for g in optimizer["param_groups"]] != expected:
        raise ValueError(f"the optimizer of {agent} belongs to another model")
    _check_moments(agent, optimizer["state"], list(learner.actor.parameters()))
    return weights, optimizer, float(extra["kl_coef"])


def _check_moments(
    agent: str, state: Mapping[int, Mapping[str, Tensor]], parameters: Sequence[Tensor]
) -> None:
    """Refuse moments of other shapes: the optimizer itself takes them and fails at its next step.

    A parameter that never had a gradient has no moments.
    """
    for index, moments in state.items():
        if not 0 <= index < len(parameters) or moments.keys() != state[min(state)].keys():
            raise ValueError(f"the optimizer of {agent} is not complete")
        if any(m.ndim and m.shape != parameters[index].shape for m in moments.values()):
            raise ValueError(f"the optimizer of {agent} belongs to another model")


def _owned(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors that share no memory, as the format asks; tied weights are written twice."""
    return {name: t.detach().clone().contiguous() for name, t in tensors.items()}


def _flat_optimizer(state: dict[str, Any]) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """An optimizer's state as tensors by `parameter/name`, and its groups as plain values."""
    tensors = {
        f"{index}/{name}": torch.as_tensor(value)
        for index, values in state["state"].items()
        for name, value in values.items()
    }
    return _owned(tensors), state["param_groups"]


def _nested_optimizer(tensors: Mapping[str, Tensor], groups: list[dict[str, Any]]) -> Any:
    nested: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        index, name = key.split("/", 1)
        nested.setdefault(int(index), {})[name] = value
    # JSON made lists of the tuples (Adam's betas).
    restored = [
        {k: tuple(v) if isinstance(v, list) and k != "params" else v for k, v in g.items()}
        for g in groups
    ]
    return {"state": nested, "param_groups": restored}
