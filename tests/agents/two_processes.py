"""What test_distributed.py lets two processes do, both in one start of the interpreter.

    launch(jobs, folder)    starts two processes that do the jobs one after another
    python -m tests.agents.two_processes JOBS.json    is each of them

A job is a name in JOBS with keywords; what it returns or raises is kept by name and rank.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import agents.distributed
from agents.distributed import ALONE, PeerError, Processes, processes_of
from agents.learners import PPO
from agents.learners.ppo import LossParts, Prepared, Scored
from agents.session import build_session, resolve_config
from agents.sharing import add_gradients
from agents.train import Training, train
from cory_env.records import Query
from tests.agents.runs import config

ROOT = Path(__file__).resolve().parent.parent.parent


def launch(jobs: Sequence[tuple[str, str, dict[str, Any]]], folder: Path) -> dict[str, list[Any]]:
    """Let two processes do jobs.

    Args:
        jobs: (name, key of JOBS, keywords) each.
        folder: an empty one.

    Returns:
        By name what each rank returned, or the text "KIND: message" of what it raised.
    """
    (folder / "jobs.json").write_text(json.dumps(jobs))
    command = [sys.executable, "-m", "tests.agents.two_processes", str(folder / "jobs.json")]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = [
        subprocess.Popen(command, cwd=ROOT, env={**os.environ, **environment(rank, port)})
        for rank in range(2)
    ]
    try:
        assert [process.wait(timeout=300) for process in started] == [0, 0]
    finally:
        for process in started:
            process.kill()
    found = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]
    return {name: [found[0][name], found[1][name]] for name, _, _ in jobs}


def environment(rank: int, port: int) -> dict[str, str]:
    """What a launcher sets."""
    values = {"WORLD_SIZE": 2, "RANK": rank, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 2}
    return {
        **{name: str(value) for name, value in values.items()},
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }


def main() -> None:
    """Do the jobs."""
    torch.set_num_threads(1)
    path = Path(sys.argv[1])
    processes = processes_of("cpu")
    found = {}
    for name, kind, keywords in json.loads(path.read_text()):
        try:
            found[name] = JOBS[kind](processes, **keywords)
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    (path.parent / f"{processes.rank}.json").write_text(json.dumps(found))
    processes.close()


# Runs.


def run(processes: Processes, *, second: Mapping[str, Any] | None = None, **settings: Any) -> Any:
    """Train; what `second` holds is different in the second process."""
    other = second or {}
    mine = {**settings, **(other if processes.rank == 1 else {})}
    result = train(config(Path(mine.pop("out")), **mine), processes)
    return {"finished": result.finished, "status": result.status, "rows": len(result.metrics)}


def interfered(processes: Processes, *, how: str, **settings: Any) -> Any:
    """Train a run in which something happens in the second process only."""
    kind = INTERFERENCES[how] if processes.rank == 1 else Training
    before = agents.train.Training
    agents.train.Training = kind  # type: ignore[misc]
    try:
        return run(processes, **settings)
    finally:
        agents.train.Training = before  # type: ignore[misc]


class Stopped(Training):
    """Somebody ends it in its second iteration, here alone."""

    def _warn(self, iteration: int, seen: Any) -> None:
        super()._warn(iteration, seen)
        if iteration == 2:
            os.kill(os.getpid(), signal.SIGTERM)


class Moved(Training):
    """A weight changes by its last bit in the first iteration."""

    def _evaluate_if_due(self, iteration: int) -> Any:
        weight = self.session.learners["agent_1"].actor.value_head.weight
        with torch.no_grad():
            weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(1e9).to(weight))
        return super()._evaluate_if_due(iteration)


INTERFERENCES = {"stopped": Stopped, "moved": Moved}


def breaks_in_the_second(queries: Sequence[Query], responses: Sequence[str]) -> list[float]:
    """A reward that one of the processes cannot compute, after the first calls."""
    CALLS["n"] += 1
    if os.environ.get("RANK") == "1" and CALLS["n"] > 5:
        raise RuntimeError("no scorer")
    return [float(len(response)) for response in responses]


CALLS = {"n": 0}


class Diverging(PPO):
    """A loss that is not finite in the second process, from the second iteration."""

    def loss(self, scored: Scored, batch: Prepared) -> tuple[Tensor, LossParts]:
        """As PPO's, or NaN."""
        total, parts = super().loss(scored, batch)
        if self.iteration == 2 and self.processes.rank == 1:
            total = total * float("nan")
        return total, parts


# Collectives.


def exchange(processes: Processes) -> Any:
    """Every method of the group; returns plain values, or what is wrong."""
    rank = processes.rank
    rows = torch.arange(15, dtype=torch.float64).reshape(5, 3) / 7
    own = processes.share(5)
    kinds = (torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.bool)
    gathered = [
        torch.equal(processes.gather(rows.to(kind)[own], 5), rows.to(kind)) for kind in kinds
    ]
    one = processes.gather(rows[:1][processes.share(1)], 1)
    empty = processes.gather(torch.zeros(own.stop - own.start, 4, 0), 5)
    agents.distributed.BUCKET_BYTES = 24
    sums = [
        torch.full((2, 2), float(rank + 1)),
        torch.tensor([float(rank)], dtype=torch.float64),
        torch.tensor([1.0 + rank, -2.0, 5.0], dtype=torch.bfloat16),
        torch.full((3,), 10.0**rank),
    ]
    processes.add(sums)
    return {
        "shares": [list(range(9))[processes.share(n)] for n in (1, 2, 5)],
        "gathered": gathered,
        "one": torch.equal(one, rows[:1]),
        "empty": list(empty.shape),
        "sums": [tensor.tolist() for tensor in sums],
        "highest": processes.highest(10 * rank - 3),
        "texts": [processes.texts(text) for text in ("", "é" * (1 + rank), "" if rank else "main")],
        "from_main": processes.from_main(f"from {rank}"),
        "device": [processes.device("cpu"), processes.device("cuda:3")],
    }


def sections(processes: Processes) -> Any:
    """How an error in one process reaches the others."""
    written: list[int] = []
    processes.by_main(lambda: written.append(1))
    said = []
    for error in (KeyError("lost"), OSError(28, "no space"), None):
        try:
            with processes.section():
                if processes.rank == 1 and error is not None:
                    raise error
            said.append("")
        except Exception as raised:
            kind = raised.kind if isinstance(raised, PeerError) else "own"
            said.append(f"{type(raised).__name__}/{kind}: {raised}")
    try:
        with processes.section():
            processes.highest(1)
    except AssertionError as raised:
        said.append(str(raised))
    values = {"same": 1, "rank": processes.rank}
    try:
        processes.check_alike(values, "not alike")
    except ValueError as raised:
        said.append(str(raised))
    processes.check_alike({"same": float("nan")}, "never")
    return {"written": written, "said": said}


def gradients(processes: Processes) -> Any:
    """Gradients that only some processes have, as in a mixture of experts."""
    rank = processes.rank
    weights = [torch.nn.Parameter(torch.zeros(2)) for _ in range(4)]
    # Both; the first only; the second only; none. The second counts in the first call only.
    found = []
    for counts in (True, rank == 0):
        for place, weight in enumerate(weights):
            has = place == 0 or place == rank + 1
            weight.grad = torch.full((2,), float(rank + 1)) if has else None
        sums = {"b": torch.tensor(1.0 + rank), "a": torch.tensor(10.0)}
        added = add_gradients(processes, weights, sums, counts=counts)
        found.append({name: float(value) for name, value in added.items()})
        found.append([None if w.grad is None else w.grad.tolist() for w in weights])
    return found


def one_update(processes: Processes, *, rows: int) -> Any:
    """Gradient of a minibatch of which the second share is empty responses, and alone."""
    settings = config(method="solo", batch_size=4, dtype="float64")
    found = []
    for group in (processes, ALONE):
        session = build_session(*resolve_config(settings), group)
        learner = session.learners["agent_0"]
        learner.set_iteration(1, 1)
        rng = torch.Generator().manual_seed(5)
        width = 3
        ids = torch.randint(3, 8, (4, width), generator=rng)
        ids[rows:] = -1
        real = ids >= 0

        def filled(scale: float, real: Tensor = real, rng: torch.Generator = rng) -> Tensor:
            drawn = torch.rand(real.shape, generator=rng, dtype=torch.float64)
            return (scale * drawn).masked_fill(~real, 0.0)

        prompts = np.random.default_rng(1).integers(3, 8, (4, 5))
        batch = Prepared(
            prompt_ids=torch.as_tensor(prompts),
            response_ids=ids,
            logprobs=filled(-2.0),
            values=filled(1.0),
            kl=filled(0.1),
            entropy=filled(1.0),
            ref_logprobs=filled(-2.0),
            ref_hidden=torch.rand(4, width, 64, generator=rng, dtype=torch.float64),
            payoffs=torch.ones(4, dtype=torch.float64),
            episode=torch.arange(4),
            seat=0,
            advantages=filled(1.0),
            returns=filled(1.0),
            sigma=torch.ones(4, dtype=torch.float64),
        )
        stats = learner.update_from(batch, None, 1)
        norm = [float(p.grad.norm()) for p in learner.parameters_in_training if p.grad is not None]
        found.append([stats.policy_loss, stats.approx_kl, stats.grad_norm, *norm])
    return found


JOBS: dict[str, Callable[..., Any]] = {
    "run": run,
    "interfered": interfered,
    "exchange": exchange,
    "sections": sections,
    "gradients": gradients,
    "one_update": one_update,
}


if __name__ == "__main__":
    main()
