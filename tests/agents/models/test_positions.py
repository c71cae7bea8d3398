"""Tests of agents/models/positions.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig, LlamaForCausalLM, Phi3Config

from agents.models.load import load_model
from agents.models.positions import constant_positions
from tests.agents.runs import session_of


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        ({"rope_type": "default", "rope_theta": 1e4}, None),
        ({"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}, None),
        ({"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}, 64),
        (
            {
                "rope_type": "dynamic",
                "factor": 2.0,
                "rope_theta": 1e4,
                "original_max_position_embeddings": 20,
            },
            20,
        ),
    ],
)
def test_positions_stay_the_same_up_to_what_the_model_was_trained_on(
    scaling: dict[str, Any], expected: int | None
) -> None:
    config = LlamaConfig(max_position_embeddings=64, rope_parameters=scaling)
    assert constant_positions(config) == expected


def test_the_long_form_has_its_first_length_in_the_settings() -> None:
    factors = [1.0, 1.0]
    config = Phi3Config(
        hidden_size=8,
        num_attention_heads=2,
        max_position_embeddings=128,
        original_max_position_embeddings=12,
        rope_scaling={"type": "longrope", "short_factor": factors, "long_factor": factors},
    )
    assert constant_positions(config) == 12


def test_a_run_that_could_cross_it_is_refused(tmp_path: Path) -> None:
    source = load_model("builtin:target")
    config = LlamaConfig(
        vocab_size=source.text_tokenizer.vocab_size,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=128,
        rope_parameters={
            "rope_type": "dynamic",
            "factor": 2.0,
            "rope_theta": 1e4,
            "original_max_position_embeddings": 14,
        },
        eos_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    source.tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"must be at most 14 .* rotary positions .* got 12 \+ 3"):
        session_of(model=str(tmp_path))
    assert session_of(model=str(tmp_path), max_prompt_tokens=11)
