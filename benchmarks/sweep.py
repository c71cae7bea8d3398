"""A store of runs: many configurations, each trained once, each in a folder of its own.

A benchmark names its runs and reads their results from the folders alone. What is finished is never
run again; what was interrupted goes on; a folder that was made with other settings is refused.
"""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import signal
import socket
import statistics
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from tqdm import tqdm

from agents.config import TrainConfig
from agents.files import read_lines
from agents.run_folder import RunFolder, fixed_settings
from agents.session import resolve_config
from agents.train import train

QUIET: dict[str, Any] = {
    "progress": False,
    "tensorboard": False,
    "samples_per_iteration": 0,
    "keep_checkpoints": 1,
    "threads": 1,
}
"""Settings of every run of a store: no more files than resuming takes, and one thread."""

SECONDS_AN_ITERATION = 0.2
"""Of `target` with its defaults, on one thread of a server; used until a run of the store says."""


@dataclass(frozen=True)
class Run:
    """What the folder of a finished run says."""

    name: str
    config: Mapping[str, Any]
    """The settings, with every default filled in."""
    initial: Mapping[str, Any]
    """The evaluation before training."""
    last: Mapping[str, Any]
    """The last row of metrics.jsonl, with the evaluation after training."""


@dataclass(frozen=True)
class Outcome:
    """How the attempt at one run ended."""

    name: str
    finished: bool
    failure: str | None = None
    """One sentence; None where it finished or was interrupted."""


@dataclass
class Tally:
    """How an attempt at all runs ended."""

    done: int = 0
    """Runs that this attempt finished."""
    failures: dict[str, str] = field(default_factory=dict)
    """Name of a run -> why it failed."""
    interrupted: bool = False


@dataclass(frozen=True)
class Store:
    """Runs by name, and the folder that holds them.

    Args:
        folder: gets one run folder a name.
        wanted: name -> settings, `out` left open, in the order in which they are to be trained.
    """

    folder: Path
    wanted: Mapping[str, TrainConfig]

    @cached_property
    def configs(self) -> dict[str, TrainConfig]:
        """The runs as they are trained: quiet, in their folders, with every default filled in."""
        return {
            name: resolve_config(replace(config, **QUIET, out=self.folder / name))[0]
            for name, config in self.wanted.items()
        }

    def check(self) -> None:
        """Refuse, before any work, a store whose runs were made with other settings.

        Raises:
            ValueError: naming the first such run, what differs, and how many there are.
        """
        found = {name: text for name in self.wanted if (text := self._difference(name)) is not None}
        if found:
            name, text = next(iter(found.items()))
            raise ValueError(
                f"store {self.folder} has {len(found)} of {len(self.wanted)} runs with other "
                f"settings: {name} was made with {text}; name another store, or remove its folder"
            )

    def _difference(self, name: str) -> str | None:
        file = RunFolder(self.folder / name).config_file
        if not file.is_file():
            return None
        stored, wanted = _stored_config(file), self.configs[name]
        settings = {**fixed_settings(wanted), "iterations": wanted.iterations}
        # A setting that came after the run was made had the value that is now its default.
        had = {k: stored.get(k, getattr(TrainConfig(), k)) for k in settings}
        told = [f"{k} {had[k]!r}, not {v!r}" for k, v in settings.items() if had[k] != v]
        return ", ".join(told) or None

    def finished(self, name: str) -> Run | None:
        """What a run's folder says; None while it is not finished."""
        run = RunFolder(self.folder / name)
        if not run.config_file.is_file():
            return None
        config = _stored_config(run.config_file)
        rows = read_lines(run.metrics_file)
        if not rows or not isinstance(rows[-1], dict):
            return None
        if rows[-1].get("iteration") != config.get("iterations"):
            return None
        try:
            initial = run.initial()
        except (OSError, ValueError) as error:
            raise ValueError(
                f"store cannot read the evaluation before training of {name}: {error}; remove its "
                f"folder from {self.folder}, and the same command trains it again"
            ) from error
        return Run(name, config, initial, rows[-1])

    def runs(self) -> dict[str, Run]:
        """The finished runs, by name, in the order of the wanted ones."""
        found = {name: self.finished(name) for name in self.wanted}
        return {name: run for name, run in found.items() if run is not None}

    @property
    def cost(self) -> str:
        """What is still to be done, in a sentence; times are those of the finished runs."""
        runs = self.runs()
        left = [c for name, c in self.configs.items() if name not in runs]
        iterations = sum(c.iterations or 0 for c in left)
        known = [r.last["seconds"] / r.last["iteration"] for r in runs.values()]
        seconds = iterations * (statistics.median(known) if known else SECONDS_AN_ITERATION)
        responses = sum((c.iterations or 0) * (c.batch_size or 0) for c in left)
        return (
            f"{len(self.wanted)} runs, {len(runs)} of them done; to do: {iterations} iterations, "
            f"{responses} scored responses, about {seconds / 60:.0f} minutes of one core"
        )

    def train(self, workers: int, *, progress: bool = True) -> Tally:
        """Train what is not finished; Ctrl-C leaves what can be gone on with.

        Args:
            workers: processes that train side by side, each with one thread. 1: this process.
            progress: say the cost, and show a bar over the runs.

        Raises:
            ValueError: if a run in the store has other settings; nothing has been trained then.
        """
        if workers < 1:
            raise ValueError(f"workers must be at least 1, got {workers}")
        self.check()
        if progress:
            print(f"{self.folder}: {self.cost}.", flush=True)
        done = self.runs()
        left = [config for name, config in self.configs.items() if name not in done]
        tally = Tally()
        outcomes = _here(left) if workers == 1 else _in_processes(left, workers)
        with tqdm(total=len(self.wanted), initial=len(done), unit="run", disable=not progress) as b:
            for outcome in outcomes:
                if outcome.failure is not None:
                    tally.failures[outcome.name] = outcome.failure
                tally.done += outcome.finished
                b.set_postfix_str(outcome.name)
                b.update(outcome.finished)
        tally.interrupted = tally.done + len(tally.failures) < len(left)
        return tally


def _stored_config(file: Path) -> dict[str, Any]:
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"store cannot read {file}: {error}") from error
    if not isinstance(stored, dict):
        raise ValueError(f"store cannot read {file}: expected settings by name")
    return stored


def attempt(config: TrainConfig) -> Outcome:
    """Begin a run, or go on with what its folder has of it."""
    assert config.out is not None
    folder, name = RunFolder(config.out), config.out.name
    try:
        # The guards' warnings lie in the folders; a hundred runs would flood the terminal.
        with contextlib.redirect_stderr(io.StringIO()):
            result = train(replace(config, resume=folder.config_file.is_file()))
    except Exception as error:  # the other runs go on; the last lines of the command name this one
        text = " ".join(str(error).split())
        return Outcome(name, finished=False, failure=f"{type(error).__name__}: {text}")
    return Outcome(name, result.finished)


def _here(configs: Sequence[TrainConfig]) -> Iterator[Outcome]:
    with _listening() as asked:
        for config in configs:
            outcome = attempt(config)
            yield outcome
            if asked() or not (outcome.finished or outcome.failure):
                return


@contextlib.contextmanager
def _listening() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C or SIGTERM came: a run takes it, and in its last iteration still finishes."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # signals go to the main thread
        return
    heard, told = socket.socketpair()
    heard.setblocking(False)
    told.setblocking(False)
    before = signal.set_wakeup_fd(told.fileno(), warn_on_full_buffer=False)

    def asked() -> bool:
        try:
            return bool({signal.SIGINT, signal.SIGTERM} & set(heard.recv(4096)))
        except BlockingIOError:
            return False

    try:
        yield asked
    finally:
        signal.set_wakeup_fd(before)
        heard.close()
        told.close()


def _in_processes(configs: Sequence[TrainConfig], workers: int) -> Iterator[Outcome]:
    """The same side by side; on Ctrl-C, which all processes get, the running ones end first."""
    context = multiprocessing.get_context("spawn")  # forks of a process with threads can hang
    left, asked = iter(configs), False
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_begin_worker) as pool:
        # No more than run at once: what the pool has taken in cannot be taken back.
        running = {pool.submit(attempt, config) for config in islice(left, workers)}
        while running:
            try:
                ready, running = wait(running, return_when=FIRST_COMPLETED)
            except KeyboardInterrupt:
                if asked:
                    raise
                left, asked = iter(()), True
                continue
            for future in ready:
                running |= {pool.submit(attempt, config) for config in islice(left, 1)}
                yield future.result()


def _begin_worker() -> None:
    """Set up a process of the pool: quiet on Ctrl-C between runs, gone when its parent is."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a run sets its own handler
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end() -> None:
        parent.join()
        os._exit(1)  # what it was doing can be resumed

    threading.Thread(target=end, daemon=True).start()
