"""Tiny random language models of two families, and what a plain forward says of a response."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from agents.models import ActorCritic, LanguageModel
from agents.models.target import draw_weights

VOCABULARY = 11
END = 2


def tiny_model(
    family: str, *, tied: bool = False, seed: int = 0, dtype: torch.dtype = torch.float32
) -> PreTrainedModel:
    """Two layers of 16 units; weights large enough that the distributions are far from uniform."""
    ends = {"bos_token_id": 1, "eos_token_id": END, "pad_token_id": END}
    model: PreTrainedModel
    if family == "llama":  # rotary positions
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=VOCABULARY,
                hidden_size=16,
                intermediate_size=32,
                num_hidden_layers=2,
                num_attention_heads=2,
                max_position_embeddings=64,
                tie_word_embeddings=tied,
                **ends,
            )
        )
    else:  # absolute positions
        model = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=VOCABULARY,
                n_embd=16,
                n_layer=2,
                n_head=2,
                n_positions=64,
                tie_word_embeddings=tied,
                **ends,
            )
        )
    draw_weights(model, seed, std=0.4)
    return model.to(dtype=dtype).eval()  # type: ignore[no-any-return]


def tiny_actor(family: str = "llama", *, seed: int = 0, **options: object) -> ActorCritic:
    """A tiny model with a value head that says something."""
    model = tiny_model(family, seed=seed, **options)  # type: ignore[arg-type]
    actor = ActorCritic(model, VOCABULARY).eval()
    draw_weights(actor.value_head, seed + 100, std=0.4)
    return actor


def tiny_reference(family: str = "llama", *, seed: int = 7, **options: object) -> LanguageModel:
    """Another tiny model, frozen."""
    model = tiny_model(family, seed=seed, **options)  # type: ignore[arg-type]
    return LanguageModel(model, VOCABULARY).eval().requires_grad_(False)


def plain_scores(
    model: LanguageModel, prompt: list[int], response: list[int], temperature: float
) -> tuple[Tensor, Tensor]:
    """What the library's own forward of one unpadded row says.

    Returns:
        Log-probabilities of the vocabulary before each response token, [T, V], and the model's
        values there, [T].
    """
    ids = torch.tensor([prompt + response])
    with torch.no_grad():
        output = model.model(input_ids=ids, output_hidden_states=True)
        logits = output.logits[0, len(prompt) - 1 : -1]
        hidden = output.hidden_states[-1][0, len(prompt) - 1 : -1]
        return torch.log_softmax(logits / temperature, -1), model.values(hidden)


def padded(rows: list[list[int]], width: int) -> Tensor:
    """Rows of ids, left-padded with -1."""
    return torch.tensor([[-1] * (width - len(row)) + row for row in rows])
