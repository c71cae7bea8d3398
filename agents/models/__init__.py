"""Language models: the built-in ones, a local folder, or a hub name.

A new built-in model is one entry in `BUILTIN_MODELS`.
"""

from __future__ import annotations

from collections.abc import Callable

from agents.models.builtin import packaged_reviews, packaged_sums
from agents.models.language_model import ActorCritic, LanguageModel, Scored
from agents.models.source import LoadedModel
from agents.models.target import random_target

BUILTIN_MODELS: dict[str, Callable[[int], LoadedModel]] = {
    "reviews": packaged_reviews,
    "sums": packaged_sums,
    "target": random_target,
}
"""Name after `builtin:` -> function of the run's seed that builds the model and its tokenizer."""

__all__ = ["BUILTIN_MODELS", "ActorCritic", "LanguageModel", "LoadedModel", "Scored"]
