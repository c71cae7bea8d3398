"""What the console commands share: settings from files and flags, and errors in one sentence."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NoReturn

import tyro
import yaml

from agents.config import PRESETS, TrainConfig, from_mapping
from agents.distributed import speaks


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChatFlags:
    """How the prompts of a model become chats, and how long all is; a run has its own settings."""

    chat_template: Literal["auto", "always", "never"] = "auto"
    """Use of a model's own chat template: auto, always or never. A run has its own."""
    system_prompt: str | None = None
    """Text of a system message for a model; a run has its own."""
    few_shot: Path | None = None
    """Examples for a model, .jsonl or .csv with query and answer; a run has its own."""
    generation_prompt: str = ""
    """Text that begins every answer of a model and is no part of it; a run has its own."""
    max_response_tokens: int | None = None
    """Longest response of a model, in tokens. None: the task's own; a run has its own."""
    max_prompt_tokens: int | None = None
    """Longest prompt of a model, in tokens. None: the task's own; a run has its own."""

    @property
    def chat(self) -> dict[str, Any]:
        """The flags as settings of a `TrainConfig`."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(ChatFlags)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Files:
    """Read before the other flags, which override what is in them."""

    config: Path | None = None
    """YAML or JSON file with any of the settings (a run's config.json too); flags override it."""
    preset: str | None = None
    """Published settings to start from: paper_imdb or paper_gsm8k."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainCommand(_Files, TrainConfig):
    """Fine-tune a language model with one agent or with several that play a sequential game.

    A setting that is not given takes the task's own value.
    """

    def __post_init__(self) -> None:
        """Nothing: the settings are checked when the TrainConfig is made, by one sentence each."""


def train_config(arguments: list[str]) -> TrainConfig:
    """Parse the flags of `cory-train`.

    Order of precedence: flags, the file of --config, --preset, and on --resume what the run itself
    has stored.
    """
    base = _base_settings(arguments)
    default = TrainCommand(**base)
    parsed = tyro.cli(TrainCommand, args=arguments, default=default, prog="cory-train")
    names = {f.name for f in dataclasses.fields(TrainConfig)}
    return TrainConfig(**{n: v for n, v in vars(parsed).items() if n in names})


def _base_settings(arguments: list[str]) -> dict[str, Any]:
    given = _peek(arguments, ("config", "preset", "out"))
    base: dict[str, Any] = {}
    if given["preset"] is not None:
        if given["preset"] not in PRESETS:
            raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {given['preset']!r}")
        base |= PRESETS[given["preset"]]
    if given["config"] is not None:
        base |= settings_from_file(Path(given["config"]))
    if "--resume" in arguments and given["out"] is not None:
        stored = Path(given["out"]) / "config.json"
        if stored.is_file():
            base = {**settings_from_file(stored), **base}
    return base


def _peek(arguments: list[str], names: tuple[str, ...]) -> dict[str, str | None]:
    """The values of a few flags, before the others can be parsed."""
    found: dict[str, str | None] = dict.fromkeys(names)
    for i, argument in enumerate(arguments):
        for name in names:
            if argument == f"--{name}" and i + 1 < len(arguments):
                found[name] = arguments[i + 1]
            elif argument.startswith(f"--{name}="):
                found[name] = argument.partition("=")[2]
    return found


def settings_from_file(path: Path) -> dict[str, Any]:
    """Read settings from a YAML or JSON file.

    Raises:
        ValueError: if it is missing, cannot be read, or names an unknown setting.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"config {path} cannot be read: {error}") from error
    try:
        values = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except Exception as error:  # YAML's readers of single values raise a dozen kinds
        raise ValueError(f"config {path} is not valid: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"config {path} must hold settings by name, got {type(values).__name__}")
    if odd := [name for name in values if not isinstance(name, str)]:
        raise ValueError(f"config {path} must hold settings by name, got the name {odd[0]!r}")
    if "versions" in values:  # a run's own file: where it was written is not a setting to repeat
        # nor is what was filled in and would contradict another method.
        dropped = ("versions", "out", "resume", *(("n_agents",) if _usual_agents(values) else ()))
        values = {k: v for k, v in values.items() if k not in dropped}
    return from_mapping(values)


def _usual_agents(values: dict[str, Any]) -> bool:
    return values.get("n_agents") == (1 if values.get("method") == "solo" else 2)


def run_command(command: Callable[[list[str]], None]) -> None:
    """Run a command; bad input ends it with one sentence and exit status 1, not a traceback."""
    try:
        command(sys.argv[1:])
    except (ValueError, OSError) as error:
        # Messages of other libraries may have several lines; a log has one for each event.
        _end(1, "error: " + " ".join(str(error).split("\n")))
    except Exception as error:
        if os.environ.get("CORY_TRACEBACK"):
            raise
        text = f"error: {type(error).__name__}: {' '.join(str(error).split())}"
        _end(1, f"{text} (unexpected; set CORY_TRACEBACK=1 to see where)")
    except KeyboardInterrupt:
        _end(130, "interrupted")


def _end(status: int, sentence: str) -> NoReturn:
    """Say a sentence, of several processes once, and exit."""
    if speaks():
        print(sentence, file=sys.stderr)
    raise SystemExit(status) from None
