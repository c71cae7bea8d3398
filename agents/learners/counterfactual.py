"""REINFORCE with a counterfactual baseline: what later agents would have scored without a response.

    D_i           = R_i - sum over later seats of what they would have contributed, had they
                    answered without reading the response, with the same random numbers
    advantage     = D_i - moving baseline of the role, as in REINFORCE

The answer without the response does not depend on it, so D has the expected gradient of R. Where
nobody comes later, or is paid for, this is REINFORCE.

Source: Wolpert and Tumer 2002, "Optimal Payoff Functions for Members of Collectives", the
difference utility; Foerster et al. 2018, equation 4, replaces an agent's action by a mean over its
own policy instead.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from agents.learners.reinforce import Reinforce
from agents.learners.sequence import READS
from agents.rollout import Rollout
from agents.traits import SMALL_STEPS, Traits


class Counterfactual(Reinforce):
    """Pays a response for what it changed."""

    traits: ClassVar[Traits] = Traits(
        reads=READS | {"baseline_decay"},
        single_pass=True,
        rate=SMALL_STEPS,
        plain_transfer=True,
        counterfactual=True,
    )

    def returns(self, rollout: Rollout) -> Tensor:
        """What each response earned by being read, and by itself, [B], float64."""
        return rollout.earned - rollout.without
