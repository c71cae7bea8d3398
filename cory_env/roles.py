"""Agents, seats and roles.

An *agent* is a learner and keeps its name for ever; a *seat* is a position in one episode's turn
order; a *role* is the name of a seat. Role exchange is a rotation of the turn order and nothing
else.
"""

from __future__ import annotations

from collections.abc import Sequence

PIONEER = "pioneer"
OBSERVER = "observer"


def check_n_agents(n_agents: int) -> int:
    """Return n_agents if it is a whole number of at least one.

    Raises:
        ValueError: otherwise.
    """
    if isinstance(n_agents, bool) or not isinstance(n_agents, int) or n_agents < 1:
        raise ValueError(f"n_agents must be a whole number of at least 1, got {n_agents!r}")
    return n_agents


def agent_names(n_agents: int) -> tuple[str, ...]:
    """Return the ids of the agents: agent_0, agent_1, ..."""
    return tuple(f"agent_{index}" for index in range(check_n_agents(n_agents)))


def role_names(n_agents: int) -> tuple[str, ...]:
    """Return the roles by seat: a pioneer, then one observer or observers numbered from 1."""
    observers = check_n_agents(n_agents) - 1
    if observers == 1:
        return (PIONEER, OBSERVER)
    return (PIONEER, *(f"{OBSERVER}_{index}" for index in range(1, observers + 1)))


def rotate(order: Sequence[str], k: int) -> tuple[str, ...]:
    """Return the order moved on by k seats: the k-th agent becomes the pioneer."""
    k %= len(order)
    return (*order[k:], *order[:k])


def check_turn_order(order: Sequence[str], agents: Sequence[str]) -> tuple[str, ...]:
    """Return the order as a tuple if it names each agent exactly once.

    Raises:
        ValueError: otherwise.
    """
    if isinstance(order, str) or sorted(map(str, order)) != sorted(agents):
        raise ValueError(f"turn_order must be a permutation of {list(agents)}, got {order!r}")
    return tuple(order)
