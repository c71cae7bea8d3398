"""The folder of a run: what is written where, and what may be found there."""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from agents.config import MAY_CHANGE_ON_RESUME, TrainConfig
from agents.evaluation import Evaluated
from agents.files import append_line, read_lines, write_json, write_text
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

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.json"
        self.metrics_file = path / "metrics.jsonl"
        self.samples_file = path / "samples.jsonl"
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
        if self.path.exists() and any(self.path.iterdir()):
            raise ValueError(
                f"out {self.path} must be a new or an empty folder, and it is not empty"
            )

    def start(self, config: TrainConfig) -> None:
        """Claim a new folder.

        Raises:
            ValueError: if it cannot be made.
        """
        try:
            self.checkpoints.mkdir(parents=True)
            write_json(self.config_file, {**config.to_json(), "versions": versions()})
        except OSError as error:
            raise ValueError(f"out {self.path} cannot be written: {error.strerror}") from error

    def abandon(self) -> None:
        """Remove a run in which nothing was trained."""
        shutil.rmtree(self.path)

    def resume(self, config: TrainConfig) -> None:
        """Write down the settings that may have changed."""
        write_json(self.config_file, {**config.to_json(), "versions": versions()})

    def _check_same(self, config: TrainConfig) -> None:
        if not self.config_file.is_file():
            raise ValueError(f"resume needs a run in {self.path}, and there is none")
        try:
            stored = dict(json.loads(self.config_file.read_text(encoding="utf-8")))
        except (TypeError, ValueError) as error:
            raise ValueError(f"resume cannot read {self.config_file}: {error}") from error
        given = config.to_json()
        fixed = [f.name for f in fields(TrainConfig) if f.name not in MAY_CHANGE_ON_RESUME]
        if config.learning_rate_schedule == "linear":
            fixed.append("iterations")
        for name in fixed:
            if stored.get(name) != given[name]:
                raise ValueError(
                    f"resume must keep {name}: the run has {stored.get(name)!r}, "
                    f"got {given[name]!r}"
                )

    def cut_after(self, iteration: int) -> None:
        """Remove what was logged after an iteration: that work is done again."""
        for file in (self.metrics_file, self.samples_file):
            kept = [row for row in read_lines(file) if row["iteration"] <= iteration]
            write_text(file, "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in kept))

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


def sample_row(record: EpisodeRecord) -> dict[str, Any]:
    """One episode for people: query, and by agent its role, prompt, response, score and reward."""
    return {
        "query": record.query.text,
        "answer": record.query.answer,
        "roles": {turn.agent: turn.role for turn in record.turns},
        "prompts": {turn.agent: turn.prompt for turn in record.turns},
        "responses": {turn.agent: turn.response for turn in record.turns},
        "scores": {turn.agent: turn.score for turn in record.turns},
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
