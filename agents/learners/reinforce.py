"""REINFORCE with a moving baseline for each role, each agent for itself.

    b             = moving mean of R in the agent's present role, before this batch
    advantage     = R_i - b
    policy loss   = - mean A_{i,t} log pi(token)

The first batch in a role has no past: its baseline is the mean of the other responses. Roles earn
differently, so one baseline for both would be wrong for each.

Source: Williams 1992, section 4, with reinforcement comparison; Liu et al. 2025, "SPIRAL", the
role-conditioned baseline, read before it is moved.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from agents.learners.sequence import READS, SequenceLearner
from agents.maths.baselines import compared, leave_one_out, moving
from agents.rollout import Rollout
from agents.traits import SMALL_STEPS, Traits


class Reinforce(SequenceLearner):
    """The plain policy gradient with a baseline from earlier batches."""

    traits: ClassVar[Traits] = Traits(
        reads=READS | {"baseline_decay"}, single_pass=True, rate=SMALL_STEPS
    )

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.baselines: dict[int, float] = {}
        """Moving mean of the return, by seat."""

    def advantages(self, returns: Tensor, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """Return minus baseline; the baseline then moves."""
        old = self.baselines.get(rollout.seat)
        new = moving(old, returns, self.config.baseline_decay)
        if new is not None:
            self.baselines[rollout.seat] = new
        one = torch.ones((), dtype=returns.dtype)
        if old is not None:
            return returns - old, one
        if len(returns) < 2:  # nothing to compare with: the first response of all
            return returns, one
        every = torch.zeros_like(rollout.episode)
        return compared(returns, leave_one_out(returns, every), every), one

    def state(self) -> dict[str, float]:
        """The baselines."""
        return {f"baseline of seat {seat}": value for seat, value in self.baselines.items()}

    def load_state(self, state: Mapping[str, float]) -> None:
        """Put the baselines back.

        Raises:
            ValueError: if they are something else.
        """
        found: dict[int, float] = {}
        for name, value in state.items():
            words, _, seat = name.rpartition(" ")
            known = words == "baseline of seat" and seat.isdecimal()
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (known and number and math.isfinite(value)):
                raise ValueError(f"{name!r} with {value!r} is no baseline of a seat")
            found[int(seat)] = float(value)
        self.baselines = found
