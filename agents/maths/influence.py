"""How much the first speaker's words matter for what the second one scores."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def influence_from_scores(r2: NDArray[np.float64]) -> float:
    """Estimate the share of the second score's variance that the first response explains.

    The quantity is I = Var_a1(E[r2 | s0, a1]) / Var(r2 | s0) with both variances averaged over
    the queries s0. 0: the second response scores the same whatever the first was, so the method
    of sharing rewards has nothing to share. 1: the first response decides it.

    Within one query this is the one-way random-effects analysis of variance: groups are the
    first responses, members the second responses to the same first one. The mean square within
    groups W estimates the variance that the first response leaves; that between groups B
    estimates W + A2 * (variance of the group means), so (B - W) / A2 is free of the noise that
    a mean of only A2 draws has. Averages over queries are taken before the ratio: a query
    without any variance then weighs nothing instead of being 0 / 0.

    Args:
        r2: scores of the second response, [Q, A1, A2]: Q queries, A1 independent first responses
            to each, A2 independent second responses to each of those.

    Returns:
        The estimate, at most 1. With little or no influence it may fall somewhat below 0, which
        keeps its average right. Exactly 0.0 if no score varies within its query.

    Raises:
        ValueError: if r2 is not [Q, A1, A2] with Q >= 1, A1 >= 2 and A2 >= 2, or not finite.

    Source: R. A. Fisher's intraclass correlation by analysis of variance; Searle, Casella and
        McCulloch, "Variance Components", 1992, section 3.5 (balanced one-way case).
    """
    r2 = np.asarray(r2, dtype=np.float64)
    if r2.ndim != 3 or r2.shape[0] < 1 or r2.shape[1] < 2 or r2.shape[2] < 2:
        raise ValueError(f"r2 must be [Q >= 1, A1 >= 2, A2 >= 2], got shape {r2.shape}")
    if not np.isfinite(r2).all():
        raise ValueError("r2 must be finite, got NaN or infinity")
    members = r2.shape[2]
    within = r2.var(axis=2, ddof=1).mean()
    between = members * r2.mean(axis=2).var(axis=1, ddof=1).mean()
    explained = (between - within) / members
    total = explained + within
    # The variance of equal floats can be a rounding residue instead of 0.
    if total <= 1e-18 * max(1.0, float(np.square(r2).max())):
        return 0.0
    return float(explained / total)
