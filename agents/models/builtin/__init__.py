"""The models shipped with the package; `tools/build_builtin` trained them.

Their tokenizers belong to the tasks and lie with the game's data.
"""

from __future__ import annotations

from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer

import cory_env
from agents.models.source import LoadedModel
from cory_env import make_task

FOLDER = Path(__file__).parent
TOKENIZERS = Path(cory_env.__file__).parent / "data"


def packaged_reviews(seed: int) -> LoadedModel:
    """A language model of movie review snippets with about a million parameters."""
    return _packaged("reviews")


def packaged_sums(seed: int) -> LoadedModel:
    """A character-level model of additions and subtractions below 100."""
    return _packaged("sums")


def _packaged(name: str) -> LoadedModel:
    import torch

    model = AutoModelForCausalLM.from_pretrained(
        FOLDER / name, dtype=torch.float32, local_files_only=True
    )
    tokenizer = AutoTokenizer.from_pretrained(
        TOKENIZERS / name / "tokenizer", local_files_only=True
    )
    return LoadedModel(model, tokenizer, make_task(name).tokenizer(), f"builtin:{name}")
