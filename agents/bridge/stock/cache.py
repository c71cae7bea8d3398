"""Keys and values of turns that are still being written, token by token.

A stock algorithm asks its network for one token at a time and hands over the whole text so far. A
turn whose text is what it was a step before and one token more costs that one token here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.cache_utils import DynamicLayer

from agents.models.language_model import LanguageModel, packed
from agents.models.short_way import ShortWay, short_way
from agents.sampling import trim_left

NOTHING = -2
"""In place of an observation where there is none; no observation holds it."""


class SlotLayer(DynamicLayer):
    """A layer of the library's cache whose rows are slots, each as long as its own text.

    Position p of a text lies in column p, whatever the others' lengths, so that turns may begin at
    different steps. Columns behind a text hold what is left of an older one, and are masked.
    """

    def __init__(self, filled: DynamicLayer, slots: int, width: int) -> None:
        """Make room.

        Args:
            filled: a layer after some text; says what a column looks like.
            slots: texts that may be unfinished at a time.
            width: longest text, in tokens.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        assert filled.keys is not None and filled.values is not None
        self.device, self.is_initialized = filled.keys.device, True
        self._all_keys = _room(filled.keys, slots, width)
        self._all_values = _room(filled.values, slots, width)
        self._rows: Tensor | slice = slice(None)
        self._slots = self._columns = torch.zeros(0, dtype=torch.int64)
        self._longest = 0

    def fill(self, slots: Tensor, filled: DynamicLayer) -> None:
        """Take over what a forward pass over whole texts left, [B, heads, length, width]."""
        assert filled.keys is not None and filled.values is not None
        length = filled.keys.shape[-2]
        self._all_keys[slots, :, :length] = filled.keys
        self._all_values[slots, :, :length] = filled.values

    def aim(self, slots: Tensor, columns: Tensor, longest: int, *, all_in_order: bool) -> None:
        """Say where the next token of each row belongs.

        Args:
            slots: of the rows, [B].
            columns: position of each row's next token, [B].
            longest: of the texts, that token included.
            all_in_order: whether `slots` is every slot once, from the first to the last; then
                nothing has to be gathered.
        """
        self._slots, self._columns, self._longest = slots, columns, longest
        self._rows = slice(None) if all_in_order else slots

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write one token of each row; returns all that those rows hold."""
        self._all_keys[self._slots, :, self._columns] = key_states[:, :, 0]
        self._all_values[self._slots, :, self._columns] = value_states[:, :, 0]
        self.keys = self._all_keys[self._rows, :, : self._longest]
        self.values = self._all_values[self._rows, :, : self._longest]
        return self.keys, self.values

    def get_seq_length(self) -> int:
        """Columns before the one that is written."""
        return max(self._longest - 1, 0)


def _room(like: Tensor, slots: int, width: int) -> Tensor:
    # Zeros: what is masked is multiplied by 0, and memory as it was found may hold NaN.
    return like.new_zeros(slots, like.shape[1], width, like.shape[3])


class TurnCache:
    """Hidden states from which the next token is drawn, with what earlier steps left.

    Holds for one set of weights: make a new one after an update.
    """

    def __init__(self, model: LanguageModel, slots: int) -> None:
        """Begin with nothing.

        Args:
            model: the network.
            slots: environments.
        """
        self._model = model
        self._n = slots
        self._seen: NDArray[np.int64] | None = None
        self._layers: list[SlotLayer] = []
        self._cache: Any = None
        self._short: ShortWay | None = None
        self._keeps = True
        self.tokens_fed = 0
        """Tokens that went through the network so far, without padding."""

    @torch.no_grad()
    def hidden(self, obs: NDArray[np.int64], slots: NDArray[np.int64]) -> Tensor:
        """Hidden state after the last token of each observation, [B, H].

        Args:
            obs: left-padded with -1, [B, L].
            slots: environment of each row, without repetition, [B].
        """
        if self._seen is None:
            self._seen = np.full((self._n, obs.shape[1]), NOTHING, dtype=np.int64)
        before = self._seen[slots]
        # Left padding: a text that grew by a token has moved by one column.
        follows = (before[:, 0] == -1) & (obs[:, :-1] == before[:, 1:]).all(1)
        self._seen[slots] = obs
        found: list[tuple[NDArray[np.bool_], Tensor]] = []
        for rows, feed in ((~follows, self._begin), (follows, self._extend)):
            if rows.any():
                found.append((rows, feed(obs[rows], slots[rows])))
        if not self._keeps:
            self._seen[:] = NOTHING
        if len(found) == 1:
            return found[0][1]
        whole = found[0][1].new_empty(len(obs), found[0][1].shape[1])
        for rows, part in found:
            whole[torch.as_tensor(rows, device=whole.device)] = part
        return whole

    def _begin(self, obs: NDArray[np.int64], slots: NDArray[np.int64]) -> Tensor:
        """Feed whole texts."""
        ids = trim_left(torch.as_tensor(obs, device=self._model.device))
        fed, last = packed(ids, ids.new_full((len(ids), 1), -1))
        # All padding is on the right, where no token that counts can see it.
        hidden, cache = self._model.trunk(fed, None, use_cache=True)
        self.tokens_fed += int((obs >= 0).sum())
        self._store(cache, torch.as_tensor(slots, device=fed.device), obs.shape[1])
        return hidden[torch.arange(len(fed), device=fed.device), last]

    def _store(self, cache: Any, slots: Tensor, width: int) -> None:
        layers = getattr(cache, "layers", None)
        if not layers or any(type(layer) is not DynamicLayer for layer in layers):
            self._keeps = False  # a sliding window, a state: nothing whose columns are positions
            return
        if not self._layers:
            self._layers = [SlotLayer(layer, self._n, width) for layer in layers]
        for own, layer in zip(self._layers, layers, strict=True):
            own.fill(slots, layer)
        if self._cache is None:
            cache.layers = self._layers
            self._cache = cache
            self._short = short_way(self._model.model.base_model, width)
            if self._short is not None:  # the same operations on keys and values that lie here
                self._short._update = lambda i, *new: self._layers[i].update(*new)  # type: ignore[method-assign]

    def _extend(self, obs: NDArray[np.int64], slots: NDArray[np.int64]) -> Tensor:
        """Feed the last token of each text, whose earlier ones lie in the cache."""
        device = self._model.device
        lengths = torch.as_tensor((obs >= 0).sum(1), device=device)
        longest = int(lengths.max())
        in_order = len(slots) == self._n and bool((np.diff(slots) == 1).all())
        places = torch.as_tensor(slots, device=device)
        for layer in self._layers:
            layer.aim(places, lengths - 1, longest, all_in_order=in_order)
        mask = None
        if int(lengths.min()) != longest:
            mask = torch.arange(longest, device=device) < lengths.unsqueeze(1)
        fed = torch.as_tensor(obs[:, -1:], device=device)
        self.tokens_fed += len(obs)
        if self._short is not None:
            self._short.length = longest - 1
            with self._model.precision():
                return self._short.feed(fed, mask)[:, -1]
        hidden, _ = self._model.trunk(fed, mask, self._cache, use_cache=True)
        return hidden[:, -1]
