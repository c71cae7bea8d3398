"""Means, sums and whitening over the tokens that count."""

from __future__ import annotations

import torch
from torch import Tensor


def check_same_shape(**tensors: Tensor) -> None:
    """Refuse tensors of different shapes, which broadcasting would accept in silence.

    Raises:
        ValueError: naming every tensor and its shape.
    """
    if len({tuple(t.shape) for t in tensors.values()}) > 1:
        shapes = ", ".join(f"{name} {tuple(t.shape)}" for name, t in tensors.items())
        raise ValueError(f"tensors must share one shape, got {shapes}")


def masked_sum(values: Tensor, mask: Tensor) -> Tensor:
    """Sum over the last axis of the positions where `mask` is True; [B, T] -> [B]."""
    return values.masked_fill(~mask, 0.0).sum(-1)


def masked_mean(values: Tensor, mask: Tensor, count: int | None = None) -> Tensor:
    """Mean over all positions where `mask` is True; any shape -> scalar.

    Args:
        values: any shape.
        mask: True = counts.
        count: what the sum is divided by: the tokens of a whole minibatch of which this is a part,
            so that the parts' means add up to the whole's. None: the positions that count here.

    Raises:
        ValueError: if no position counts; a mean of nothing is not zero.
    """
    check_same_shape(values=values, mask=mask)
    count = int(mask.sum()) if count is None else count
    if count == 0:
        raise ValueError("masked_mean got a mask in which no token counts")
    return values.masked_fill(~mask, 0.0).sum() / count


def whiten(values: Tensor, mask: Tensor, *, eps: float = 1e-8) -> tuple[Tensor, Tensor]:
    """Shift and scale to mean 0 and variance 1 (n - 1) over the tokens that count.

    A constant is only shifted: its float32 mean leaves a residue that a division by
    sqrt(eps) would blow up into an advantage.

    Args:
        values: [B, T].
        mask: True = counts, [B, T].
        eps: added to the variance, as in the paper's code.

    Returns:
        The whitened values, 0 outside the mask, [B, T], and the standard deviation sigma
        they were divided by (a scalar; 1 for a constant or a single token).
    """
    check_same_shape(values=values, mask=mask)
    counted = values[mask]
    one = torch.ones((), dtype=values.dtype, device=values.device)
    if counted.numel() == 0:
        return torch.zeros_like(values), one
    if counted.max() == counted.min():
        return torch.zeros_like(values), one
    sigma = torch.sqrt(counted.var(unbiased=True) + eps)
    return ((values - counted.mean()) / sigma).masked_fill(~mask, 0.0), sigma
