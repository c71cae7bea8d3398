"""Tests of agents/bridge/stock/cache.py: what is kept from token to token changes nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import GPT2Config, GPT2LMHeadModel, MistralConfig, MistralForCausalLM

from agents.bridge.stock.cache import TurnCache
from agents.bridge.stock.networks import last_hidden
from agents.models import BUILTIN_MODELS
from agents.models.language_model import LanguageModel
from agents.models.target import draw_weights

WIDTH = 9

Steps = Sequence[dict[int, list[int]]]

STEPS: Steps = (
    {0: [1, 5], 1: [1, 5, 7], 2: [1]},
    {0: [1, 5, 4], 1: [1, 5, 7, 8], 2: [1, 9]},  # all go on, each at a length of its own
    {1: [1, 5, 7, 8, 8], 2: [1, 9, 9]},  # slot 0 pauses
    {0: [1, 6, 6, 6, 6, 6, 6], 1: [1, 5, 7, 8, 8, 3], 2: [1, 9, 9, 2]},  # and begins a new turn
    {0: [1, 6, 6, 6, 6, 6, 6, 4], 2: [1, 9, 9, 2, 2]},
    {0: [1, 6, 6, 6, 6, 6, 7], 1: [1, 5], 2: [1, 9, 9, 2, 2, 8]},  # one text changed in the middle
    {0: [1, 6, 6, 6, 6, 6, 7, 7], 1: [1, 5, 5], 2: [1, 9, 9, 2, 2, 8, 10]},
)
"""Slot -> the text so far."""


def target() -> LanguageModel:
    loaded = BUILTIN_MODELS["target"](0)
    return LanguageModel(loaded.model, 12)


def plain_attention() -> LanguageModel:
    model = target()
    model.model.set_attn_implementation("eager")  # the library's own way, step by step
    return model


def gpt2() -> LanguageModel:
    config = GPT2Config(vocab_size=12, n_embd=16, n_layer=2, n_head=2, n_positions=32)
    model = GPT2LMHeadModel(config)
    draw_weights(model, 1, std=0.3)
    return LanguageModel(model, 12)


def windowed() -> LanguageModel:
    config = MistralConfig(
        vocab_size=12,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        sliding_window=4,
    )
    model = MistralForCausalLM(config)
    draw_weights(model, 2, std=0.3)
    return LanguageModel(model, 12)


def padded(texts: Sequence[list[int]]) -> NDArray[np.int64]:
    return np.array([[-1] * (WIDTH - len(text)) + text for text in texts], dtype=np.int64)


@pytest.mark.parametrize("make", [target, plain_attention, gpt2, windowed])
def test_every_step_says_what_the_whole_text_says(make: type[LanguageModel]) -> None:
    model = make()
    cache = TurnCache(model, 3)
    for step in STEPS:
        obs = padded(list(step.values()))
        found = cache.hidden(obs, np.array(list(step)))
        with torch.no_grad():
            expected = last_hidden(model, torch.as_tensor(obs))
        assert found.shape == expected.shape
        assert torch.allclose(found, expected, atol=2e-5, rtol=1e-4)
        assert not torch.allclose(found[0], expected[-1], atol=1e-2)  # rows are not mixed up


def test_only_the_new_token_of_a_turn_is_fed() -> None:
    cache = TurnCache(target(), 3)
    fed = []
    for step in STEPS:
        before = cache.tokens_fed
        cache.hidden(padded(list(step.values())), np.array(list(step)))
        fed.append(cache.tokens_fed - before)
    # By hand: all texts; a token each; two tokens; a new text of 7 and two; two; 7 + 2 and one; 3.
    assert fed == [2 + 3 + 1, 3, 2, 7 + 2, 2, 7 + 2 + 1, 3]


def test_a_cache_whose_columns_are_no_positions_is_not_kept() -> None:
    cache = TurnCache(windowed(), 3)
    for step in STEPS[:2]:
        cache.hidden(padded(list(step.values())), np.array(list(step)))
    assert cache.tokens_fed == 6 + 9


def test_a_text_that_fills_the_window_is_never_taken_for_the_next_step() -> None:
    # Moved by one column it could equal an observation that lost its first token.
    model = target()
    cache = TurnCache(model, 1)
    full = np.full((1, WIDTH), 6, dtype=np.int64)
    cache.hidden(full, np.array([0]))
    cache.hidden(full, np.array([0]))
    assert cache.tokens_fed == 2 * WIDTH
