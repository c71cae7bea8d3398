"""Tests of agents/models/activations.py."""

from __future__ import annotations

import torch
from torch import nn
from transformers.activations import ACT2FN, NewGELUActivation

from agents.models import LanguageModel
from agents.models.activations import SPELLED_OUT, fuse_activations
from tests.agents.tiny import VOCABULARY, tiny_model


def test_the_function_stays_the_same() -> None:
    x = torch.linspace(-8, 8, 2001, dtype=torch.float64)
    for kind in SPELLED_OUT:
        holder = nn.Sequential(kind())
        fuse_activations(holder)
        assert isinstance(holder[0], nn.GELU)
        # The published constant of the quick form has ten digits.
        assert torch.allclose(holder(x), kind()(x), atol=1e-9, rtol=0)


def test_other_activations_are_left_alone() -> None:
    holder = nn.Sequential(ACT2FN["relu"], ACT2FN["gelu"], ACT2FN["silu"])
    kinds = [type(module) for module in holder]
    fuse_activations(holder)
    assert [type(module) for module in holder] == kinds


def test_a_wrapped_model_has_none_spelled_out_and_keeps_its_settings() -> None:
    model = tiny_model("gpt2")
    assert any(isinstance(module, NewGELUActivation) for module in model.modules())
    LanguageModel(model, VOCABULARY)
    assert not any(isinstance(module, SPELLED_OUT) for module in model.modules())
    assert model.config.activation_function == "gelu_new"
