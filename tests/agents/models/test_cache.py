"""Tests of agents/models/cache.py."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from agents.models import cache as caches
from agents.models.cache import RoomyLayer, with_room
from agents.sampling import sample
from tests.agents.tiny import END, padded, tiny_actor


def test_it_holds_what_the_librarys_own_holds() -> None:
    generator = torch.Generator().manual_seed(0)
    own, ours = DynamicCache(), DynamicCache()
    for step, tokens in enumerate((3, 1, 1, 2)):
        keys, values = torch.randn(2, 2, 4, tokens, 8, generator=generator)
        for layer in (0, 1):
            expected = own.update(keys + layer, values - layer, layer)
            got = ours.update(keys + layer, values - layer, layer)
            assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
        if step == 0:
            ours = with_room(ours, 4)
            assert [type(layer) for layer in ours.layers] == [RoomyLayer, RoomyLayer]
        assert ours.get_seq_length() == own.get_seq_length()


def test_other_layers_and_other_caches_stay() -> None:
    class Other(DynamicLayer):
        """A layer with a rule of its own."""

    cache = DynamicCache()
    cache.layers = [Other(), DynamicLayer()]
    before = list(cache.layers)
    assert with_room(cache, 3).layers == before  # the second holds nothing yet
    assert with_room(None, 3) is None


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_responses_are_drawn_from_the_same_distributions(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agents.models.short_way.SHORT_WAYS", {})  # which keeps a cache of its own
    actor = tiny_actor(family, dtype=torch.float64)
    numbers = torch.rand(3, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    prompts = padded([[1, 5, 6], [4], [7, 8]], 3)
    options = {"end_ids": (END,), "temperature": 1.0}
    ours = sample(actor, prompts, numbers, **options)
    monkeypatch.setattr("agents.models.language_model.with_room", lambda cache, room: cache)
    plain = sample(actor, prompts, numbers, **options)
    assert torch.equal(ours.response_ids, plain.response_ids)
    assert torch.allclose(ours.logprobs, plain.logprobs, atol=1e-12, rtol=0)
    assert caches.RoomyLayer is not DynamicLayer
