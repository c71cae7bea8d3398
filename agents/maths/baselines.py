"""Baselines and advantages of responses that are compared within groups.

A group is a number: rows of one number belong together, in any order. Values are [B], or [B, T] for
a column at a time.
"""

from __future__ import annotations

import torch
from torch import Tensor


def group_rows(group: Tensor) -> tuple[Tensor, Tensor]:
    """The place of each row's group, [B], and the sizes of the groups, [K]."""
    _, place, sizes = torch.unique(group, return_inverse=True, return_counts=True)
    return place, sizes


def check_groups(group: Tensor, least: int = 2) -> None:
    """Refuse groups in which nothing can be compared.

    Raises:
        ValueError: if one is smaller than `least`.
    """
    _, sizes = group_rows(group)
    if len(sizes) and int(sizes.min()) < least:
        raise ValueError(
            f"each group must hold at least {least} responses to be compared, got one of "
            f"{int(sizes.min())}"
        )


def group_mean(values: Tensor, group: Tensor) -> Tensor:
    """Mean of each row's group, the row itself included; same shape as values."""
    place, sizes = group_rows(group)
    sums = values.new_zeros((len(sizes), *values.shape[1:])).index_add_(0, place, values)
    return (sums / _wide(sizes, values))[place]


def leave_one_out(values: Tensor, group: Tensor) -> Tensor:
    """Mean of the *others* of each row's group; same shape as values.

    It does not depend on the row's own value, so as a baseline it leaves the gradient as it is.

    Raises:
        ValueError: for a group of one, in which there are no others.

    Source: Kool et al. 2019; Ahmadian et al. 2024, section 3.
    """
    check_groups(group)
    place, sizes = group_rows(group)
    count = _wide(sizes, values)[place]
    return (group_mean(values, group) * count - values) / (count - 1)


def leave_one_out_max(values: Tensor, group: Tensor) -> Tensor:
    """Largest of the *others* of each row's group, [B].

    Raises:
        ValueError: for a group of one, in which there are no others.
    """
    check_groups(group)
    same = group.unsqueeze(0) == group.unsqueeze(1)
    same.fill_diagonal_(fill_value=False)
    return values.unsqueeze(0).expand_as(same).masked_fill(~same, -torch.inf).max(-1).values


def is_constant(values: Tensor, group: Tensor) -> Tensor:
    """Whether all values of a row's group are equal, [B], by comparison: a mean would round."""
    place, sizes = group_rows(group)
    shape = (len(sizes),)
    high = values.new_full(shape, -torch.inf).scatter_reduce_(0, place, values, "amax")
    low = values.new_full(shape, torch.inf).scatter_reduce_(0, place, values, "amin")
    return (high == low)[place]


def compared(values: Tensor, baseline: Tensor, group: Tensor) -> Tensor:
    """Values minus their baseline, and exactly 0 where a whole group is equal; [B].

    The mean of equal numbers may be another number: that residue is no advantage.
    """
    return (values - baseline).masked_fill(is_constant(values, group), 0.0)


def group_deviation(values: Tensor, group: Tensor) -> Tensor:
    """Standard deviation (n - 1) of each row's group, and 1 for a group of equal values; [B].

    Raises:
        ValueError: for a group of one.
    """
    check_groups(group)
    place, sizes = group_rows(group)
    squares = (values - group_mean(values, group)) ** 2
    count = _wide(sizes, values)[place]
    deviation = torch.sqrt(group_mean(squares, group) * count / (count - 1))
    return deviation.masked_fill(is_constant(values, group), 1.0)


def kept_best(values: Tensor, group: Tensor, share: float) -> Tensor:
    """Which rows are among the best of their group, [B].

    Args:
        values: by which they are judged; of equal ones the earlier row is the better.
        group: of each row.
        share: of a group that is kept, rounded to whole rows, at least one.

    Source: Dong et al. 2023, algorithm 1.
    """
    keep = torch.zeros(len(values), dtype=torch.bool, device=values.device)
    for number in group.unique().tolist():
        rows = (group == number).nonzero().squeeze(-1)
        count = max(round(share * len(rows)), 1)
        best = values[rows].argsort(descending=True, stable=True)[:count]
        keep[rows[best]] = True
    return keep


def moving(old: float | None, values: Tensor, decay: float) -> float | None:
    """A moving mean after one more batch; without an old one it is the batch's own.

    Args:
        old: before the batch.
        values: of the batch, [B].
        decay: weight of the old mean.
    """
    if not len(values):
        return old
    mean = float(values.double().mean())
    return mean if old is None else decay * old + (1.0 - decay) * mean


def _wide(sizes: Tensor, values: Tensor) -> Tensor:
    """Sizes that divide rows of values; [K] -> [K, 1, ...]."""
    return sizes.to(values.dtype).view(-1, *[1] * (values.ndim - 1))
