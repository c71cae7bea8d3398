"""What a distribution over the vocabulary says about the token that was drawn, in one pass.

Log-probability, entropy and divergence from the reference come out of the same logits. Written
with its own gradient: plain autograd would keep five tensors of the vocabulary's size and walk
each of them twice, this keeps two and walks them once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from agents.maths.logprobs import log_softmax


class TokenStatistics(NamedTuple):
    """Of N tokens; all [N], nats."""

    logprobs: Tensor
    """Of the drawn tokens."""
    entropy: Tensor
    """Of the distributions; 0 where it was not asked for."""
    kl: Tensor
    """KL(policy || reference) over the whole vocabulary; 0 without a reference."""
    ref_logprobs: Tensor
    """Of the drawn tokens under the reference, no gradient; 0 without a reference."""


def token_statistics(
    logits: Tensor,
    ids: Tensor,
    temperature: float,
    *,
    ref_log_probs: Tensor | None = None,
    with_entropy: bool = True,
) -> TokenStatistics:
    """Log-probability, entropy and divergence at each of N positions, with gradient to the logits.

    Args:
        logits: of the vocabulary, [N, V].
        ids: the drawn tokens, [N].
        temperature: of the sampling distribution.
        ref_log_probs: of the reference on the same prompts, [N, V], no gradient; None: no KL.
        with_entropy: False saves a pass where nobody looks at it.

    Source: gradients with respect to a logit z_j, for p = softmax(z): of log p_i it is
    [i = j] - p_j, of the entropy H it is -p_j (log p_j + H), of the divergence K it is
    p_j (log p_j - log q_j - K); derived by hand and checked against autograd in the tests.
    """
    compute: Any = _Statistics.apply
    logprobs, entropy, kl = compute(logits, ids, temperature, ref_log_probs, with_entropy)
    ref_logprobs = torch.zeros_like(kl)
    if ref_log_probs is not None:
        ref_logprobs = ref_log_probs.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    return TokenStatistics(logprobs, entropy, kl, ref_logprobs)


@torch.no_grad()
def statistics_of(log_probs: Tensor, ids: Tensor, ref_log_probs: Tensor) -> TokenStatistics:
    """The same of distributions that are at hand, without gradient.

    Args:
        log_probs: of the vocabulary, [N, V].
        ids: the drawn tokens, [N].
        ref_log_probs: of the reference on the same prompts, [N, V].
    """
    probs, chosen = log_probs.exp(), ids.unsqueeze(-1)
    return TokenStatistics(
        logprobs=log_probs.gather(-1, chosen).squeeze(-1),
        entropy=-_dot(probs, log_probs),
        kl=_dot(probs, log_probs - ref_log_probs).clamp_(min=0.0),
        ref_logprobs=ref_log_probs.gather(-1, chosen).squeeze(-1),
    )


class _Statistics(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        ids: Tensor,
        temperature: float,
        ref_log_probs: Tensor | None,
        with_entropy: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        log_probs = log_softmax(logits, temperature)
        probs = log_probs.exp()
        logprobs = log_probs.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
        entropy = -_dot(probs, log_probs) if with_entropy else torch.zeros_like(logprobs)
        kl, ratio = torch.zeros_like(logprobs), None
        if ref_log_probs is not None:
            ratio = log_probs.sub_(ref_log_probs)  # the last use of log_probs: its memory is ours
            kl = _dot(probs, ratio).clamp_(min=0.0)  # rounding must not make a divergence negative
        ctx.save_for_backward(probs, ids, entropy, kl, ratio)
        ctx.temperature, ctx.dtype = temperature, logits.dtype
        ctx.set_materialize_grads(False)
        return logprobs, entropy, kl

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, d_logprobs: Tensor | None, d_entropy: Tensor | None, d_kl: Tensor | None
    ) -> tuple[Tensor | None, None, None, None, None]:
        probs, ids, entropy, kl, ratio = ctx.saved_tensors
        constant = torch.zeros_like(kl)  # what multiplies p_j whatever j is, [N]
        if d_logprobs is not None:
            constant = constant - d_logprobs
        if d_kl is not None and ratio is not None:
            constant = constant - d_kl * kl
        if d_entropy is not None:
            constant = constant - d_entropy * entropy
        weights = constant.unsqueeze(-1).expand_as(probs)
        if d_kl is not None and ratio is not None:
            weights = torch.addcmul(weights, ratio, d_kl.unsqueeze(-1))
        if d_entropy is not None:
            logs = probs.clamp(min=torch.finfo(probs.dtype).tiny).log()
            weights = torch.addcmul(weights, logs, d_entropy.unsqueeze(-1), value=-1.0)
        gradient = probs * weights
        if d_logprobs is not None:
            gradient.scatter_add_(-1, ids.unsqueeze(-1), d_logprobs.unsqueeze(-1))
        if ctx.temperature != 1.0:
            gradient.div_(ctx.temperature)
        return gradient.to(ctx.dtype), None, None, None, None


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Sum over the vocabulary of a * b without a tensor of the products; [N, V] -> [N]."""
    product: Tensor = torch.linalg.vecdot(a, b)
    return product
