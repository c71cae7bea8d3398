"""From logits to the log-probabilities of the tokens that were drawn.

The one function of this kind: sampling and scoring both call it, so that the ratio is 1 before
an update whatever the temperature.
"""

from __future__ import annotations

import torch
from torch import Tensor


def log_softmax(logits: Tensor, temperature: float) -> Tensor:
    """Log-probabilities of the whole vocabulary at a temperature; [..., V] -> [..., V].

    Half precision is raised to float32 first; float32 and float64 stay as they are.
    """
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    if temperature != 1.0:
        logits = logits / temperature
    return torch.log_softmax(logits, dim=-1)


def gather_logprobs(log_probs: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    """Log-probability of each drawn token; 0 where the mask is False.

    Args:
        log_probs: of the vocabulary, position t predicting token t, [B, T, V].
        ids: the drawn tokens, [B, T]; anything (such as -1) outside the mask.
        mask: True = counts, [B, T].

    Returns:
        [B, T], nats.
    """
    safe = ids.masked_fill(~mask, 0).unsqueeze(-1)
    return log_probs.gather(-1, safe).squeeze(-1).masked_fill(~mask, 0.0)


def draw(log_probs: Tensor, uniforms: Tensor) -> Tensor:
    """Draw one token per row by inverting the cumulative distribution.

    One number from the caller's own stream decides one token, so a row's tokens do not depend on
    the batch it sits in. The sum runs in float64: in float32 the tail of a vocabulary of 50,000
    would be rounded away.

    Args:
        log_probs: [B, V].
        uniforms: numbers in [0, 1), one a row, [B], float64.

    Returns:
        Token ids, [B], int64.
    """
    cumulative = log_probs.exp().cumsum(-1, dtype=torch.float64)
    threshold = uniforms.double().unsqueeze(-1) * cumulative[..., -1:]
    drawn = torch.searchsorted(cumulative, threshold, right=True).squeeze(-1)
    return drawn.clamp_(max=log_probs.shape[-1] - 1)
