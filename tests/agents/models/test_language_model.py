"""Tests of agents/models/language_model.py."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel
from transformers.modeling_utils import logger

from agents.models import ActorCritic, LanguageModel
from tests.agents.tiny import VOCABULARY, padded, tiny_actor, tiny_model

FAMILIES = pytest.mark.parametrize("family", ["llama", "gpt2"])


@pytest.mark.case(12, 19)
@FAMILIES
def test_left_padding_moves_nothing(family: str) -> None:
    actor = tiny_actor(family, dtype=torch.float64)
    response = torch.tensor([[3, 4, 2]])
    alone = actor.score(torch.tensor([[1, 5, 6]]), response, 1.0)
    for width in (4, 9):
        wide = actor.score(padded([[1, 5, 6]], width), response, 1.0)
        assert torch.allclose(alone.logprobs, wide.logprobs, atol=1e-12, rtol=0)
        assert torch.allclose(alone.entropy, wide.entropy, atol=1e-12, rtol=0)
        assert torch.allclose(alone.values, wide.values, atol=1e-12, rtol=0)


@FAMILIES
def test_what_follows_a_position_does_not_change_it(family: str) -> None:
    actor = tiny_actor(family, dtype=torch.float64)
    prompt = torch.tensor([[1, 5, 6]])
    one = actor.distribution(prompt, torch.tensor([[3, 4, 2]]), 1.0)
    two = actor.distribution(prompt, torch.tensor([[3, 9, -1]]), 1.0)
    assert torch.allclose(one[:, :2], two[:, :2], atol=1e-12, rtol=0)
    assert actor.score(prompt, torch.tensor([[3, 9, -1]]), 1.0).logprobs[0, 2] == 0.0


@pytest.mark.case(10)
def test_dropout_is_off_even_in_training_mode() -> None:
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=16,
        n_layer=1,
        n_head=2,
        n_positions=16,
        resid_pdrop=0.5,
        embd_pdrop=0.5,
        attn_pdrop=0.5,
    )
    actor = ActorCritic(GPT2LMHeadModel(config), VOCABULARY).train()
    prompt, response = torch.tensor([[1, 5, 6]]), torch.tensor([[3, 4, 2]])
    one, two = (actor.score(prompt, response, 1.0).logprobs for _ in range(2))
    assert torch.equal(one, two)


@pytest.mark.case(10)
def test_attention_dropout_of_other_families_is_off_too() -> None:
    model = tiny_model("llama")
    for layer in model.model.layers:  # type: ignore[union-attr]
        layer.self_attn.attention_dropout = 0.5  # type: ignore[union-attr]
    actor = ActorCritic(model, VOCABULARY).train()
    prompt, response = torch.tensor([[1, 5, 6]]), torch.tensor([[3, 4, 2]])
    one, two = (actor.score(prompt, response, 1.0).logprobs for _ in range(2))
    assert torch.equal(one, two)


def test_rows_of_the_output_layer_beyond_the_vocabulary_are_never_drawn() -> None:
    model = tiny_model("llama")
    smaller = LanguageModel(model, VOCABULARY - 3)
    log_probs = smaller.distribution(torch.tensor([[1, 5]]), torch.tensor([[3]]), 1.0)
    assert log_probs.shape == (1, 1, VOCABULARY - 3)
    assert log_probs.exp().sum().item() == pytest.approx(1.0, abs=1e-5)


def test_a_model_that_knows_fewer_tokens_than_its_tokenizer_is_refused() -> None:
    with pytest.raises(ValueError, match=f"at least {VOCABULARY + 1} rows .* got {VOCABULARY}"):
        LanguageModel(tiny_model("llama"), VOCABULARY + 1)


def test_a_head_that_cannot_be_reproduced_is_refused() -> None:
    class Odd(GPT2LMHeadModel):  # type: ignore[misc]
        def forward(self, *args: object, **kwargs: object) -> object:
            output = super().forward(*args, **kwargs)
            output.logits = output.logits**2 + 1
            return output

    config = GPT2Config(vocab_size=VOCABULARY, n_embd=16, n_layer=1, n_head=2, n_positions=16)
    with pytest.raises(ValueError, match="not supported"):
        LanguageModel(Odd(config), VOCABULARY)


def test_a_soft_cap_is_reproduced() -> None:
    class Capped(GPT2LMHeadModel):  # type: ignore[misc]
        def forward(self, *args: object, **kwargs: object) -> object:
            output = super().forward(*args, **kwargs)
            cap = self.config.final_logit_softcapping
            output.logits = torch.tanh(output.logits / cap) * cap
            return output

    config = GPT2Config(vocab_size=VOCABULARY, n_embd=16, n_layer=1, n_head=2, n_positions=16)
    config.final_logit_softcapping = 0.01
    model = Capped(config).eval()
    ids = torch.tensor([[1, 5, 6]])
    ours = LanguageModel(model, VOCABULARY)
    got = ours.logits(ours.trunk(ids, ids >= 0)[0])
    assert torch.allclose(got, model(input_ids=ids).logits, atol=1e-6)


def test_a_new_critic_says_zero_and_is_not_part_of_the_model() -> None:
    actor = ActorCritic(tiny_model("llama"), VOCABULARY)
    values = actor.score(torch.tensor([[1, 5]]), torch.tensor([[3, 2]]), 1.0).values
    assert torch.equal(values, torch.zeros(1, 2))
    assert not any("value_head" in name for name, _ in actor.model.named_parameters())


def test_a_half_precision_model_keeps_a_float32_critic() -> None:
    actor = ActorCritic(tiny_model("llama", dtype=torch.bfloat16), VOCABULARY)
    scored = actor.score(torch.tensor([[1, 5]]), torch.tensor([[3, 2]]), 1.0)
    assert scored.values.dtype == scored.logprobs.dtype == torch.float32


def tiny_config(kind: str, **changes: Any) -> Any:
    """A configuration of an architecture, small."""
    import transformers

    small = {"vocab_size": 16, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    return getattr(transformers, kind)(**{**small, **changes})


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("BloomConfig", {"n_layer": 2, "n_head": 2, "hidden_dropout": 0.3}),
        ("OPTConfig", {"ffn_dim": 16, "word_embed_proj_dim": 16, "layerdrop": 0.5}),
        ("GPTNeoXConfig", {"intermediate_size": 16, "hidden_dropout": 0.3}),
    ],
)
def test_no_kind_of_dropout_is_left_on(kind: str, changes: dict[str, Any]) -> None:
    model = AutoModelForCausalLM.from_config(tiny_config(kind, **changes))
    wrapped = LanguageModel(model, 16).train()
    prompts, responses = torch.tensor([[3, 4, 5]]), torch.tensor([[6, 7]])
    first = wrapped.score(prompts, responses, 1.0).logprobs
    assert torch.equal(first, wrapped.score(prompts, responses, 1.0).logprobs)


def test_an_architecture_without_a_key_value_cache_is_refused() -> None:
    # Its state is not a cache of keys and values: behind left padding and step by step it computes
    # something else than in one plain pass.
    model = AutoModelForCausalLM.from_config(tiny_config("MambaConfig", state_size=4))
    with pytest.raises(ValueError, match="model of type 'mamba' is not supported"):
        LanguageModel(model, 16)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_token_like_the_padding_token_makes_no_noise(
    family: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The library warns once a process: it has to be asked to do so again.
    monkeypatch.setattr(logger, "warning_once", logger.warning)
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    actor = tiny_actor(family)
    pad = actor.model.config.pad_token_id
    with caplog.at_level(logging.WARNING):
        actor.trunk(torch.tensor([[pad, 5, pad]]), None)
    assert not caplog.records
    del actor.model.base_model.warn_if_padding_and_no_attention_mask
    with caplog.at_level(logging.WARNING):
        actor.model.base_model.warn_if_padding_and_no_attention_mask(
            torch.tensor([[pad, 5, pad]]), None
        )
    assert caplog.records
