"""The methods: settings of the game. Who sees whose text, who is paid for what, who goes first.

A new method is one entry in `METHODS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Method:
    """One row of the table of methods; any learner trains in any of them."""

    summary: str
    single_agent: bool = False
    knowledge_transfer: bool = True
    """The observer reads the responses before its own."""
    mixing: Literal["sum", "own", "competitive", "exact"] = "sum"
    """Who is paid what; "exact": each seat what it can influence, weighted by the cooperation."""
    role_exchange: bool = True
    transfer: Literal["own", "permuted"] = "own"
    """Whose response the observer reads: that of its own episode or of a permuted one."""
    scores: Literal["own", "permuted"] = "own"
    """Whose scores the mixing pays for the other seats."""

    def reward_mixing(self, n_agents: int, cooperation: float) -> str | NDArray[np.float64]:
        """The mixing as the game takes it: a name, or W over seats, [n, n]."""
        if self.mixing != "exact":
            return self.mixing
        return np.eye(n_agents) + cooperation * np.triu(np.ones((n_agents, n_agents)), k=1)


METHODS: dict[str, Method] = {
    "solo": Method(
        "one agent, paid its own score", single_agent=True, mixing="own", role_exchange=False
    ),
    "cory": Method("the observer reads the pioneer; both are paid the sum; roles are exchanged"),
    "cory_no_transfer": Method(
        "cory, but the observer sees the query only", knowledge_transfer=False
    ),
    "cory_no_exchange": Method("cory, but roles stay fixed", role_exchange=False),
    "cory_own_reward": Method("cory, but each is paid its own score", mixing="own"),
    "independent": Method(
        "two agents that know nothing of each other",
        knowledge_transfer=False,
        mixing="own",
        role_exchange=False,
    ),
    "competitive": Method(
        "cory, but each is paid its own score minus the mean of the others'", mixing="competitive"
    ),
    "cory_exact": Method("cory, but each is paid only what it can influence", mixing="exact"),
    "placebo_sum": Method(
        "cory, but the other's score comes from a permuted episode: the noise without influence",
        scores="permuted",
    ),
    "placebo_transfer": Method(
        "cory, but the observer reads an answer to another query", transfer="permuted"
    ),
}
"""Name after `--method` -> its settings (design: a method is a game times a learner)."""
