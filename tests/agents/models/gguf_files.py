"""A tiny Llama with a byte-level tokenizer, written as a GGUF file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from gguf import GGUFWriter
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from agents.models.target import draw_weights
from cory_env.tasks.reviews import FOLDER

# The tokens and merges of the task `reviews`, so that its prompts fit.
_BPE = json.loads((FOLDER / "tokenizer" / "tokenizer.json").read_text(encoding="utf-8"))["model"]
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *list(_BPE["vocab"])[3:]]
MERGES = [" ".join(pair) for pair in _BPE["merges"]]
TEMPLATE = "{% for m in messages %}{{ m['content'] }}<|im_end|>{% endfor %}"
CONTROL, NORMAL = 3, 1
"""Kinds of token in the format."""

# Fields of LlamaConfig; two heads of four, so that the interleaving of rotary halves matters.
SHAPE = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 128,
}


def tiny_llama() -> LlamaForCausalLM:
    """The model that the file below holds; tied, so the file has no output layer."""
    config = LlamaConfig(vocab_size=len(TOKENS), tie_word_embeddings=True, **SHAPE)
    model = LlamaForCausalLM(config).eval()
    draw_weights(model, seed=5, std=0.4)
    return model


def interleaved(weight: Tensor, heads: int) -> Tensor:
    """Rows of a query or key matrix in the format's order: halves of a head taken in turn."""
    rows, columns = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns)


def write_gguf(path: Path, model: LlamaForCausalLM, *, without: str | None = None) -> None:
    """Write a model.

    Args:
        path: of the file.
        model: from `tiny_llama`.
        without: name of a tensor to leave out.
    """
    writer = GGUFWriter(str(path), "llama")
    writer.add_name("tiny")
    writer.add_context_length(SHAPE["max_position_embeddings"])
    writer.add_embedding_length(SHAPE["hidden_size"])
    writer.add_feed_forward_length(SHAPE["intermediate_size"])
    writer.add_block_count(SHAPE["num_hidden_layers"])
    writer.add_head_count(SHAPE["num_attention_heads"])
    writer.add_head_count_kv(SHAPE["num_key_value_heads"])
    writer.add_rope_dimension_count(SHAPE["hidden_size"] // SHAPE["num_attention_heads"])
    writer.add_layer_norm_rms_eps(model.config.rms_norm_eps)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([CONTROL] * 3 + [NORMAL] * (len(TOKENS) - 3))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE)
    for name, tensor in gguf_tensors(model).items():
        if name != without:
            writer.add_tensor(name, np.ascontiguousarray(tensor.detach().numpy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_tensors(model: LlamaForCausalLM) -> dict[str, torch.Tensor]:
    """The weights by their names in the format."""
    tensors = {
        "token_embd.weight": model.model.embed_tokens.weight,
        "output_norm.weight": model.model.norm.weight,
    }
    for i, layer in enumerate(model.model.layers):
        attention, mlp = layer.self_attn, layer.mlp
        tensors |= {
            f"blk.{i}.attn_norm.weight": layer.input_layernorm.weight,
            f"blk.{i}.attn_q.weight": interleaved(attention.q_proj.weight, 2),
            f"blk.{i}.attn_k.weight": interleaved(attention.k_proj.weight, 1),
            f"blk.{i}.attn_v.weight": attention.v_proj.weight,
            f"blk.{i}.attn_output.weight": attention.o_proj.weight,
            f"blk.{i}.ffn_norm.weight": layer.post_attention_layernorm.weight,
            f"blk.{i}.ffn_gate.weight": mlp.gate_proj.weight,
            f"blk.{i}.ffn_up.weight": mlp.up_proj.weight,
            f"blk.{i}.ffn_down.weight": mlp.down_proj.weight,
        }
    return tensors
