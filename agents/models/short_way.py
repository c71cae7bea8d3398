"""The short way through a model while responses are drawn.

A step of a small model is little arithmetic, and half of its time goes into the library's way
through its modules. These functions do the same operations on the same weights in the same order.
A model that is not exactly what they expect (adapters, quantised weights, hooks, another
attention) takes the library's way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import GPT2Model, LlamaModel
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.pytorch_utils import Conv1D


class ShortWay(ABC):
    """Feeds tokens to a transformer, one batch of prompts from its beginning to its end."""

    def __init__(self, model: Any, tokens: int) -> None:
        """Take a transformer that `fits`.

        Args:
            model: the transformer without its output layer.
            tokens: that will be fed to a row in all; memory for their keys is made once.
        """
        self.model = model
        self.tokens = tokens
        self.length = 0
        self.kept: list[tuple[Tensor, Tensor]] = []
        """Keys and values of each layer, [B, heads, tokens, width of a head]."""

    @classmethod
    @abstractmethod
    def fits(cls, model: Any) -> bool:
        """Whether a transformer is exactly what this class computes."""

    @abstractmethod
    def _forward(self, ids: Tensor, places: Tensor, seen: Tensor | None) -> Tensor:
        """Hidden states, [B, S, H]; keys and values go through `_update`."""

    def feed(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        """Feed the next tokens of every row.

        Args:
            ids: [B, S]; S is 1 unless they are the first.
            mask: True = real token, over everything fed so far, [B, past + S]; None: all are real.
                Prompts with padding are fed elsewhere and taken over.

        Returns:
            Hidden states of the last layer, [B, S, H].
        """
        steps = ids.shape[1]
        if steps > 1 and (self.length or mask is not None):
            raise RuntimeError(f"several tokens are fed at the beginning only, got {steps}")
        if mask is None:
            places = torch.arange(self.length, self.length + steps, device=ids.device).unsqueeze(0)
        else:
            places = mask.sum(-1, keepdim=True) - 1  # counts real tokens: padding moves nothing
        hidden = self._forward(ids, places, None if mask is None else mask[:, None, None, :])
        self.length += steps
        return hidden

    def take_over(self, cache: Any) -> None:
        """Go on from a cache that the library has filled with the prompts."""
        for layer in cache.layers:
            self._keep(layer.keys, layer.values)
        self.length = int(cache.get_seq_length())

    def _keep(self, keys: Tensor, values: Tensor) -> None:
        batch, heads, steps, width = keys.shape
        pair = (
            keys.new_empty(batch, heads, self.tokens, width),
            values.new_empty(batch, heads, self.tokens, width),
        )
        pair[0][:, :, :steps], pair[1][:, :, :steps] = keys, values
        self.kept.append(pair)

    def _update(self, index: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write a layer's next keys and values; returns all so far."""
        if index == len(self.kept):
            self._keep(keys, values)
            return keys, values
        start, end = self.length, self.length + keys.shape[2]
        all_keys, all_values = self.kept[index]
        all_keys[:, :, start:end], all_values[:, :, start:end] = keys, values
        return all_keys[:, :, :end], all_values[:, :, :end]


class GPT2ShortWay(ShortWay):
    """GPT-2 as `transformers` has it; its dropout rates are 0."""

    @classmethod
    def fits(cls, model: Any) -> bool:
        """See `ShortWay.fits`."""
        blocks = list(model.h)
        norms = [model.ln_f, *(norm for b in blocks for norm in (b.ln_1, b.ln_2))]
        matrices = [
            m for b in blocks for m in (b.attn.c_attn, b.attn.c_proj, b.mlp.c_fc, b.mlp.c_proj)
        ]
        return (
            model.config._attn_implementation == "sdpa"
            and not model.config.add_cross_attention
            and all(type(matrix) is Conv1D for matrix in matrices)
            and all(type(norm) is nn.LayerNorm for norm in norms)
            and all(type(table) is nn.Embedding for table in (model.wte, model.wpe))
        )

    def _forward(self, ids: Tensor, places: Tensor, seen: Tensor | None) -> Tensor:
        model = self.model
        shape = (*ids.shape, 3, model.config.num_attention_heads, -1)
        causal = ids.shape[1] > 1
        x = functional.embedding(ids, model.wte.weight)
        x = x + functional.embedding(places, model.wpe.weight)
        for index, block in enumerate(model.h):
            attention, mlp = block.attn, block.mlp
            projected = _affine(_norm(x, block.ln_1), attention.c_attn)
            query, key, value = projected.view(shape).permute(2, 0, 3, 1, 4)
            key, value = self._update(index, key, value)
            read = functional.scaled_dot_product_attention(
                query, key, value, attn_mask=seen, is_causal=causal, scale=attention.scaling
            )
            x = _affine(read.transpose(1, 2).reshape(x.shape), attention.c_proj) + x
            x = x + _affine(mlp.act(_affine(_norm(x, block.ln_2), mlp.c_fc)), mlp.c_proj)
        return _norm(x, model.ln_f)


def _norm(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    return functional.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)


def _affine(x: Tensor, matrix: Conv1D) -> Tensor:
    flat = torch.addmm(matrix.bias, x.view(-1, x.shape[-1]), matrix.weight)
    return flat.view(*x.shape[:-1], -1)


class LlamaShortWay(ShortWay):
    """Llama as `transformers` has it, with any of its position embeddings and shared keys."""

    @classmethod
    def fits(cls, model: Any) -> bool:
        """See `ShortWay.fits`."""
        layers = list(model.layers)
        attentions = [layer.self_attn for layer in layers]
        norms = [n for x in layers for n in (x.input_layernorm, x.post_attention_layernorm)]
        matrices = [m for a in attentions for m in (a.q_proj, a.k_proj, a.v_proj, a.o_proj)]
        matrices += [m for x in layers for m in (x.mlp.gate_proj, x.mlp.up_proj, x.mlp.down_proj)]
        return (
            model.config._attn_implementation == "sdpa"
            and all(type(norm) is LlamaRMSNorm for norm in (model.norm, *norms))
            and all(type(matrix) is nn.Linear for matrix in matrices)
            and type(model.embed_tokens) is nn.Embedding
        )

    def _forward(self, ids: Tensor, places: Tensor, seen: Tensor | None) -> Tensor:
        model = self.model
        x = functional.embedding(ids, model.embed_tokens.weight)
        cosine, sine = (t.unsqueeze(1) for t in model.rotary_emb(x, places))
        shape = (*ids.shape, -1, model.layers[0].self_attn.head_dim)
        causal = ids.shape[1] > 1
        for index, layer in enumerate(model.layers):
            attention, mlp = layer.self_attn, layer.mlp
            h = _rms_norm(x, layer.input_layernorm)
            query = _rotated(_linear(h, attention.q_proj).view(shape).transpose(1, 2), cosine, sine)
            key = _rotated(_linear(h, attention.k_proj).view(shape).transpose(1, 2), cosine, sine)
            value = _linear(h, attention.v_proj).view(shape).transpose(1, 2)
            key, value = self._update(index, key, value)
            read = functional.scaled_dot_product_attention(
                query,
                key,
                value,
                attn_mask=seen,
                is_causal=causal,
                scale=attention.scaling,
                enable_gqa=attention.num_key_value_groups > 1,
            )
            x = x + _linear(read.transpose(1, 2).reshape(*ids.shape, -1), attention.o_proj)
            h = _rms_norm(x, layer.post_attention_layernorm)
            gate = mlp.act_fn(_linear(h, mlp.gate_proj))
            x = x + _linear(gate * _linear(h, mlp.up_proj), mlp.down_proj)
        return _rms_norm(x, model.norm)


def _linear(x: Tensor, matrix: nn.Linear) -> Tensor:
    return functional.linear(x, matrix.weight, matrix.bias)


def _rms_norm(x: Tensor, norm: LlamaRMSNorm) -> Tensor:
    if x.dtype != torch.float32:  # the library's own rounds to single precision in between
        whole: Tensor = norm(x)
        return whole
    return functional.rms_norm(x, x.shape[-1:], norm.weight, norm.variance_epsilon)


def _rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Position embedding of queries or keys, [B, heads, S, D]."""
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-second, first), dim=-1) * sine


SHORT_WAYS: dict[type[nn.Module], type[ShortWay]] = {
    GPT2Model: GPT2ShortWay,
    LlamaModel: LlamaShortWay,
}
"""Class of a transformer -> the short way through it. A new one is one class and one line."""


def short_way(model: nn.Module, tokens: int) -> ShortWay | None:
    """The short way through a transformer; None where the library's own has to be taken.

    Args:
        model: the transformer without its output layer.
        tokens: that will be fed to a row in all.
    """
    way = SHORT_WAYS.get(type(model))
    if way is None or any(_altered(module) for module in model.modules()) or not way.fits(model):
        return None
    return way(model, tokens)


def _altered(module: nn.Module) -> bool:
    """Whether calling a module does something beside its class's own `forward`."""
    return bool(module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))
