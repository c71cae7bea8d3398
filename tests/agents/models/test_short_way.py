"""Tests of agents/models/short_way.py: the same numbers as the library's way, or not taken."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from agents.models import LanguageModel
from agents.models.adapters import AdapterModel
from agents.models.shared_base import AdapterShape, SharedBase
from agents.models.short_way import SHORT_WAYS, ShortWay, short_way
from agents.models.target import draw_weights
from tests.agents.tiny import VOCABULARY, padded, tiny_model

GPT2 = {"vocab_size": VOCABULARY, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64}
LLAMA = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
SLOW_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
CONFIGS = {
    "gpt2": GPT2Config(**GPT2),
    "gpt2, scaled by layer": GPT2Config(**GPT2, scale_attn_by_inverse_layer_idx=True),
    "gpt2, unscaled, relu": GPT2Config(
        **GPT2, scale_attn_weights=False, activation_function="relu", n_inner=24
    ),
    "llama": LlamaConfig(**LLAMA),
    "llama, shared keys": LlamaConfig(**LLAMA, num_key_value_heads=2),
    "llama, wide heads, biases": LlamaConfig(
        **LLAMA, head_dim=8, attention_bias=True, mlp_bias=True, hidden_act="gelu"
    ),
    "llama, scaled positions": LlamaConfig(**LLAMA, rope_parameters=SLOW_ROPE),
}
PROMPTS = {
    "without padding": padded([[1, 5, 6], [3, 4, 9], [7, 7, 8]], 3),
    "padded": padded([[1], [3, 4, 9], [7, 8]], 3),
}
TOKENS = torch.tensor([[4, 2, 9, 3], [0, 5, 5, 10], [1, 8, 7, 6]])


def made(config: Any, dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    kind = GPT2LMHeadModel if isinstance(config, GPT2Config) else LlamaForCausalLM
    model = kind(config)
    draw_weights(model, 0, std=0.4)
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():  # biases and norms that say something too
        if parameter.ndim < 2:
            nn.init.uniform_(parameter, 0.2, 1.2, generator=generator)
    return model.to(dtype).eval()  # type: ignore[no-any-return]


@torch.no_grad()
def fed(model: LanguageModel, prompts: torch.Tensor) -> torch.Tensor:
    """Hidden states after the prompt and after each of the tokens, [B, 1 + T, H]."""
    real = prompts >= 0
    mask = None if bool(real.all()) else real
    states, step = model.read(prompts, mask, TOKENS.shape[1])
    found = [states[:, -1]]
    for t in range(TOKENS.shape[1]):
        if mask is not None:
            mask = torch.cat([mask, torch.ones(len(mask), 1, dtype=torch.bool)], dim=1)
        found.append(step(TOKENS[:, t : t + 1], mask)[:, -1])
    return torch.stack(found, dim=1)


@torch.no_grad()
def library(model: PreTrainedModel, prompts: torch.Tensor) -> torch.Tensor:
    """The same from plain forwards of the library, without a cache and without padding."""
    rows = []
    for prompt, more in zip(prompts, TOKENS, strict=True):
        ids = torch.cat([prompt[prompt >= 0], more]).unsqueeze(0)
        hidden = model.base_model(input_ids=ids).last_hidden_state[0]
        rows.append(hidden[-1 - TOKENS.shape[1] :])
    return torch.stack(rows)


@pytest.mark.parametrize("prompts", PROMPTS.values(), ids=PROMPTS)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_it_says_what_the_library_says(config: Any, prompts: torch.Tensor) -> None:
    model = made(config)
    assert short_way(model.base_model, 7) is not None
    got, expected = fed(LanguageModel(model, VOCABULARY), prompts), library(model, prompts)
    # The library's norm of Llama rounds to single precision in between.
    loose = 1e-12 if isinstance(config, GPT2Config) else 1e-5
    assert torch.allclose(got, expected, atol=loose, rtol=0)


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("prompts", PROMPTS.values(), ids=PROMPTS)
@pytest.mark.parametrize("name", ["gpt2", "llama", "llama, shared keys"])
def test_it_rounds_as_the_library_does(
    name: str,
    prompts: torch.Tensor,
    dtype: torch.dtype,
    autocast: torch.dtype | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = LanguageModel(made(CONFIGS[name], dtype), VOCABULARY, autocast=autocast)
    short = fed(model, prompts)
    monkeypatch.setattr("agents.models.short_way.SHORT_WAYS", {})
    loose = 0.0 if (dtype, autocast) == (torch.float32, None) else 0.05
    assert torch.allclose(short, fed(model, prompts), atol=loose + 1e-5, rtol=0)


def test_every_short_way_is_compared() -> None:
    assert {type(made(config).base_model) for config in CONFIGS.values()} == set(SHORT_WAYS)


def hooked(model: PreTrainedModel) -> None:
    model.base_model.register_forward_hook(lambda module, args, output: output)


def hooked_before(model: PreTrainedModel) -> None:
    next(model.base_model.children()).register_forward_pre_hook(lambda module, args: None)


def replaced(model: PreTrainedModel) -> None:
    layer = list(model.base_model.modules())[-1]
    layer.forward = layer.forward  # what libraries that move weights about do


def eager(model: PreTrainedModel) -> None:
    model.set_attn_implementation("eager")


def other_matrix(model: PreTrainedModel) -> None:
    class Other(nn.Linear):
        pass

    if model.config.model_type == "gpt2":
        model.base_model.h[1].mlp.c_fc = Other(16, 64)
    else:
        model.base_model.layers[1].mlp.up_proj = Other(16, 32)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("change", [hooked, hooked_before, replaced, eager, other_matrix])
def test_a_model_with_something_of_its_own_takes_the_librarys_way(family: str, change: Any) -> None:
    model = tiny_model(family)
    assert short_way(model.base_model, 7) is not None
    change(model)
    assert short_way(model.base_model, 7) is None


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_model_with_adapters_takes_the_librarys_way(family: str) -> None:
    base = SharedBase(tiny_model(family, dtype=torch.float64))
    base.add("agent_0", AdapterShape(rank=2, alpha=6.0, targets=("auto",)), seed=5)
    agent = AdapterModel(base, VOCABULARY, "agent_0").eval()
    draw_weights(agent, 1, std=0.4)
    alone = AdapterModel(base, VOCABULARY, None).eval()
    assert short_way(base.model.base_model, 7) is None
    assert not torch.allclose(fed(agent, PROMPTS["padded"]), fed(alone, PROMPTS["padded"]))


def test_another_architecture_takes_the_librarys_way() -> None:
    names = {k: v for k, v in LLAMA.items() if k != "num_attention_heads"}
    model = Qwen2ForCausalLM(Qwen2Config(**names, num_attention_heads=4, num_key_value_heads=2))
    draw_weights(model, 0, std=0.4)
    model = model.double().eval()
    assert short_way(model.base_model, 7) is None
    got = fed(LanguageModel(model, VOCABULARY), PROMPTS["padded"])
    assert torch.allclose(got, library(model, PROMPTS["padded"]), atol=1e-5, rtol=0)


def test_several_tokens_are_fed_at_the_beginning_only() -> None:
    way: ShortWay | None = short_way(tiny_model("gpt2").base_model, 7)
    assert way is not None
    with torch.no_grad():
        way.feed(TOKENS[:, :2], None)
        with pytest.raises(RuntimeError, match="several tokens are fed at the beginning only"):
            way.feed(TOKENS[:, :2], None)
