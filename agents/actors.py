"""The agents of a run and their references: whole models, or adapters on a shared base."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

from agents.config import TrainConfig
from agents.models import ActorCritic, LanguageModel, LoadedModel
from agents.models.adapter_files import AdapterFiles, put_on
from agents.models.adapters import AdapterActorCritic, AdapterModel, recompute_activations
from agents.models.shared_base import AUTO, AdapterShape, SharedBase


@dataclass(frozen=True)
class Actor:
    """What an agent trains, and what its KL is measured against."""

    trained: ActorCritic
    reference: LanguageModel


def build_actors(
    config: TrainConfig, loaded: Mapping[str, LoadedModel], vocab_size: int
) -> dict[str, Actor]:
    """Make the agents of a run.

    Args:
        config: resolved settings.
        loaded: each agent's model; with `lora_rank`, agents may share one.
        vocab_size: V of the game.

    Raises:
        ValueError: naming the setting that does not fit the models.
    """
    build = _on_shared_bases if config.lora_rank else _whole
    actors = build(config, loaded, vocab_size)
    for actor in actors.values():
        if config.gradient_checkpointing:
            if isinstance(actor.trained, AdapterModel):
                actor.trained.checkpoint_activations()
            else:
                recompute_activations(actor.trained.model)
        if config.compile:
            actor.trained.compile_scoring()
    return actors


def _whole(
    config: TrainConfig, loaded: Mapping[str, LoadedModel], vocab_size: int
) -> dict[str, Actor]:
    """Every agent trains all weights; the references are frozen copies, shared by duplicates."""
    references: dict[str, LanguageModel] = {}
    actors = {}
    for agent, own in loaded.items():
        if own.source not in references:
            frozen = copy.deepcopy(own.model).eval().requires_grad_(False)
            references[own.source] = LanguageModel(
                frozen, vocab_size, autocast=config.autocast_dtype
            )
        trained = ActorCritic(own.model, vocab_size, autocast=config.autocast_dtype)
        actors[agent] = Actor(trained, references[own.source])
    return actors


def _on_shared_bases(
    config: TrainConfig, loaded: Mapping[str, LoadedModel], vocab_size: int
) -> dict[str, Actor]:
    """Every agent trains an adapter.

    Its reference is the base alone; where training goes on from an adapter, the base with a frozen
    copy of that.
    """
    bases: dict[int, SharedBase] = {}
    reference_names: dict[str, str | None] = {}
    for agent, own in loaded.items():
        base = _base_of(own, bases)
        if own.adapter is None:
            base.add(agent, _shape(config), seed=config.seed)
            reference_names[own.source] = None
            continue
        _check_going_on(config, own.adapter)
        put_on(base, agent, own.adapter, trained=True)
        if own.source not in reference_names:
            reference_names[own.source] = f"reference_of_{agent}"
            put_on(base, f"reference_of_{agent}", own.adapter, trained=False)
    references: dict[str, LanguageModel] = {}
    actors = {}
    autocast = config.autocast_dtype
    for agent, own in loaded.items():
        base, source = bases[id(own.model)], own.source
        if source not in references:
            frozen = AdapterModel(base, vocab_size, reference_names[source], autocast=autocast)
            references[source] = frozen.eval()
        trained = AdapterActorCritic(base, vocab_size, agent, autocast=autocast)
        actors[agent] = Actor(trained, references[source])
    return actors


def _base_of(loaded: LoadedModel, bases: dict[int, SharedBase]) -> SharedBase:
    key = id(loaded.model)
    if key not in bases:
        bases[key] = SharedBase(loaded.model)
    return bases[key]


def _shape(config: TrainConfig) -> AdapterShape:
    assert config.lora_rank is not None
    alpha = 2.0 * config.lora_rank if config.lora_alpha is None else config.lora_alpha
    targets = tuple(name.strip() for name in config.lora_targets.split(","))
    return AdapterShape(config.lora_rank, alpha, targets)


def _check_going_on(config: TrainConfig, files: AdapterFiles) -> None:
    """Refuse settings that the adapter in the folder already has otherwise."""
    where = f"training goes on from the adapter in {files.folder}"
    if config.lora_rank != files.shape.rank:
        raise ValueError(
            f"lora_rank must be {files.shape.rank}, since {where}, got {config.lora_rank}; without "
            f"lora_rank it is merged and all weights are trained"
        )
    if config.lora_alpha not in (None, files.shape.alpha):
        raise ValueError(
            f"lora_alpha must be {files.shape.alpha:g}, since {where}, got {config.lora_alpha:g}"
        )
    if config.lora_targets != AUTO:
        raise ValueError(
            f"lora_targets must be left out, since {where}, got {config.lora_targets!r}"
        )


def open_actors(
    loaded: Mapping[str, LoadedModel], vocab_size: int, config: TrainConfig
) -> dict[str, ActorCritic]:
    """Models that only answer; an adapter stays beside its base, which several may share.

    Args:
        loaded: by any names; a model may stand in it more than once.
        vocab_size: V of the game.
        config: says the precision.
    """
    bases: dict[int, SharedBase] = {}
    for name, own in loaded.items():
        if own.adapter is not None:
            put_on(_base_of(own, bases), name, own.adapter, trained=False)
    actors: dict[str, ActorCritic] = {}
    for name, own in loaded.items():
        if id(own.model) in bases:
            adapter = None if own.adapter is None else name
            actors[name] = AdapterActorCritic(
                bases[id(own.model)], vocab_size, adapter, autocast=config.autocast_dtype
            )
        else:
            actors[name] = ActorCritic(own.model, vocab_size, autocast=config.autocast_dtype)
        actors[name].eval()
    return actors
