"""How much the first speaker's words matter for what the second one scores."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True)
class Influence:
    """What the first response does to the second.

    Attributes:
        influence: share of the second score's variance that the first response explains.
        correlation: of r1 with the mean r2, within queries.
        mean_r1: mean score of the first responses.
        mean_r2: mean score of the second responses.
        copies: share of second responses with the same text as the first.
        copies_by_chance: the same, with the first response of another draw of the query.
        gap: mean r2 where r1 is 1 minus that where r1 is 0, over all queries; None unless the
            scores are 0 and 1 and both occur.
        gap_within: the same inside each query that has both, averaged over those.
    """

    influence: float
    correlation: float
    mean_r1: float
    mean_r2: float
    copies: float
    copies_by_chance: float
    gap: float | None
    gap_within: float | None


def influence_statistics(
    r1: NDArray[np.float64],
    r2: NDArray[np.float64],
    texts1: NDArray[np.object_],
    texts2: NDArray[np.object_],
) -> Influence:
    """Summarise nested samples.

    Args:
        r1: scores of the first responses, [Q, A1].
        r2: scores of the second responses, [Q, A1, A2].
        texts1: the first responses, [Q, A1].
        texts2: the second responses, [Q, A1, A2].

    Raises:
        ValueError: as `influence_from_scores`.
    """
    other = np.roll(texts1, 1, axis=1)  # another draw of the same query
    gap, gap_within = _gaps(r1, r2)
    return Influence(
        influence=influence_from_scores(r2),
        correlation=_within_correlation(r1, r2.mean(axis=2)),
        mean_r1=float(r1.mean()),
        mean_r2=float(r2.mean()),
        copies=float((texts2 == texts1[:, :, None]).mean()),
        copies_by_chance=float((texts2 == other[:, :, None]).mean()),
        gap=gap,
        gap_within=gap_within,
    )


def _within_correlation(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    x = x - x.mean(axis=1, keepdims=True)
    y = y - y.mean(axis=1, keepdims=True)
    scale = float(np.sqrt(np.square(x).sum() * np.square(y).sum()))
    return float((x * y).sum()) / scale if scale > 0 else 0.0


def _gaps(r1: NDArray[np.float64], r2: NDArray[np.float64]) -> tuple[float | None, float | None]:
    right = r1 == 1.0
    if not np.isin(r1, (0.0, 1.0)).all() or right.all() or not right.any():
        return None, None
    means = r2.mean(axis=2)
    within = [
        means[q][right[q]].mean() - means[q][~right[q]].mean()
        for q in range(len(r1))
        if right[q].any() and not right[q].all()
    ]
    pooled = float(means[right].mean() - means[~right].mean())
    return pooled, float(np.mean(within)) if within else None
