"""Kullback-Leibler divergence to the reference policy, and controllers of its weight."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


def full_kl(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """KL(policy || reference) over the whole vocabulary, at each position.

    Args:
        log_probs: of the policy, [..., V].
        ref_log_probs: of the reference on the same prompt, [..., V].

    Returns:
        [...], nats, never negative: rounding is clipped, without touching the gradient.

    Source: CORY paper, equation 2.
    """
    kl = (log_probs.exp() * (log_probs - ref_log_probs)).sum(-1)
    return kl + (kl.detach().clamp(min=0.0) - kl.detach())


def k1(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Log-ratio of the drawn token, an unbiased estimate of the KL that may be negative; [B, T]."""
    return logprobs - ref_logprobs


def k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Schulman's low-variance estimate exp(-d) - 1 + d with d the log-ratio; [B, T], >= 0."""
    difference = ref_logprobs - logprobs
    return torch.expm1(difference) - difference


ESTIMATORS_WITH_REF_HIDDEN = frozenset({"exact"})
"""Those of `kl_estimator` whose loss needs the reference's whole distribution again."""


@dataclass
class KLController:
    """The weight of the KL term: fixed, or moved towards a target.

    Each step multiplies it by 1 + clip(KL / target - 1, -0.2, 0.2) * min(responses / horizon, 1).

    Source: Ziegler et al. 2019, section 2.2; the paper's code uses target 6 and horizon 10,000.
    """

    coef: float
    target: float | None = None
    """Nats per response; None keeps the coefficient fixed."""
    horizon: int = 10_000
    """Responses over which the coefficient moves by at most 20 percent."""

    def update(self, kl: float, n_responses: int) -> None:
        """Move the coefficient after an iteration.

        Args:
            kl: mean over responses of the summed KL, nats.
            n_responses: responses the mean was taken over.
        """
        if self.target is None:
            return
        error = min(max(kl / self.target - 1.0, -0.2), 0.2)
        # A batch above five horizons would otherwise make the weight negative.
        self.coef *= 1.0 + error * min(n_responses / self.horizon, 1.0)
