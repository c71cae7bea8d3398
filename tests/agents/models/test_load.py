"""Tests of agents/models/load.py and target.py; refused models are in test_command_line.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from agents.models import BUILTIN_MODELS
from agents.models.load import load_model
from agents.models.target import random_target
from tests.agents.tiny import tiny_model


@pytest.mark.case(36)
def test_the_same_seed_gives_the_same_weights_whatever_ran_before() -> None:
    torch.manual_seed(0)
    one = random_target(3).model.state_dict()
    torch.manual_seed(1)
    two, other = random_target(3).model.state_dict(), random_target(4).model.state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["lm_head.weight"], other["lm_head.weight"])


@pytest.mark.parametrize("name", [n for n in BUILTIN_MODELS if n != "target"])
def test_built_in_models_and_tokenizers_fit_their_task(name: str) -> None:
    loaded = load_model(f"builtin:{name}")
    assert loaded.source == f"builtin:{name}"
    text = loaded.text_tokenizer
    assert loaded.tokenizer.eos_token_id in text.end_ids
    assert loaded.model.get_output_embeddings().weight.shape[0] >= text.vocab_size


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_dtype(dtype: str) -> None:
    model = load_model("builtin:target", dtype=dtype).model
    assert {p.dtype for p in model.parameters()} == {getattr(torch, dtype)}


@pytest.mark.case(17, 18)
def test_a_folder_has_every_end_token_of_its_generation_settings(tmp_path: Path) -> None:
    loaded = random_target(0)
    loaded.model.save_pretrained(tmp_path)
    loaded.tokenizer.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 5]}))
    assert load_model(str(tmp_path)).text_tokenizer.end_ids == (2, 5)


def test_a_folder_gives_back_what_was_saved(tmp_path: Path) -> None:
    loaded = random_target(0)
    loaded.model.save_pretrained(tmp_path)
    loaded.tokenizer.save_pretrained(tmp_path)
    opened = load_model(str(tmp_path))
    for name, tensor in loaded.model.state_dict().items():
        assert torch.equal(tensor, opened.model.state_dict()[name])
    text = "a d | b |"
    assert opened.text_tokenizer.encode_prompt(text) == loaded.text_tokenizer.encode_prompt(text)
    assert opened.text_tokenizer.end_ids == loaded.text_tokenizer.end_ids


def test_weights_of_a_folder_lie_as_those_of_a_copy(tmp_path: Path) -> None:
    # Vector instructions round otherwise at other alignments: the agents would not be duplicates.
    loaded = random_target(0)
    loaded.model.save_pretrained(tmp_path)
    loaded.tokenizer.save_pretrained(tmp_path)
    opened = load_model(str(tmp_path)).model
    assert {p.data_ptr() % 64 for p in opened.parameters()} == {0}


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    model = tiny_model("llama", tied=True)
    tokenizer = random_target(0).tokenizer
    model.resize_token_embeddings(12)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    opened = load_model(str(tmp_path)).model
    head = opened.get_output_embeddings().weight
    assert head is opened.get_input_embeddings().weight
    assert torch.equal(head, model.get_output_embeddings().weight)


def test_a_folder_that_lacks_weights_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    loaded = load_model("builtin:target")
    loaded.model.save_pretrained(tmp_path)
    loaded.tokenizer.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if "layers.1" not in name}
    save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"lacks weights of its architecture: 9 are missing"):
        load_model(str(tmp_path))
