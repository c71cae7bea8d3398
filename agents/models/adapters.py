"""Agents on a shared base: each has an adapter and a value head of its own, and nothing else.

Their reference is the base alone, or the base with a frozen adapter.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from agents.models.checksum import tensor_sum
from agents.models.language_model import ActorCritic, LanguageModel
from agents.models.shared_base import SharedBase


class AdapterModel(LanguageModel):
    """A language model that is a shared base with one of its adapters, or with none."""

    def __init__(
        self,
        base: SharedBase,
        vocab_size: int,
        adapter: str | None,
        *,
        autocast: torch.dtype | None = None,
    ) -> None:
        """See the base with an adapter.

        Args:
            base: shared with other models.
            vocab_size: V of the game.
            adapter: name of an adapter that was added; None: the base alone.
            autocast: see `LanguageModel`.
        """
        self.base, self.adapter_name = base, adapter
        super().__init__(base.model, vocab_size, autocast=autocast)
        # What is shared is no part of this model: its parameters and its state are its own only,
        # and so are an optimizer over them and a checkpoint of them.
        del self._modules["model"]
        object.__setattr__(self, "model", base.model)
        if adapter is not None:
            self.adapter = base.tree(adapter)

    def trunk(
        self, ids: Tensor, mask: Tensor | None, cache: Any = None, *, use_cache: bool = False
    ) -> tuple[Tensor, Any]:
        """See `LanguageModel.trunk`."""
        with self.base.using(self.adapter_name):
            return super().trunk(ids, mask, cache, use_cache=use_cache)

    def response_hidden(self, prompt_ids: Tensor, response_ids: Tensor) -> Tensor:
        """See `LanguageModel.response_hidden`."""
        with self.base.using(self.adapter_name):
            return super().response_hidden(prompt_ids, response_ids)

    def _probe(self) -> tuple[Tensor, Tensor]:
        with self.base.using(self.adapter_name):
            return super()._probe()

    def train(self, mode: bool = True) -> AdapterModel:
        """Set the mode of the base as well."""
        self.base.model.train(mode)
        super().train(mode)
        return self

    def checkpoint_activations(self) -> None:
        """Compute the layers' activations again in the backward pass, with the same adapter."""
        recompute_activations(self.base.model, context_fn=self.base.remembering)

    @property
    def checksum(self) -> str:
        """SHA-256 over the base and the adapter."""
        if self.adapter_name is None:
            return self.base.checksum
        own = tensor_sum(self.base.tensors(self.adapter_name).items())
        return hashlib.sha256(f"{self.base.checksum} {own}".encode()).hexdigest()


class AdapterActorCritic(AdapterModel, ActorCritic):
    """An agent on a shared base: its adapter and its value head are all that is its own."""


def recompute_activations(model: PreTrainedModel, **options: Any) -> None:
    """Let a model compute its layers' activations again in the backward pass, not keep them.

    Args:
        model: that supports it.
        options: of torch's checkpointing.
    """
    if any(getattr(module, "gradient_checkpointing", False) for module in model.modules()):
        return  # an agent that shares the base has done so
    # The library renamed it within version 5, and the old name warns.
    new = getattr(model, "activation_checkpointing_enable", None)
    (new or model.gradient_checkpointing_enable)({"use_reentrant": False, **options})
