"""Who goes first when: role exchange as a pure function of the iteration."""

from __future__ import annotations

from collections.abc import Sequence


def turn_order(iteration: int, agents: Sequence[str], interval: int | None) -> tuple[str, ...]:
    """The agents in the order in which they act in an iteration.

    After every `interval` iterations the order is rotated by one, so iterations 1..interval are
    played in the given order and the next `interval` start with the second agent.

    Args:
        iteration: from 1.
        agents: in their first order.
        interval: iterations between two role exchanges; None never exchanges.

    Raises:
        ValueError: if iteration or interval is below 1.

    Source: CORY paper, equation 5 and algorithm 1 (T_REx).
    """
    if iteration < 1:
        raise ValueError(f"iteration must be at least 1, got {iteration}")
    if interval is None:
        return tuple(agents)
    if interval < 1:
        raise ValueError(f"interval must be at least 1 or None, got {interval}")
    shift = ((iteration - 1) // interval) % len(agents)
    return (*agents[shift:], *agents[:shift])
