"""Checkpoints: everything a run needs to go on as if it had not stopped.

Weights and optimizer moments lie in safetensors, numbers in JSON; nothing is unpickled. Random
streams are functions of (component, iteration, episode), so there is no generator to save. A
checkpoint carries the SHA-256 of each of its files and says which run it belongs to.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from agents.bridge.learner import Learner
from agents.files import remove_folder, write_folder, write_json, write_text

FORMAT = 2


@dataclass(frozen=True)
class AgentState:
    """Copies of all that belongs to one agent."""

    weights: dict[str, Tensor]
    """Model and value head."""
    moments: dict[str, Tensor]
    """Of the optimizer, by `parameter/name`."""
    groups: list[dict[str, Any]]
    """Settings of the optimizer."""
    kl_coef: float
    learner: dict[str, float]
    """What the learner keeps beside."""


def capture(
    learners: Mapping[str, Learner],
    into: Mapping[str, AgentState] | None = None,
    *,
    lend: bool = False,
) -> dict[str, AgentState]:
    """Copy the learners' state into main memory.

    Args:
        learners: by agent id.
        into: an earlier copy that nobody needs any more; its memory is used again.
        lend: take what lies in main memory already as it is, for a checkpoint that is written
            before the learners go on: a copy of large models would be the peak of the run.
    """
    states = {}
    for agent, learner in learners.items():
        old = None if into is None else into[agent]
        weights, optimizer = learner.actor.state_dict(), learner.optim.state_dict()
        moments = {
            f"{index}/{name}": torch.as_tensor(value)
            for index, values in optimizer["state"].items()
            for name, value in values.items()
        }
        states[agent] = AgentState(
            weights=_lent(weights) if lend else _owned(weights, {} if old is None else old.weights),
            moments=_lent(moments) if lend else _owned(moments, {} if old is None else old.moments),
            groups=optimizer["param_groups"],
            kl_coef=learner.kl_controller.coef,
            learner=dict(learner.state()),
        )
    return states


def save_checkpoint(
    folder: Path, iteration: int, agents: Mapping[str, AgentState], state: Mapping[str, Any]
) -> Path:
    """Write `folder/NNNNNN` and make it the latest.

    Args:
        folder: `checkpoints/` of a run.
        iteration: the iteration that has just ended.
        agents: from `capture`.
        state: counters, query position and whatever else is plain JSON.

    Raises:
        ValueError: if weights are not finite: no run could go on from them.
    """
    for agent, own in agents.items():
        if not _finite(own.weights.values()):
            raise ValueError(
                f"the weights of {agent} are not finite after iteration {iteration}, so no "
                f"checkpoint of it was written; try a lower learning_rate"
            )
    path = folder / f"{iteration:06d}"

    def fill(fresh: Path) -> None:
        for agent, own in agents.items():
            save_file(own.weights, fresh / f"{agent}.safetensors")
            save_file(own.moments, fresh / f"{agent}.optimizer.safetensors")
            numbers = {
                "kl_coef": own.kl_coef,
                "param_groups": own.groups,
                "learner": own.learner,
            }
            write_json(fresh / f"{agent}.json", numbers)
        sums = {file.name: _file_sum(file) for file in sorted(fresh.iterdir())}
        whole = {"format": FORMAT, "iteration": iteration, **dict(state), "files": sums}
        write_json(fresh / "state.json", {**whole, "checksum": _state_sum(whole)})

    write_folder(path, fill)
    write_text(folder / "latest", path.name + "\n")
    return path


# Which there are.


def checkpoints(folder: Path) -> dict[int, Path]:
    """All checkpoints of a run by iteration, ascending."""
    found = {
        int(path.name): path
        for path in folder.glob("*")
        if re.fullmatch(r"\d{6,}", path.name) and path.is_dir()
    }
    return dict(sorted(found.items()))


def prune_checkpoints(folder: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints, never the latest."""
    latest = latest_checkpoint(folder)
    for path in list(checkpoints(folder).values())[:-keep]:
        if path != latest:
            remove_folder(path)


def discard_later(folder: Path, iteration: int) -> None:
    """Make the checkpoint of an iteration the latest and remove those after it."""
    found = checkpoints(folder)
    write_text(folder / "latest", found[iteration].name + "\n")
    for number, path in found.items():
        if number > iteration:
            remove_folder(path)


def latest_checkpoint(folder: Path) -> Path | None:
    """The folder that `latest` names, or None where there is no checkpoint yet.

    Without `latest` (a run killed before it was first written) it is the newest there is.
    """
    found = checkpoints(folder)
    pointer = folder / "latest"
    if not pointer.is_file():
        return found[max(found)] if found else None
    name = pointer.read_bytes().decode("utf-8", errors="replace").strip()
    # By comparison, never by joining: the text may name a path that leads elsewhere.
    path = next((p for p in found.values() if p.name == name), None)
    if path is None:
        raise ValueError(
            f"{pointer} names {name[:40]!r}, and there is no such checkpoint; {ways_on(folder)}"
        )
    return path


def ways_on(folder: Path, broken: Path | None = None) -> str:
    """What a user can do who cannot use a checkpoint."""
    usable = [i for i, path in checkpoints(folder).items() if path != broken and _is_intact(path)]
    if not usable:
        return "there is no other checkpoint, so begin again in a new folder"
    listed = ", ".join(str(i) for i in usable)
    return f"go on from another one with --resume --resume-from {usable[-1]} (there are: {listed})"


def _is_intact(path: Path) -> bool:
    try:
        _verified_state(path)
    except (AttributeError, KeyError, OSError, RecursionError, TypeError, ValueError):
        return False
    return True


# Loading.


def load_checkpoint(
    path: Path, learners: Mapping[str, Learner], identity: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Put learners back into the state of a checkpoint; returns its `state`.

    Args:
        path: a folder that `save_checkpoint` wrote.
        learners: by agent id.
        identity: what the `run` of the state must be; None: not compared.

    Raises:
        ValueError: if a file is missing, damaged or does not belong to this run or these learners.
            No learner has been changed then. The sentence says how to go on.
    """
    try:
        state = _verified_state(path)
        if identity is not None:
            _check_identity(state["run"], identity)
        read = {agent: _read(path, agent, learner) for agent, learner in learners.items()}
        _load_states(learners, {agent: found[3] for agent, found in read.items()})
    except KeyError as error:
        raise unusable(path, f"it lacks {error}") from error
    except (AttributeError, OSError, TypeError, ValueError, SafetensorError) as error:
        raise unusable(path, str(error)) from error
    except RecursionError as error:
        raise unusable(path, "a file of it is nested too deep") from error
    for agent, learner in learners.items():
        weights, optimizer, kl_coef, _ = read[agent]
        learner.actor.load_state_dict(weights, strict=True)
        learner.optim.load_state_dict(optimizer)
        learner.kl_controller.coef = kl_coef
    return state


def _load_states(learners: Mapping[str, Learner], states: Mapping[str, dict[str, float]]) -> None:
    """Put back what the learners keep; if one refuses its part, all are as they were."""
    before = {agent: learner.state() for agent, learner in learners.items()}
    try:
        for agent, learner in learners.items():
            learner.load_state(states[agent])
    except (TypeError, ValueError):
        for agent, learner in learners.items():
            learner.load_state(before[agent])
        raise


def unusable(path: Path, why: str) -> ValueError:
    """The refusal of a checkpoint: what, why, and how to go on."""
    return ValueError(f"checkpoint {path} cannot be used: {why}; {ways_on(path.parent, path)}")


def _verified_state(path: Path) -> dict[str, Any]:
    """Read `state.json` and compare every file with its checksum."""
    state: dict[str, Any] = json.loads((path / "state.json").read_bytes())
    if state["format"] != FORMAT:
        raise ValueError(f"its format is {state['format']!r}, expected {FORMAT}")
    if state.pop("checksum") != _state_sum(state):
        raise ValueError("state.json is damaged: its checksum differs")
    iteration = state["iteration"]
    if type(iteration) is not int or f"{iteration:06d}" != path.name:
        raise ValueError(f"its iteration is {iteration!r}, expected that of its name")
    for name, expected in state["files"].items():
        if Path(name).name != name:
            raise ValueError(f"it names a file elsewhere: {name!r}")
        if not (path / name).is_file():
            raise ValueError(f"{name} is missing")
        if _file_sum(path / name) != expected:
            raise ValueError(f"{name} is damaged: its checksum differs")
    return state


def _file_sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _state_sum(state: Mapping[str, Any]) -> str:
    text = json.dumps(dict(state), sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _check_identity(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    for name in sorted({*found, *expected}):
        if found.get(name) != expected.get(name):
            raise ValueError(
                f"it belongs to another run: its {name} is {found.get(name)!r}, "
                f"here it is {expected.get(name)!r}"
            )


def _read(
    path: Path, agent: str, learner: Learner
) -> tuple[dict[str, Tensor], Any, float, dict[str, float]]:
    weights = load_file(path / f"{agent}.safetensors")
    own = learner.actor.state_dict()
    if {k: (v.shape, v.dtype) for k, v in weights.items()} != {
        k: (v.shape, v.dtype) for k, v in own.items()
    }:
        raise ValueError(f"the weights of {agent} are those of another model")
    if not _finite(weights.values()):
        raise ValueError(f"the weights of {agent} are not finite")
    extra = json.loads((path / f"{agent}.json").read_bytes())
    tensors = load_file(path / f"{agent}.optimizer.safetensors")
    optimizer = _nested_optimizer(tensors, extra["param_groups"])
    own_groups = [_without_rate(g) for g in learner.optim.state_dict()["param_groups"]]
    if [_without_rate(g) for g in optimizer["param_groups"]] != own_groups:
        raise ValueError(f"the optimizer of {agent} has other settings or parameters")
    _check_moments(agent, optimizer["state"], list(learner.actor.parameters()))
    try:
        kl_coef = float(extra["kl_coef"])
    except OverflowError as error:
        raise ValueError(f"the KL weight of {agent} is too large") from error
    if not (math.isfinite(kl_coef) and kl_coef >= 0):
        raise ValueError(f"the KL weight of {agent} must be finite and at least 0, got {kl_coef}")
    kept = extra.get("learner", {})
    if not isinstance(kept, dict):
        raise ValueError(f"what the learner of {agent} keeps must be values by name, got {kept!r}")
    return weights, optimizer, kl_coef, kept


def _without_rate(group: Mapping[str, Any]) -> dict[str, Any]:
    """An optimizer's group without its learning rate, which a schedule moves."""
    return {name: value for name, value in group.items() if name != "lr"}


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


def _finite(tensors: Iterable[Tensor]) -> bool:
    return all(bool(torch.isfinite(t).all()) for t in tensors)


def _owned(tensors: Mapping[str, Tensor], into: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies that share no memory, as the format asks; tied weights are written twice.

    Copies are laid out as `into` where it has a tensor of that name and form.
    """
    found = {name: tensor.detach() for name, tensor in tensors.items()}
    again = [name for name, tensor in found.items() if _same_form(tensor, into.get(name))]
    if again:  # in one call: a model has hundreds of small tensors
        torch._foreach_copy_([into[name] for name in again], [found[name] for name in again])
    kept = set(again)
    return {name: into[name] if name in kept else _copied(tensor) for name, tensor in found.items()}


def _lent(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """As `_owned`, but only what shares memory with another, or lies elsewhere, is copied."""
    lent: dict[str, Tensor] = {}
    known: set[int] = set()
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        here = tensor.device.type == "cpu" and tensor.is_contiguous() and place not in known
        known.add(place)
        lent[name] = tensor.detach() if here else _copied(tensor)
    return lent


def _copied(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True).contiguous()


def _same_form(tensor: Tensor, other: Tensor | None) -> bool:
    return other is not None and (other.shape, other.dtype) == (tensor.shape, tensor.dtype)


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
