"""Open what a run left behind, or a model from elsewhere, to evaluate it or play with it."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from agents.actors import open_actors
from agents.bridge.policy import ResponsePolicy
from agents.bridge.stock import PREFIX, stock_class
from agents.command_line import settings_from_file
from agents.config import TrainConfig
from agents.models import LoadedModel
from agents.models.load import load_model
from agents.session import (
    check_context,
    game_rules,
    resolve_config,
    response_policy,
    set_threads,
)
from cory_env.rules import GameRules
from cory_env.tasks.base import Task


@dataclass(frozen=True)
class Opened:
    """A game and agents that can answer in it."""

    config: TrainConfig
    task: Task
    rules: GameRules
    """The game that the agents were trained in; for a foreign model, the game of `config`."""
    responders: dict[str, ResponsePolicy]
    """By agent id, at temperature 1."""
    names: dict[str, str]
    """Where each agent came from."""
    has_reference: bool
    """Whether KL can be told."""


def open_agents(
    *,
    run: Path | None,
    model: str | None,
    config: TrainConfig,
    reference: str | None,
    which: str = "final",
    measure_kl: bool = True,
) -> Opened:
    """Open the agents of a run, or one foreign model in every seat.

    Args:
        run: a run folder; its own settings are used.
        model: builtin:NAME, a folder or a hub name, instead of a run.
        config: task, method and lengths for a foreign model.
        reference: model that KL is measured against; None: what the run started from, and for a
            foreign model none.
        which: "final" or "best" of a run.
        measure_kl: load what a run started from; False where nobody looks at the KL.

    Raises:
        ValueError: if not exactly one of run and model is given, or something cannot be opened.
    """
    if (run is None) == (model is None):
        raise ValueError("give either --run with a run folder or --model, and not both")
    if run is not None:
        config = replace(
            run_config(run), trust_remote_code=config.trust_remote_code, device=config.device
        )
        if config.reward_cache is not None and not config.reward_cache.parent.is_dir():
            config = replace(config, reward_cache=None)  # a run that was moved scores anew
        names = _trained_folders(run, which, config.agents_in_game)
        reference = (reference or config.model) if measure_kl else None
    else:
        assert model is not None
        config = replace(config, model=model)
        names = {f"agent_{i}": model for i in range(config.agents_in_game)}
    config, task = resolve_config(config, trains=False)
    bases: dict[str, LoadedModel] = {}
    loaded = _load(config, names, bases)
    first = next(iter(loaded.values()))
    set_threads(config, first)
    rules = game_rules(config, task, first)
    against = _load_references(config, rules, reference, bases)
    check_context(rules, {**loaded, **against})
    actors = open_actors({**loaded, **against}, rules.tokenizer.vocab_size, config)
    references = [actors[name] for name in against]
    responders = {}
    for i, agent in enumerate(names):
        trained_as = _best_agent(run) if run is not None and which == "best" else i
        measured = references[trained_as % len(references)] if references else actors[agent]
        responders[agent] = response_policy(actors[agent], measured, rules)
    return Opened(config, task, rules, responders, names, bool(references))


def _load(
    config: TrainConfig, names: dict[str, str], bases: dict[str, LoadedModel]
) -> dict[str, LoadedModel]:
    """Models by any keys; those that are alike, or adapters on one base, share their weights."""
    return {
        key: load_model(
            name,
            seed=config.seed,
            dtype=config.dtype,
            device=config.device,
            trust_remote_code=config.trust_remote_code,
            quantize=config.quantize,
            bases=bases,
        )
        for key, name in names.items()
    }


def run_config(run: Path) -> TrainConfig:
    """The settings of a run.

    Raises:
        ValueError: if there is no run.
    """
    file = run / "config.json"
    if not file.is_file():
        raise ValueError(f"run {run} must be a run folder with a config.json, and there is none")
    return TrainConfig(**settings_from_file(file))


def _trained_folders(run: Path, which: str, n_agents: int) -> dict[str, str]:
    if which not in ("final", "best"):
        raise ValueError(f"which must be final or best, got {which!r}")
    folders = {
        f"agent_{i}": run / "final" / f"agent_{i}" if which == "final" else run / "best"
        for i in range(n_agents)
    }
    for folder in folders.values():
        if not folder.is_dir():
            algorithm = run_config(run).algorithm
            if algorithm.startswith(PREFIX) and stock_class(algorithm).off_policy:
                raise ValueError(f"run {run} has no models: {algorithm} leaves none behind")
            raise ValueError(
                f"run {run} has no {folder.relative_to(run)} yet: it was not finished; "
                f"go on with cory-train --resume --out {run}"
            )
    return {agent: str(folder) for agent, folder in folders.items()}


def _best_agent(run: Path) -> int:
    """The number of the agent that `best/` holds: its reference is that agent's."""
    file = run / "best" / "selection.json"
    try:
        agent: str = json.loads(file.read_text(encoding="utf-8"))["agent"]
        return int(agent.removeprefix("agent_"))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{file} must name the agent that best/ holds ({error})") from error


def _load_references(
    config: TrainConfig, rules: GameRules, reference: str | None, bases: dict[str, LoadedModel]
) -> dict[str, LoadedModel]:
    names = [] if reference is None else [name.strip() for name in reference.split(",")]
    loaded = _load(config, {f"reference_{i}": name for i, name in enumerate(names)}, bases)
    for name, own in zip(names, loaded.values(), strict=True):
        if own.text_tokenizer.vocab_size != rules.tokenizer.vocab_size:
            raise ValueError(
                f"reference {name!r} must have the agents' tokenizer: expected "
                f"{rules.tokenizer.vocab_size} tokens, got {own.text_tokenizer.vocab_size}"
            )
    return loaded
