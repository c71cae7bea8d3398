"""Room for the keys and values of a response, made once instead of at every token."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer


class RoomyLayer(DynamicLayer):
    """A layer of the library's cache that writes into memory it already has.

    The library's own joins old and new at every token: twice the cache is copied for each layer,
    which in a small model takes a quarter of the step.
    """

    def __init__(self, filled: DynamicLayer, room: int) -> None:
        """Take over what a layer holds.

        Args:
            filled: a layer after the prompt.
            room: tokens that will follow.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        keys, values = filled.keys, filled.values
        assert keys is not None and values is not None
        self.device, self.is_initialized = keys.device, True
        self._length = keys.shape[-2]
        self._all_keys, self._all_values = _roomy(keys, room), _roomy(values, room)
        self._show()

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the next tokens; returns all so far."""
        start, self._length = self._length, self._length + key_states.shape[-2]
        self._all_keys[..., start : self._length, :] = key_states
        self._all_values[..., start : self._length, :] = value_states
        return self._show()

    def _show(self) -> tuple[Tensor, Tensor]:
        keys = self._all_keys[..., : self._length, :]
        values = self._all_values[..., : self._length, :]
        self.keys, self.values = keys, values
        return keys, values


def _roomy(tensor: Tensor, room: int) -> Tensor:
    *outer, length, width = tensor.shape
    larger = torch.empty(*outer, length + room, width, dtype=tensor.dtype, device=tensor.device)
    larger[..., :length, :] = tensor
    return larger


def with_room(cache: Any, room: int) -> Any:
    """Make room in a cache for the tokens that will follow.

    Layers of other kinds (a sliding window, a state) stay as they are.
    """
    layers = getattr(cache, "layers", None)
    if isinstance(layers, list):
        cache.layers = [
            RoomyLayer(layer, room)
            if type(layer) is DynamicLayer and layer.is_initialized
            else layer
            for layer in layers
        ]
    return cache
