"""How varied and how alike responses are."""

from __future__ import annotations

from collections.abc import Sequence


def distinct_n(responses: Sequence[Sequence[int]], n: int = 2) -> float | None:
    """Share of different n-grams among all n-grams, pooled over the responses.

    Args:
        responses: token ids of each response, end token included.
        n: length of the grams, at least 1.

    Returns:
        In (0, 1]; None where no response is long enough to hold one.

    Source: Li et al. 2016, section 5.
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    grams = [tuple(r[i : i + n]) for r in responses for i in range(len(r) - n + 1)]
    return len(set(grams)) / len(grams) if grams else None
