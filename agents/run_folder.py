"""The folder of a run: what is written where, and what may be found there."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from agents.config import MAY_CHANGE_ON_RESUME, TrainConfig
from agents.evaluation import Evaluated
from agents.files import (
    TEMPORARY,
    append_line,
    mend_folder,
    read_lines,
    write_folder,
    write_json,
    write_text,
)
from agents.guards import NonFiniteError
from cory_env.records import EpisodeRecord

PACKAGES = (
    "cory-env",
    "torch",
    "transformers",
    "tianshou",
    "pettingzoo",
    "gymnasium",
    "tokenizers",
    "numpy",
)


class RunFolder:
    """Paths and files of one run."""

    def __init__(self, path: Path, n_processes: int = 1) -> None:
        self.path = path
        self._n_processes = n_processes
        self.config_file = path / "config.json"
        self.metrics_file = path / "metrics.jsonl"
        self.samples_file = path / "samples.jsonl"
        self.warnings_file = path / "warnings.jsonl"
        self.failed_batch = path / "failed_batch"
        self.checkpoints = path / "checkpoints"
        self.tensorboard = path / "tensorboard"

    def check(self, config: TrainConfig) -> None:
        """Refuse, before any work, a folder that cannot be used.

        Raises:
            ValueError: if it holds another run or anything else; on resume, if there is no run or a
                setting differs that must not.
        """
        if config.resume:
            self._check_same(config)
            return
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"out must be a folder, got the file {self.path}")
        if self.config_file.exists():
            raise ValueError(
                f"out {self.path} holds another run; name a new folder, or go on with --resume"
            )
        # What a process left that was killed while it claimed the folder does not count.
        if self.path.exists() and any(not TEMPORARY.fullmatch(p.name) for p in self.path.iterdir()):
            raise ValueError(
                f"out {self.path} must be a new or an empty folder, and it is not empty"
            )

    def start(self, config: TrainConfig) -> None:
        """Claim a new folder.

        Raises:
            ValueError: if it cannot be made.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            mend_folder(self.path)
            self._write_config(config)  # first: from now on the folder is one to resume
            self.checkpoints.mkdir()
        except OSError as error:
            raise ValueError(f"out {self.path} cannot be written: {error.strerror}") from error

    def check_seen(self) -> None:
        """Refuse a folder that the main process has claimed elsewhere.

        Raises:
            ValueError: if this process does not see it.
        """
        if not self.config_file.is_file():
            raise ValueError(
                f"out {self.path} must lie on a disk that all processes of the run see, and one "
                f"of them does not find it"
            )

    def abandon(self) -> None:
        """Remove a run in which nothing was trained."""
        shutil.rmtree(self.path)

    def resume(self, config: TrainConfig) -> None:
        """Write down the settings that may have changed."""
        self._write_config(config)

    def _write_config(self, config: TrainConfig) -> None:
        # Where this once went on is no setting of the run.
        values = {**config.to_json(), "resume_from": None}
        made_with = {**versions(), "processes": self._n_processes}
        write_json(self.config_file, {**values, "versions": made_with})

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a second process out of a run that is being trained; a killed one lets go.

        Raises:
            ValueError: if another process trains in it.
        """
        if sys.platform == "win32":  # it locks no folders
            yield
            return
        import fcntl

        handle = os.open(self.path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ValueError(f"out {self.path} is being trained by another process") from error
            except OSError:  # some network file systems have no locks
                pass
            yield
        finally:
            os.close(handle)

    def mend(self) -> None:
        """Clear up after a process that was killed while it wrote."""
        for folder in (self.path, self.checkpoints, self.path / "final"):
            mend_folder(folder)

    def _check_same(self, config: TrainConfig) -> None:
        if not self.config_file.is_file():
            raise ValueError(f"resume needs a run in {self.path}, and there is none")
        try:
            stored = dict(json.loads(self.config_file.read_text(encoding="utf-8")))
        except (RecursionError, TypeError, ValueError) as error:
            raise ValueError(f"resume cannot read {self.config_file}: {error}") from error
        for name, value in fixed_settings(config).items():
            if stored.get(name) != value:
                raise ValueError(
                    f"resume must keep {name}: the run has {stored.get(name)!r}, got {value!r}"
                )
        try:
            tempfile.TemporaryFile(dir=self.path).close()
        except OSError as error:
            raise ValueError(
                f"out {self.path} cannot be written: {error.strerror}; the run in it is as it was"
            ) from error

    def cut_after(self, iteration: int) -> None:
        """Remove what was logged after an iteration: that work is done again.

        Raises:
            ValueError: if what was logged before is not whole; nothing has been removed then.
        """
        found = [row["iteration"] for row in _numbered(self.metrics_file)]
        if (before := [i for i in found if i <= iteration]) != list(range(1, iteration + 1)):
            lost = next((i for i, j in enumerate(before, start=1) if i != j), len(before) + 1)
            raise ValueError(
                f"resume needs iterations 1 to {iteration} in {self.metrics_file}, and {lost} is "
                f"missing or damaged; an earlier checkpoint (--resume-from) may need less"
            )
        for file in (self.metrics_file, self.samples_file, self.warnings_file):
            kept = [row for row in _numbered(file) if row["iteration"] <= iteration]
            if file.exists() or kept:
                write_text(file, "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in kept))
        if self.failed_batch.exists():
            shutil.rmtree(self.failed_batch)

    def sync_logs(self) -> None:
        """Bring the logs to the disk, so that a checkpoint never outlives their lines."""
        for file in (self.metrics_file, self.samples_file, self.warnings_file):
            if file.is_file():
                with file.open("rb") as opened:
                    os.fsync(opened.fileno())

    def log_warnings(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append what the guards name."""
        for row in rows:
            append_line(self.warnings_file, dict(row))

    def save_failed_batch(self, error: NonFiniteError) -> None:
        """Keep the minibatch whose loss or gradient was not finite."""

        def fill(folder: Path) -> None:
            tensors = {k: v.detach().cpu().contiguous() for k, v in error.batch.items()}
            save_file(tensors, folder / "batch.safetensors")
            write_json(folder / "about.json", {**error.about, "message": str(error)})

        write_folder(self.failed_batch, fill)

    def log_metrics(self, values: Mapping[str, Any]) -> None:
        """Append an iteration to metrics.jsonl."""
        append_line(self.metrics_file, dict(values))

    def log_samples(self, iteration: int, records: list[EpisodeRecord]) -> None:
        """Append some episodes of an iteration to samples.jsonl."""
        for record in records:
            append_line(self.samples_file, {"iteration": iteration, **sample_row(record)})

    def metrics(self) -> list[dict[str, Any]]:
        """All iterations logged so far."""
        return read_lines(self.metrics_file)

    def write_initial(self, values: Mapping[str, Any], alone: Mapping[str, Evaluated]) -> None:
        """Write the evaluation before training and some of its answers."""
        write_json(self.path / "eval_initial.json", dict(values))
        self.write_answers("answers_initial.json", alone)

    def initial(self) -> dict[str, Any]:
        """The evaluation before training."""
        text = (self.path / "eval_initial.json").read_text(encoding="utf-8")
        values: dict[str, Any] = json.loads(text)
        return values

    def write_answers(self, name: str, alone: Mapping[str, Evaluated], n: int = 8) -> None:
        """Write the first evaluation answers of each agent: query, response and score."""
        write_json(
            self.path / name,
            {
                agent: [
                    {
                        "query": record.query.text,
                        "response": record.turns[-1].response,
                        "score": record.turns[-1].score,
                    }
                    for record in evaluated.records[:n]
                ]
                for agent, evaluated in alone.items()
            },
        )

    def answers(self, name: str) -> dict[str, list[dict[str, Any]]]:
        """Read what `write_answers` wrote."""
        found: dict[str, list[dict[str, Any]]] = json.loads(
            (self.path / name).read_text(encoding="utf-8")
        )
        return found


def fixed_settings(config: TrainConfig) -> dict[str, Any]:
    """The settings that a resumed run must share with what it goes on from."""
    values = config.to_json()
    fixed = {f.name: values[f.name] for f in fields(TrainConfig)}
    free = set(MAY_CHANGE_ON_RESUME)
    if config.learning_rate_schedule == "linear":
        free.discard("iterations")
    return {name: value for name, value in fixed.items() if name not in free}


def _numbered(file: Path) -> list[dict[str, Any]]:
    """The rows of a log up to the first that is not one."""
    rows = []
    for row in read_lines(file):
        if not isinstance(row, dict) or type(row.get("iteration")) is not int:
            break
        rows.append(row)
    return rows


def sample_row(record: EpisodeRecord) -> dict[str, Any]:
    """One episode for people: query, and by agent its role, prompt, response, score and reward."""
    return {
        "query": record.query.text,
        "answer": record.query.answer,
        "roles": {turn.agent: turn.role for turn in record.turns},
        "prompts": {turn.agent: turn.prompt for turn in record.turns},
        "responses": {turn.agent: turn.response for turn in record.turns},
        "scores": {turn.agent: turn.score for turn in record.turns},
        "parts": {turn.agent: turn.parts for turn in record.turns},
        "rewards": {turn.agent: turn.payoff for turn in record.turns},
    }


def versions() -> dict[str, str | int | None]:
    """What the run was made with."""
    found: dict[str, str | int | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    found["threads"] = torch.get_num_threads()
    found["git"] = _git_revision()
    return found


def _git_revision() -> str | None:
    """The revision of the checkout the package is in; None where it is none."""
    here = Path(__file__).parent
    try:
        result = subprocess.run(
            ["git", "-C", str(here), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()


def next_numbered(parent: Path, prefix: str) -> Path:
    """A folder name that is not taken: `parent/prefix-001`, `-002`, ..."""
    taken = [
        int(match.group(1))
        for path in parent.glob(f"{prefix}-*")
        if (match := re.fullmatch(rf"{re.escape(prefix)}-(\d+)", path.name))
    ]
    return parent / f"{prefix}-{max(taken, default=0) + 1:03d}"
