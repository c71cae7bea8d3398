"""Collecting token by token beside collecting whole responses: what a token costs on each path.

Both play as many episodes of the same game with the same weights, with one reward call for all that
end together and the reference's view of every token, in one process and in turn, so that a busy
machine slows both.

Run from the root of the repository: python -m benchmarks.token_path
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import torch

from agents.bridge.stock import trainers
from agents.run_folder import RunFolder
from agents.stock_training import StockTraining
from agents.training import Training
from benchmarks.speed import SHAPES, product

LIMIT = 3.0
"""Largest cost of a token, as a multiple of the response-level path's."""


@dataclass(frozen=True)
class Paths:
    """Ways to collect one batch of episodes; each returns the number of tokens."""

    responses: Callable[[], int]
    tokens: Callable[[], int]
    without_cache: Callable[[], int]
    """The second, every token a forward pass over all before it."""


def paths(folder: Path, shape: str) -> Paths:
    """Wire both on models of the same weights.

    Args:
        folder: for models and runs.
        shape: a name of `benchmarks.speed.SHAPES`.
    """
    for name in ("responses", "tokens"):
        (folder / name).mkdir()
    whole = product(folder / "responses", SHAPES[shape], kl_estimator="k1").training
    made = product(folder / "tokens", SHAPES[shape], algorithm="tianshou:PPO")
    stock = StockTraining(made.session, RunFolder(folder / "tokens" / "run"))

    def responses() -> int:
        return _collect(whole, whole.trainer)

    def tokens() -> int:
        return _collect(stock, stock.trainer._trainer)  # type: ignore[attr-defined]

    def without_cache() -> int:
        with patch.object(trainers, "turns_kept", lambda *_: nullcontext()):
            return tokens()

    return Paths(responses, tokens, without_cache)


def _collect(training: Training, trainer: object) -> int:
    """One collection, without an update; returns the tokens in it."""
    trainer._epoch = 1  # type: ignore[attr-defined]
    with trainers.seeded(0, "benchmark"):
        trainer._collect_training_data()  # type: ignore[attr-defined]
    trainer.params.training_collector.reset_buffer()  # type: ignore[attr-defined]
    records = training.session.env.records()
    return sum(len(turn.response_ids) for record in records for turn in record.turns)


def compare(shape: str, rounds: int) -> dict[str, list[float]]:
    """CPU microseconds of a token by path, a value a round; the round that warms up is left out."""
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        made = paths(Path(folder), shape)
        for round_ in range(rounds + 1):
            for name, collect in vars(made).items():
                start = time.process_time()
                n = collect()
                spent = 1e6 * (time.process_time() - start) / n
                if round_:
                    found.setdefault(name, []).append(spent)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the ratio; returns 1 if it is above the limit."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.token_path", description=__doc__)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="tiny")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    found = compare(given.shape, given.rounds)
    shape = SHAPES[given.shape]
    print(
        f"{given.shape}: {shape.layers} layers, {shape.width} wide, {shape.vocabulary} words; "
        f"2 agents x {shape.queries} responses, {given.rounds} rounds after one that warms up"
    )
    for name, costs in found.items():
        ratios = [a / b for a, b in zip(costs, found["responses"], strict=True)]
        print(
            f"  {name.replace('_', ' '):<14}{statistics.median(costs):>8.0f} us a token, "
            f"{statistics.median(ratios):.2f} times ({min(ratios):.2f}-{max(ratios):.2f})"
        )
    ratios = [a / b for a, b in zip(found["tokens"], found["responses"], strict=True)]
    ratio = statistics.median(ratios)
    print(f"  token path / response path {ratio:.2f}, limit {LIMIT:g}")
    if ratio > LIMIT:
        print(f"FAILED: {ratio:.2f} is above the limit {LIMIT:g}")
    return int(ratio > LIMIT)


if __name__ == "__main__":
    raise SystemExit(main())
