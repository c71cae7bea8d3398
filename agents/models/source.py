"""What every way of loading a model returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedModel

from cory_env.tokens import TextTokenizer

if TYPE_CHECKING:
    from agents.models.adapter_files import AdapterFiles


@dataclass(frozen=True)
class LoadedModel:
    """A causal language model with the tokenizer it was trained with."""

    model: PreTrainedModel
    tokenizer: Any
    """The Hugging Face tokenizer: what is saved beside a trained model."""
    text_tokenizer: TextTokenizer
    """The same tokenizer as the game sees it."""
    source: str
    """Where it came from, as the user named it."""
    adapter: AdapterFiles | None = None
    """Of a folder with an adapter that was to be kept apart: `model` is its base alone then."""
