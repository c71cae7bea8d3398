"""`make bench-speed`: an iteration by stage, beside the floor of its arithmetic.

The floor (`benchmarks.floor`) runs in the same process, in turn with the product, so that a busy
machine slows both. Weights are random and nothing is learned: only time and memory are measured.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from tqdm import tqdm
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

import agents.bridge.policy as policies
from agents.allocator import keep_freed_memory
from agents.bridge.learner import Learner
from agents.config import TrainConfig
from agents.models.target import draw_weights
from agents.run_folder import RunFolder
from agents.sampling import measure, sample
from agents.session import Session, build_session, resolve_config
from agents.training import Training
from benchmarks.floor import PlainGPT2, Work, iteration
from benchmarks.process_memory import peak_memory
from cory_env.records import Query
from cory_env.tasks.base import Task
from cory_env.tokens import TextTokenizer, as_tokenizer

QUERY_TOKENS = 8
NEW_TOKENS = 16
EPOCHS = 4


@dataclass(frozen=True)
class Shape:
    """A size of model and the batch it is measured with."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    queries: int
    """Episodes of an iteration: answers of each agent."""
    observer_tokens: int
    """Length of the observer's prompt."""
    limit: float
    """Largest ratio to the floor."""


SHAPES = {
    "tiny": Shape(4, 128, 4, 2048, 32, 58, 1.10),
    "gpt2": Shape(12, 768, 12, 50257, 8, 50, 1.05),
}
"""By name; the lengths are those at which the other trainers were measured."""


def word_tokenizer(size: int) -> Tokenizer:
    """A vocabulary of whole words, so that every text has as many tokens as words."""
    words = {f"w{i}": i for i in range(size - 2)}
    vocabulary = {**words, "<unk>": size - 2, "</s>": size - 1}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["</s>"])
    return tokenizer


class SpeedTask(Task):
    """Queries of a fixed length; the score is the number of characters of the response."""

    name: ClassVar[str] = "speed"
    default_model = "builtin:target"
    default_reward = "benchmarks.speed:character_count"
    max_prompt_tokens = 64
    max_response_tokens = NEW_TOKENS

    def __init__(
        self, *, vocabulary: int = 2048, observer_tokens: int = 58, reward: Any = None
    ) -> None:
        super().__init__(reward=reward)
        self._vocabulary = vocabulary
        self._filler = observer_tokens - 2 * QUERY_TOKENS - NEW_TOKENS

    def queries(self, split: str) -> Sequence[Query]:
        """Return 1,024 texts of eight words."""
        draw = torch.Generator().manual_seed(len(split))
        ids = torch.randint(0, self._vocabulary - 2, (1024, QUERY_TOKENS), generator=draw)
        return [Query(" ".join(f"w{i}" for i in row)) for row in ids.tolist()]

    def prompt(self, role: str, query: Query, earlier_responses: Sequence[str]) -> str:
        """Return the query, for an observer after a template with the response in it."""
        if not earlier_responses:
            return query.text
        filler = " ".join(["w0"] * self._filler)
        return f"{query.text} {' '.join(earlier_responses)} {filler} {query.text}"

    def tokenizer(self) -> TextTokenizer:
        """Return the vocabulary of whole words."""
        return as_tokenizer(word_tokenizer(self._vocabulary), end_ids=[self._vocabulary - 1])


def character_count(queries: Sequence[Query], responses: Sequence[str]) -> list[float]:
    """Score of a response: its length in characters."""
    return [float(len(text)) for text in responses]


def write_model(folder: Path, shape: Shape) -> None:
    """A GPT-2 of a shape with random weights, and its tokenizer."""
    config = GPT2Config(
        vocab_size=shape.vocabulary,
        n_embd=shape.width,
        n_layer=shape.layers,
        n_head=shape.heads,
        n_positions=512,
        bos_token_id=None,
        eos_token_id=shape.vocabulary - 1,
    )
    model = GPT2LMHeadModel(config)
    draw_weights(model, 0, std=0.02)
    model.save_pretrained(folder)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=word_tokenizer(shape.vocabulary), eos_token="</s>", unk_token="<unk>"
    )
    tokenizer.save_pretrained(folder)


# The product, by stage.


class Clock:
    """Seconds by stage, summed over calls."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def timed(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, its seconds added to a stage."""

        def call(*args: Any, **options: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args, **options)
            finally:
                spent = time.perf_counter() - start
                self.seconds[stage] = self.seconds.get(stage, 0.0) + spent

        return call


@contextmanager
def stages(clock: Clock) -> Iterator[None]:
    """Time the stages of whatever runs inside."""
    with (
        patch.object(policies, "sample", clock.timed("generate", sample)),
        patch.object(policies, "measure", clock.timed("reference", measure)),
        patch.object(tqdm, "write"),  # the guards' warnings: nothing is learned here
        patch.object(Learner, "update_from", clock.timed("update", Learner.update_from)),
    ):
        yield


@dataclass(frozen=True)
class Product:
    """A run of the product that is taken one iteration at a time."""

    training: Training
    session: Session
    folder: Path


def product(folder: Path, shape: Shape, **settings: Any) -> Product:
    """Wire a run as `cory-train` does."""
    write_model(folder / "model", shape)
    config = TrainConfig(
        **{
            "task": "benchmarks.speed:SpeedTask",
            "task_args": f"vocabulary={shape.vocabulary},observer_tokens={shape.observer_tokens}",
            "method": "cory",
            "model": str(folder / "model"),
            "out": folder / "run",
            "batch_size": 2 * shape.queries,
            "update_epochs": EPOCHS,
            "iterations": 10_000,
            "learning_rate": 1e-5,
            "eval_queries": 2,
            "checkpoint_interval": 10_000,
            "progress": False,
            "tensorboard": False,
            "threads": torch.get_num_threads(),
            **settings,
        }
    )
    resolved, task = resolve_config(config)
    run = RunFolder(folder / "run")
    run.check(resolved)
    session = build_session(resolved, task)
    run.start(resolved)
    return Product(Training(session, run), session, folder)


def product_iteration(made: Product) -> dict[str, float]:
    """One iteration with its logs, by stage."""
    clock = Clock()
    reward = made.session.rules.reward
    object.__setattr__(made.session.rules, "reward", clock.timed("reward", reward))
    start = time.perf_counter()
    try:
        with stages(clock):
            made.training._iterate()
    finally:
        object.__setattr__(made.session.rules, "reward", reward)
    total = time.perf_counter() - start
    other = total - sum(clock.seconds.values())
    return {**clock.seconds, "everything else": other, "total": total}


# Beside the floor.


@dataclass(frozen=True)
class Settings:
    """One comparison."""

    shape: str
    method: str = "cory"
    estimator: str = "exact"
    autocast: str = "none"
    compile: bool = False
    fused: bool = True
    """Of the floor: False is the plain arithmetic at which the other trainers were measured."""


@dataclass(frozen=True)
class Result:
    """Medians over rounds."""

    settings: Settings
    product: dict[str, float]
    """Seconds of an iteration by stage."""
    floor: dict[str, float]
    ratios: tuple[float, float, float]
    """Product over floor within a round: lowest, median, highest."""
    cpu_ratio: float
    """The same from the process's CPU seconds, which other work on the machine shakes less."""
    responses: int
    """Of both agents in an iteration."""

    @property
    def responses_per_second(self) -> float:
        """Of the product."""
        return self.responses / self.product["total"]


def floor_agents(made: Product, settings: Settings) -> Callable[[], dict[str, float]]:
    """The floor of a product: two agents and a reference; returns one iteration of them."""
    shape = SHAPES[settings.shape]
    model = made.session.loaded["agent_0"].model
    lower = None if settings.autocast == "none" else torch.bfloat16
    lengths = (QUERY_TOKENS, shape.observer_tokens)[: len(made.session.learners)]
    agents = [PlainGPT2(model, autocast=lower) for _ in lengths]
    optimizers = [agent.trained() for agent in agents]
    reference = PlainGPT2(model, autocast=lower)
    works = [
        Work(
            prompts=torch.randint(0, shape.vocabulary - 2, (shape.queries, length)),
            new_tokens=NEW_TOKENS,
            epochs=EPOCHS,
            estimator=settings.estimator,
            fused=settings.fused,
        )
        for length in lengths
    ]

    def once() -> dict[str, float]:
        start, found = time.perf_counter(), dict.fromkeys(("generate", "reference", "update"), 0.0)
        for agent, optimizer, work in zip(agents, optimizers, works, strict=True):
            for stage, seconds in iteration(agent, optimizer, reference, work).items():
                found[stage] += seconds
        total = time.perf_counter() - start
        return {**found, "everything else": total - sum(found.values()), "total": total}

    return once


def compare(settings: Settings, rounds: int) -> Result:
    """Time product and floor in turn; the first round warms up and is not counted."""
    shape = SHAPES[settings.shape]
    with tempfile.TemporaryDirectory() as folder:
        made = product(
            Path(folder),
            shape,
            method=settings.method,
            batch_size=shape.queries * (1 if settings.method == "solo" else 2),
            kl_estimator=settings.estimator,
            autocast=settings.autocast,
            compile=settings.compile,
        )
        floor = floor_agents(made, settings)
        ours: list[dict[str, float]] = []
        theirs: list[dict[str, float]] = []
        cpu: list[float] = []
        for _ in tqdm(range(rounds + 1), desc=settings.shape, leave=False):
            start = time.process_time()
            theirs.append(floor())
            middle = time.process_time()
            ours.append(product_iteration(made))
            cpu.append((time.process_time() - middle) / (middle - start))
    ratios = [a["total"] / b["total"] for a, b in zip(ours[1:], theirs[1:], strict=True)]
    return Result(
        settings=settings,
        product=_medians(ours[1:]),
        floor=_medians(theirs[1:]),
        ratios=(min(ratios), statistics.median(ratios), max(ratios)),
        cpu_ratio=statistics.median(cpu[1:]),
        responses=shape.queries * len(made.session.learners),
    )


def _medians(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def stage_table(result: Result) -> str:
    """Seconds by stage, product beside floor."""
    lines = [f"  {'seconds of an iteration':<26}{'product':>10}{'floor':>10}"]
    for stage in STAGES:
        ours, theirs = result.product.get(stage, 0.0), result.floor.get(stage, 0.0)
        lines.append(f"  {stage:<26}{ours:>10.4f}{theirs:>10.4f}")
    low, middle, high = result.ratios
    lines += [
        f"  total / floor: median {middle:.3f} (range {low:.3f}-{high:.3f}), "
        f"from CPU seconds {result.cpu_ratio:.3f}",
        f"  {result.responses_per_second:.1f} responses/s of {result.responses} an iteration",
    ]
    return "\n".join(lines)


STAGES = ("generate", "reward", "reference", "update", "everything else", "total")


# What it costs as the work grows.


def cost_per_response(
    batches: Sequence[int], tokens: Sequence[int], rounds: int = 2
) -> tuple[dict[int, float], dict[int, float]]:
    """CPU milliseconds of the product per response, by batch size and by length of the response.

    Args:
        batches: responses of both agents in an iteration, at 16 tokens.
        tokens: longest response, at 64 responses.
        rounds: iterations measured; the least is taken.
    """
    tiny = SHAPES["tiny"]

    def cost(batch: int, length: int) -> float:
        shape = replace(tiny, queries=batch // 2)
        with tempfile.TemporaryDirectory() as folder:
            settings = {"minibatch_size": 32, "max_response_tokens": length}
            made = product(Path(folder), shape, **settings, max_prompt_tokens=length + 48)
            spent = []
            for _ in range(rounds + 1):
                start = time.process_time()
                product_iteration(made)
                spent.append(time.process_time() - start)
        return 1000 * min(spent[1:]) / batch

    return {b: cost(b, 16) for b in batches}, {t: cost(64, t) for t in tokens}


def peak_alone(shape: str, threads: int) -> float:
    """Peak resident memory of a process that runs the product alone, MiB."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.speed",
        "--alone",
        shape,
        "--threads",
        str(threads),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def alone(shape: str) -> None:
    """Run two iterations and print the peak memory, for `peak_alone`."""
    with tempfile.TemporaryDirectory() as folder:
        made = product(Path(folder), SHAPES[shape])
        for _ in range(2):
            product_iteration(made)
    print(peak_memory() / 2**20)


def report(shapes: Sequence[str], rounds: int, threads: int, *, more: bool) -> int:
    """Print the tables; returns 1 if a ratio is above its limit."""
    failed = []
    print(
        f"torch {torch.__version__}, {threads} thread(s), {rounds} rounds after one that warms up"
    )
    for name in shapes:
        shape = SHAPES[name]
        print(
            f"\n{name}: {shape.layers} layers, {shape.width} wide, {shape.vocabulary} words; "
            f"2 agents x {shape.queries} responses of {NEW_TOKENS} tokens, {EPOCHS} passes"
        )
        result = compare(Settings(name), rounds)
        print(stage_table(result))
        print(f"  peak memory of the product alone: {peak_alone(name, threads):.0f} MiB")
        # Of the two, what a busy machine shakes less.
        best = min(result.ratios[1], result.cpu_ratio)
        if best > shape.limit:
            failed.append(f"{name}: total / floor {best:.3f} is above its limit {shape.limit}")
        if more:
            print("\n".join(_variants(name, result, rounds)))
    if more:
        print(_growth())
    for line in failed:
        print(f"FAILED: {line}")
    return 1 if failed else 0


PEERS = {
    "tiny": {
        "cory": {"CORY's reference loop": 2.57, "the same, generating 32 at a time": 1.79},
        "solo": {"trl 1.16.0 GRPO": 2.11, "trl 1.16.0 RLOO": 2.16, "trl 1.12.0 PPO": 3.02},
    },
    "gpt2": {
        "cory": {"CORY's reference loop": 1.94, "the same, generating 8 at a time": 1.87},
        "solo": {"trl 1.16.0 GRPO": 1.26, "trl 1.12.0 PPO": 1.92},
    },
}
"""Other trainers' time over the plain floor of the same agents; docs/performance.md says whence."""


def _variants(name: str, base: Result, rounds: int) -> Iterator[str]:
    yield "  with other settings (seconds of an iteration; times faster than float32):"
    for label, settings in {
        "autocast bfloat16": Settings(name, autocast="bfloat16"),
        "compile": Settings(name, compile=True),
    }.items():
        found = compare(settings, rounds)
        gain = base.product["total"] / found.product["total"]
        yield f"  {label:<26}{found.product['total']:>10.4f}{gain:>9.2f}x"
    for method, peers in PEERS[name].items():
        # KL in the reward only and no fused pass: the work at which the others were measured.
        plain = Settings(name, method=method, estimator="reference", fused=False)
        found = compare(plain, rounds)
        half = compare(replace(plain, autocast="bfloat16"), rounds).product["total"]
        for label, ours in (("float32", found.product["total"]), ("autocast bfloat16", half)):
            over = ours / found.floor["total"]
            yield f"  {method}, {label}: {over:.3f} of the plain floor, so times the answers/s of"
            yield "    " + "; ".join(f"{peer} {times / over:.2f}" for peer, times in peers.items())


def _growth() -> str:
    by_batch, by_length = cost_per_response((8, 32, 128, 512), (8, 16, 32, 64, 128))
    rows = ["\nCPU milliseconds per response, tiny", "  batch  " + _row(by_batch)]
    return "\n".join([*rows, "  tokens " + _row(by_length)])


def _row(values: Mapping[int, float]) -> str:
    return "  ".join(f"{n}: {ms:.1f}" for n, ms in values.items())


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__)
    parser.add_argument("--shapes", nargs="+", choices=sorted(SHAPES), default=["tiny", "gpt2"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--more", action="store_true", help="other settings, peers, growth")
    parser.add_argument("--alone", choices=sorted(SHAPES), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    keep_freed_memory()
    if given.alone:
        alone(given.alone)
        return 0
    return report(given.shapes, given.rounds, given.threads, more=given.more)


if __name__ == "__main__":
    raise SystemExit(main())
