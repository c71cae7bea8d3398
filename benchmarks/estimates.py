"""`python -m benchmarks.estimates`: the memory that was foreseen beside what runs really took.

Each case is a process of its own, with random weights: two iterations, an evaluation and a
checkpoint. Fails where an estimate is more than a quarter off.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from rich.table import Table

from agents.config import TrainConfig
from agents.report import rendered
from agents.run_folder import RunFolder
from agents.session import build_session, resolve_config
from agents.training import Training
from benchmarks.process_memory import peak_memory
from benchmarks.speed import Shape, write_model

LIMIT = 0.25
"""Largest error of an estimate, as a share of what was measured."""


@dataclass(frozen=True)
class Case:
    """A model's size and the settings it is trained with."""

    shape: Shape
    batch_size: int
    settings: dict[str, Any] = field(default_factory=dict)


SMALL = Shape(4, 128, 4, 2048, 0, 58, 0.0)
MIDDLE = Shape(8, 256, 4, 50257, 0, 58, 0.0)
GPT2 = Shape(12, 768, 12, 50257, 0, 50, 0.0)

CASES = {
    "tiny": Case(SMALL, 8),
    "tiny, batch 64": Case(SMALL, 64),
    "tiny, batch 256": Case(SMALL, 256),
    "20M": Case(MIDDLE, 8),
    "20M, batch 64": Case(MIDDLE, 64),
    "20M, 64 new tokens": Case(
        MIDDLE, 32, {"max_response_tokens": 64, "max_prompt_tokens": 200, "minibatch_size": 8}
    ),
    "20M, adapters": Case(MIDDLE, 64, {"lora_rank": 8}),
    "GPT-2 small": Case(GPT2, 8),
    "GPT-2 small, bfloat16": Case(GPT2, 8, {"dtype": "bfloat16"}),
    "GPT-2 small, adapters": Case(GPT2, 32, {"lora_rank": 8}),
}
"""Shown and checked; the sizes are parameters."""


@dataclass(frozen=True)
class Compared:
    """One case."""

    foreseen: float
    """Bytes."""
    measured: float
    """Largest resident memory of the process, bytes."""
    phase: str
    """When most was foreseen to be held."""

    @property
    def error(self) -> float:
        """As a share of what was measured; positive where too much was foreseen."""
        return self.foreseen / self.measured - 1


def run_case(case: Case) -> Compared:
    """Train in this process, which should do nothing else."""
    shape = case.shape
    with tempfile.TemporaryDirectory() as temporary:
        write_model(Path(temporary) / "model", shape)
        settings = {
            "task": "benchmarks.speed:SpeedTask",
            "task_args": f"vocabulary={shape.vocabulary},observer_tokens={shape.observer_tokens}",
            "model": str(Path(temporary) / "model"),
            "out": Path(temporary) / "run",
            "batch_size": case.batch_size,
            "iterations": 2,
            "update_epochs": 1,
            "learning_rate": 1e-5,
            "eval_queries": 16,
            "checkpoint_interval": 1,
            "progress": False,
            "tensorboard": False,
            "threads": torch.get_num_threads(),
            **case.settings,
        }
        config, task = resolve_config(TrainConfig(**settings))
        folder = RunFolder(Path(temporary) / "run")
        session = build_session(config, task)
        folder.start(config)
        with folder.locked():
            Training(session, folder).run()
    return Compared(session.memory.total, float(peak_memory()), session.memory.phase)


def in_a_process(name: str) -> Compared:
    """Run a case in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.estimates", "--alone", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"case {name!r} failed: {done.stderr[-2000:]}")
    return Compared(**json.loads(done.stdout.splitlines()[-1]))


def table(results: dict[str, Compared]) -> str:
    """Foreseen beside measured."""
    made = Table("run", "foreseen", "measured", "error", "most in")
    for name, found in results.items():
        cells = (f"{found.foreseen / 1e9:.2f} GB", f"{found.measured / 1e9:.2f} GB")
        made.add_row(name, *cells, f"{found.error:+.0%}", found.phase)
    return rendered(made)


@dataclass(frozen=True)
class EstimatesCommand:
    """Compare estimates of memory with what runs take."""

    cases: Annotated[tuple[str, ...], tyro.conf.Positional] = tuple(CASES)
    """Which to run; all of them if none is named."""
    alone: str | None = None
    """Run this one in the process itself and print its numbers as JSON."""


def main() -> None:
    """Command line of `python -m benchmarks.estimates`."""
    asked = tyro.cli(EstimatesCommand, prog="python -m benchmarks.estimates")
    if asked.alone is not None:
        print(json.dumps(vars(run_case(CASES[asked.alone]))))
        return
    results = {}
    for name in asked.cases:
        results[name] = in_a_process(name)
        print(f"{name}: {results[name].error:+.0%}", flush=True)
    print(table(results))
    wrong = [name for name, found in results.items() if abs(found.error) > LIMIT]
    for name in wrong:
        print(f"FAILED: {name} is more than {LIMIT:.0%} off")
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
