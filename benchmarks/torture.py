"""Kill runs with SIGKILL, resume them, and compare their end with that of an undisturbed run.

    python -m benchmarks.torture --kills 50

Three kinds of kill take turns: at a random moment; at the moment a half-written checkpoint is seen
on the disk; and at a random one of the process's own file operations on its checkpoints, each of
which is a window that a real crash can hit. A killed process is resumed until the run ends. The
libraries are imported once, and each run is a fork.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from agents.config import TrainConfig
from agents.files import TEMPORARY
from agents.train import train

COMMON: dict[str, Any] = {
    "task": "target",
    "iterations": 12,
    "batch_size": 8,
    "minibatch_size": 3,
    "update_epochs": 2,
    "learning_rate": 3e-3,
    "eval_interval": 3,
    "eval_queries": 6,
    "checkpoint_interval": 1,
    "role_exchange_interval": 2,
    "samples_per_iteration": 4,
    "progress": False,
    "tensorboard": False,
    "threads": 1,
}
"""A fraction of a second an iteration, and every kind of event within a few of them."""

CASES: dict[str, dict[str, Any]] = {
    "cory, adaptive KL weight": {"kl_target": 0.05, "kl_horizon": 50},
    "cory, linear schedule": {"learning_rate_schedule": "linear", "keep_checkpoints": 1},
    "independent, a checkpoint every 2": {"method": "independent", "checkpoint_interval": 2},
    "solo": {"method": "solo", "batch_size": 4},
    "placebo_transfer, three agents": {
        "method": "placebo_transfer",
        "n_agents": 3,
        "batch_size": 12,
    },
}
MOST_KILLS_A_RUN = 10
FILE_EVENTS = ("open", "os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.chmod")


@dataclass
class Tally:
    """What happened."""

    kills: Counter[str] = field(default_factory=Counter)
    """By kind."""
    while_writing: int = 0
    """Kills that left a half-written checkpoint on the disk."""
    resumes: int = 0
    runs: int = 0
    mismatches: list[str] = field(default_factory=list)


def child(settings: dict[str, Any], out: Path, *, resume: bool, aim: int | None) -> int:
    """Fork a process that trains; returns its id.

    Args:
        settings: of the run.
        out: its folder.
        resume: go on with what is there.
        aim: the process kills itself at this many file operations on its checkpoints.
    """
    pid = os.fork()
    if pid:
        return pid
    status = 1
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # hundreds of the guards' warnings
    try:
        if aim is not None:
            _kill_at(aim, str(out / "checkpoints"))
        train(TrainConfig(out=out, resume=resume, **{**COMMON, **settings}))
        status = 0
    except BaseException:
        (out.parent / f"{out.name}.error").write_text(traceback.format_exc())
    finally:
        os._exit(status)


def _kill_at(number: int, folder: str) -> None:
    """SIGKILL this process at its number-th file operation under a folder."""
    seen = 0

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if event in FILE_EVENTS and str(arguments[0]).startswith(folder):
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)


def half_written(out: Path) -> bool:
    """Whether a checkpoint is being written, or was when the process died."""
    try:
        names = [path.name for path in (out / "checkpoints").iterdir()]
    except FileNotFoundError:
        return False
    return any(TEMPORARY.fullmatch(name) for name in names)


def kill(pid: int, kind: str, out: Path, draw: random.Random, seconds: float) -> int:
    """Kill a child, unless it ends before; returns its wait status."""
    if kind == "at random":
        end = time.monotonic() + draw.uniform(0.0, seconds / 2)
        while time.monotonic() < end:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return status
            time.sleep(0.002)
        os.kill(pid, signal.SIGKILL)
    elif kind == "when seen writing":
        end = time.monotonic() + draw.uniform(0.0, seconds / 2)
        while not (time.monotonic() > end and half_written(out)):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return status
            time.sleep(0.0002)
        os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]


def disturbed(
    name: str, out: Path, tally: Tally, wanted: int, draw: random.Random, seconds: float
) -> None:
    """One run that is killed again and again until it ends."""
    tally.runs += 1
    kinds = ("at random", "when seen writing", "at a file operation")
    for attempt in range(10 * MOST_KILLS_A_RUN):
        kills = sum(tally.kills.values())
        kind = "" if attempt >= MOST_KILLS_A_RUN or kills >= wanted else kinds[kills % len(kinds)]
        aim = draw.randint(1, 150) if kind == "at a file operation" else None
        resume = (out / "config.json").is_file()
        tally.resumes += resume
        pid = child(CASES[name], out, resume=resume, aim=aim)
        status = kill(pid, kind, out, draw, seconds)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            tally.kills[kind] += 1
            tally.while_writing += half_written(out)
        elif status == 0:
            return
        else:
            error = (out.parent / f"{out.name}.error").read_text()
            tally.mismatches.append(f"{name}: a process failed: {error.splitlines()[-1]}")
            return
    tally.mismatches.append(f"{name}: the run did not end")


def differences(one: Path, two: Path) -> list[str]:
    """Files that differ between two ended runs; all but wall-clock seconds must be equal."""
    files = [_comparable(path) for path in (one, two)]
    return sorted(
        name for name in {*files[0], *files[1]} if files[0].get(name) != files[1].get(name)
    )


def _comparable(out: Path) -> dict[str, bytes]:
    """Every file of a run by its name, without what names folders or tells the time."""
    found = {}
    for path in sorted(p for p in out.rglob("*") if p.is_file()):
        name = str(path.relative_to(out))
        content = path.read_bytes()
        if name in ("config.json", "curves.png"):  # `out` and `resume`; a picture of metrics.jsonl
            continue
        if name == "metrics.jsonl":
            rows = [json.loads(line) for line in content.splitlines()]
            content = repr([{**row, "seconds": 0} for row in rows]).encode()
        elif path.name == "state.json":
            state = json.loads(content)
            state["counters"]["seconds"] = 0
            content = repr({**state, "checksum": ""}).encode()
        found[name] = content
    return found


def torture(wanted: int, seed: int, folder: Path) -> Tally:
    """Kill `wanted` processes."""
    draw, tally = random.Random(seed), Tally()
    whole: dict[str, tuple[Path, float]] = {}
    names = list(CASES)
    while sum(tally.kills.values()) < wanted and not tally.mismatches:
        name = names[tally.runs % len(names)]
        if name not in whole:
            path, start = folder / f"whole-{len(whole)}", time.monotonic()
            status = os.waitpid(child(CASES[name], path, resume=False, aim=None), 0)[1]
            if status != 0:
                raise RuntimeError((folder / f"{path.name}.error").read_text())
            whole[name] = path, time.monotonic() - start
        path, seconds = whole[name]
        out = folder / f"run-{tally.runs}"
        before = sum(tally.kills.values())
        disturbed(name, out, tally, wanted, draw, seconds)
        found = differences(path, out)
        tally.mismatches += [f"{name}: {file} differs" for file in found]
        n = sum(tally.kills.values()) - before
        print(f"{name}: {n} kills, {len(found)} differences", flush=True)
        if not found:
            shutil.rmtree(out)
    return tally


def main() -> None:
    """Command line of the torture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--kills", type=int, default=50, help="processes to kill in all")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    options = parser.parse_args()
    if not hasattr(os, "fork"):
        parser.error("torture needs a system with fork")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        tally = torture(options.kills, options.seed, Path(folder))
    for kind, n in sorted(tally.kills.items()):
        print(f"{n:5d} kills {kind}")
    kills = sum(tally.kills.values())
    print(
        f"{kills} kills ({tally.while_writing} during a checkpoint write), {tally.resumes} "
        f"resumes, {tally.runs} runs, {len(tally.mismatches)} mismatches"
    )
    for line in tally.mismatches:
        print(line, file=sys.stderr)
    if tally.mismatches or not tally.while_writing:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
