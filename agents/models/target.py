"""The model of the toy task: tiny, with random weights."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from agents.models.source import LoadedModel
from agents.streams import stream
from cory_env import make_task


def random_target(seed: int) -> LoadedModel:
    """A two-layer Llama over the letters of the `target` task, its weights drawn from the seed."""
    task = make_task("target")
    text_tokenizer = task.tokenizer()
    config = LlamaConfig(
        vocab_size=text_tokenizer.vocab_size,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=128,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config)
    draw_weights(model, seed)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=text_tokenizer.backend,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
    )
    return LoadedModel(model, tokenizer, text_tokenizer, "builtin:target")


def draw_weights(model: torch.nn.Module, seed: int, *, std: float = 0.05) -> None:
    """Draw every matrix from one named stream; norms stay 1 and biases 0.

    The library's own initialisation reads torch's global generator, which would tie the weights
    to whatever ran before.
    """
    rng = stream(seed, "weights")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                values = rng.normal(0.0, std, size=tuple(parameter.shape))
                parameter.copy_(torch.as_tensor(values, dtype=parameter.dtype))
