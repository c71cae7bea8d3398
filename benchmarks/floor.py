"""The floor: the arithmetic of an iteration in plain torch, with nothing around it.

A GPT-2 written out by hand over the weights of a `transformers` model: cached sampling, one forward
pass of the reference, and the update's forward, backward and optimizer steps. No environment, no
text, no records, no second scoring of what was drawn. `benchmarks.speed` times the product beside
it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from agents.maths.kl import full_kl
from agents.maths.losses import clipped_policy_loss, value_loss
from agents.maths.masking import whiten
from agents.maths.returns import gae, token_rewards
from agents.maths.token_statistics import token_statistics


class PlainGPT2:
    """The weights of a GPT-2 and of its value head, and the few functions that use them."""

    def __init__(self, model: Any, *, autocast: torch.dtype | None = None) -> None:
        """Copy the weights of a `GPT2LMHeadModel`."""
        state = {name: p.detach().clone() for name, p in model.named_parameters()}
        self.layers, self.heads = model.config.n_layer, model.config.n_head
        self.width = model.config.n_embd
        self.autocast = autocast
        self.value = torch.zeros(self.width, 1)
        self.weights = state
        self.all = [*state.values(), self.value]

    def trained(self) -> torch.optim.Adam:
        """Turn gradients on; returns the optimizer."""
        for weight in self.all:
            weight.requires_grad_()
        return torch.optim.Adam(self.all, lr=1e-5, fused=True)

    def precision(self) -> Any:
        """Where matrices are multiplied in lower precision."""
        return torch.autocast("cpu", dtype=self.autocast, enabled=self.autocast is not None)

    def hidden(
        self, ids: Tensor, cache: list[tuple[Tensor, Tensor]] | None = None, past: int = 0
    ) -> Tensor:
        """Hidden states, [B, S] -> [B, S, H]; with a cache, keys and values are written into it."""
        w, batch, steps = self.weights, *ids.shape
        places = torch.arange(past, past + steps)
        x = (
            functional.embedding(ids, w["transformer.wte.weight"])
            + w["transformer.wpe.weight"][places]
        )
        for i in range(self.layers):
            name = f"transformer.h.{i}."
            h = functional.layer_norm(
                x, (self.width,), w[name + "ln_1.weight"], w[name + "ln_1.bias"]
            )
            qkv = _affine(h, w, name + "attn.c_attn").view(batch, steps, 3, self.heads, -1)
            q, k, v = qkv.permute(2, 0, 3, 1, 4)
            if cache is not None:
                keys, values = cache[i]
                keys[:, :, past : past + steps] = k
                values[:, :, past : past + steps] = v
                k, v = keys[:, :, : past + steps], values[:, :, : past + steps]
            seen = functional.scaled_dot_product_attention(q, k, v, is_causal=steps > 1)
            seen = seen.transpose(1, 2).reshape(batch, steps, self.width)
            x = x + _affine(seen, w, name + "attn.c_proj")
            h = functional.layer_norm(
                x, (self.width,), w[name + "ln_2.weight"], w[name + "ln_2.bias"]
            )
            h = functional.gelu(_affine(h, w, name + "mlp.c_fc"), approximate="tanh")
            x = x + _affine(h, w, name + "mlp.c_proj")
        return functional.layer_norm(
            x, (self.width,), w["transformer.ln_f.weight"], w["transformer.ln_f.bias"]
        )

    def logits(self, hidden: Tensor) -> Tensor:
        """Over the vocabulary."""
        return functional.linear(hidden, self.weights["transformer.wte.weight"])


def _affine(x: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    flat = torch.addmm(
        weights[name + ".bias"], x.reshape(-1, x.shape[-1]), weights[name + ".weight"]
    )
    return flat.view(*x.shape[:-1], -1)


@dataclass(frozen=True)
class Work:
    """What one agent does in an iteration."""

    prompts: Tensor
    """[B, Q], all of one length."""
    new_tokens: int
    epochs: int
    estimator: str
    """"exact": the KL in the loss too; "reference": in the reward only."""
    fused: bool
    """Whether log-probability and KL share one pass, or take plain autograd's way."""


@torch.no_grad()
def generate(model: PlainGPT2, work: Work) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw responses; returns ids [B, T], log-probs [B, T], values [B, T] and [B, T, V]."""
    batch, width = work.prompts.shape
    shape = (batch, model.heads, width + work.new_tokens, model.width // model.heads)
    kept = torch.bfloat16 if model.autocast else torch.float32
    cache = [
        (torch.empty(shape, dtype=kept), torch.empty(shape, dtype=kept))
        for _ in range(model.layers)
    ]
    fed, past = work.prompts, 0
    ids, logps, values, wholes = [], [], [], []
    with model.precision():
        for _ in range(work.new_tokens):
            hidden = model.hidden(fed, cache, past)[:, -1]
            log_probs = torch.log_softmax(model.logits(hidden).float(), -1)
            summed = log_probs.exp().cumsum(-1)
            token = torch.searchsorted(summed, torch.rand(len(fed), 1) * summed[:, -1:])
            past, fed = past + fed.shape[1], token
            ids.append(token)
            logps.append(log_probs.gather(-1, token))
            values.append(hidden.float() @ model.value)
            wholes.append(log_probs)
    return torch.cat(ids, 1), torch.cat(logps, 1), torch.cat(values, 1), torch.stack(wholes, 1)


def _response_hidden(model: PlainGPT2, prompts: Tensor, ids: Tensor) -> Tensor:
    return model.hidden(torch.cat([prompts, ids[:, :-1]], 1))[:, prompts.shape[1] - 1 :]


def iteration(
    model: PlainGPT2, optimizer: torch.optim.Adam, reference: PlainGPT2, work: Work
) -> dict[str, float]:
    """One agent's part of an iteration; returns the seconds of each stage."""
    marks = [time.perf_counter()]
    ids, logps, values, wholes = generate(model, work)
    marks.append(time.perf_counter())
    with torch.no_grad(), reference.precision():
        ref_hidden = _response_hidden(reference, work.prompts, ids)
        ref_log_probs = torch.log_softmax(reference.logits(ref_hidden).float(), -1)
        kl = full_kl(wholes, ref_log_probs)
        if not work.fused:
            del ref_hidden
    marks.append(time.perf_counter())
    mask = torch.ones_like(ids, dtype=torch.bool)
    payoffs = torch.rand(len(ids), dtype=torch.float64)
    rewards = token_rewards(payoffs, 0.03 * kl, mask)
    advantages, returns = gae(rewards, values, mask, gamma=1.0, gae_lambda=0.95)
    advantages, sigma = whiten(advantages, mask)
    for _ in range(work.epochs):
        with model.precision():
            hidden = _response_hidden(model, work.prompts, ids)
            logits = model.logits(hidden)
        if work.fused:
            found = token_statistics(
                logits.flatten(0, 1),
                ids.flatten(),
                1.0,
                ref_log_probs=ref_log_probs.flatten(0, 1) if work.estimator == "exact" else None,
                with_entropy=False,
            )
            new, divergence = found.logprobs.view_as(ids), found.kl.view_as(kl)
        else:
            log_probs = torch.log_softmax(logits.float(), -1)
            new = log_probs.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
            divergence = full_kl(log_probs, ref_log_probs) if work.estimator == "exact" else kl
        loss = clipped_policy_loss(new, logps, advantages, mask, clip_coef=0.2)
        now = (hidden.float() @ model.value).squeeze(-1)
        loss = loss + 0.05 * value_loss(now, values, returns, mask)
        if work.estimator == "exact":
            loss = loss + 0.03 / sigma * divergence.mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.all, 1.0)
        optimizer.step()
    marks.append(time.perf_counter())
    names = ("generate", "reference", "update")
    return {n: b - a for n, a, b in zip(names, marks, marks[1:], strict=False)}
