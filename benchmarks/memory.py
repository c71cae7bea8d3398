"""`make bench-memory`: what two agents take beside one, with and without adapters.

Each case is a process of its own: two iterations of a run at the shape of GPT-2 small with random
weights. Nothing is learned; only memory is looked at. Fails where two agents with adapters take
more than `LIMIT` times what one takes. Needs Linux, which says what a process takes.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from agents.bridge.trainer import IterationTrainer
from agents.config import TrainConfig
from agents.session import Session, build_session, resolve_config
from benchmarks.process_memory import forget_peak, resident
from benchmarks.speed import SHAPES, write_model

LIMIT = 1.15
"""Largest ratio of two agents with adapters to one."""
GIB = 2**30
ITERATIONS = 2
"""The second has the optimizer's moments from its beginning."""


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    name: str
    method: str
    lora_rank: int | None


CASES = (
    Case("one agent, all weights", "solo", None),
    Case("two agents, all weights", "cory", None),
    Case("one agent, adapters", "solo", 8),
    Case("two agents, adapters", "cory", 8),
)


@dataclass(frozen=True)
class Used:
    """Bytes of one case."""

    process: int
    """Largest resident memory of the process while it trains."""
    training: int
    """The same without what the process takes before a model is loaded."""
    weights: int
    """Of all models, the reference among them, each tensor once."""
    adapters: int
    """Of those, what belongs to one agent alone; 0 without adapters."""
    moments: int
    """Of the optimizers."""
    gradients: int

    @property
    def kept(self) -> int:
        """What lies there between two iterations."""
        return self.weights + self.moments + self.gradients


def measure(model: Path, case: Case, batch_size: int, **settings: Any) -> Used:
    """Train two iterations in this process and look at its memory."""
    before = resident("VmRSS")
    session = _session(model, case, batch_size, **settings)
    trainer = IterationTrainer(
        team=session.team,
        env=session.env,
        begin=session.begin,
        minibatch_size=None,
        update_epochs=1,
        first_iteration=1,
        iterations=ITERATIONS,
    )
    gc.collect()
    forget_peak()  # of reading the files, which is another matter than training
    for _ in range(ITERATIONS):
        trainer.run_iteration()
    peak = resident("VmHWM")
    return Used(process=peak, training=peak - before, **kept_bytes(session))


def _session(model: Path, case: Case, batch_size: int, **settings: Any) -> Session:
    shape = SHAPES["gpt2"]
    config = TrainConfig(
        **{
            "task": "benchmarks.speed:SpeedTask",
            "task_args": f"vocabulary={shape.vocabulary},observer_tokens={shape.observer_tokens}",
            "method": case.method,
            "model": str(model),
            "batch_size": batch_size,
            "update_epochs": 1,
            "learning_rate": 1e-5,
            "eval_queries": 2,
            "lora_rank": case.lora_rank,
            "threads": torch.get_num_threads(),
            "progress": False,
            "tensorboard": False,
            **settings,
        }
    )
    return build_session(*resolve_config(config))


def kept_bytes(session: Session) -> dict[str, int]:
    """What a run's tensors take, by kind, each piece of memory once."""
    learners = list(session.learners.values())
    models = [m for learner in learners for m in (learner.actor, learner.reference)]
    weights = [t for m in models for t in (*m.parameters(), *m.model.state_dict().values())]
    own = [p for learner in learners for p in learner.actor.parameters()]
    moments = [
        torch.as_tensor(value)
        for learner in learners
        for state in learner.optim._optim.state.values()
        for value in state.values()
    ]
    return {
        "weights": _bytes(weights),
        "adapters": _bytes(own) if session.config.lora_rank else 0,
        "moments": _bytes(moments),
        "gradients": _bytes([p.grad for p in own if p.grad is not None]),
    }


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum({_place(t): t.untyped_storage().nbytes() for t in tensors}.values())


def compare(batch_size: int) -> dict[str, Used]:
    """Measure every case in a process of its own."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        write_model(model, SHAPES["gpt2"])
        for case in CASES:
            call = [sys.executable, "-m", "benchmarks.memory", "--model", str(model)]
            done = subprocess.run(
                [*call, "--case", case.name, "--batch-size", str(batch_size)],
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            )
            found[case.name] = Used(**json.loads(done.stdout.splitlines()[-1]))
    return found


def table(found: dict[str, Used], batch_size: int) -> Table:
    """The measurements for the terminal, in GiB."""
    result = Table(title=f"GPT-2 small, {batch_size} responses, GiB")
    result.add_column("case")
    for name in ("process", "training", "weights", "moments", "gradients"):
        result.add_column(name, justify="right")
    for name, used in found.items():
        numbers = (used.process, used.training, used.weights, used.moments, used.gradients)
        result.add_row(name, *(f"{number / GIB:.2f}" for number in numbers))
    return result


def ratios(found: dict[str, Used]) -> dict[str, float]:
    """Two agents to one, by kind of weights and measure."""
    result = {}
    for kind in ("all weights", "adapters"):
        one, two = found[f"one agent, {kind}"], found[f"two agents, {kind}"]
        for what in ("process", "training", "kept"):
            result[f"{kind}, {what}"] = getattr(two, what) / getattr(one, what)
    return result


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="benchmarks.memory", description=__doc__)
    parser.add_argument("--batch-size", type=int, default=8, help="responses of all agents")
    parser.add_argument("--json", type=Path, help="file for the numbers")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case is not None:
        case = next(case for case in CASES if case.name == arguments.case)
        print(json.dumps(asdict(measure(arguments.model, case, arguments.batch_size))))
        return
    found = compare(arguments.batch_size)
    Console().print(table(found, arguments.batch_size))
    found_ratios = ratios(found)
    for name, ratio in found_ratios.items():
        print(f"two agents to one, {name}: {ratio:.2f}")
    if arguments.json is not None:
        values = {name: asdict(used) for name, used in found.items()}
        arguments.json.write_text(json.dumps({"bytes": values, "ratios": found_ratios}, indent=2))
    worst = max(ratio for name, ratio in found_ratios.items() if name.startswith("adapters"))
    if worst > LIMIT:
        sys.exit(f"two agents with adapters take {worst:.2f} times one, above {LIMIT}")


if __name__ == "__main__":
    main()
