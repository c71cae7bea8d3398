"""Tests of cory_env/roles.py."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cory_env.roles import agent_names, check_turn_order, role_names, rotate


@pytest.mark.parametrize(
    ("n", "roles"),
    [
        (1, ("pioneer",)),
        (2, ("pioneer", "observer")),
        (3, ("pioneer", "observer_1", "observer_2")),
        (4, ("pioneer", "observer_1", "observer_2", "observer_3")),
    ],
)
def test_role_names_by_seat(n: int, roles: tuple[str, ...]) -> None:
    assert role_names(n) == roles


def test_agents_are_numbered_from_zero() -> None:
    assert agent_names(3) == ("agent_0", "agent_1", "agent_2")


@pytest.mark.parametrize("n", [0, -1, 2.0, "2", True, None])
def test_n_agents_must_be_a_whole_number_of_at_least_one(n: Any) -> None:
    with pytest.raises(ValueError, match="n_agents must be a whole number"):
        agent_names(n)


def test_rotation_by_one_makes_the_second_agent_the_pioneer() -> None:
    assert rotate(("a", "b", "c"), 1) == ("b", "c", "a")


@given(n=st.integers(1, 6), j=st.integers(0, 50), k=st.integers(0, 50))
def test_rotations_add_up_and_n_of_them_change_nothing(n: int, j: int, k: int) -> None:
    order = agent_names(n)
    assert rotate(rotate(order, j), k) == rotate(order, j + k)
    assert rotate(order, n) == order


def test_a_permutation_is_a_turn_order() -> None:
    assert check_turn_order(["agent_1", "agent_0"], agent_names(2)) == ("agent_1", "agent_0")


@pytest.mark.parametrize(
    "order", [[], ["agent_0"], ["agent_0"] * 2, ["agent_0", "x"], "agent_0", [0, 1]]
)
def test_anything_else_is_refused_with_the_agents_named(order: Any) -> None:
    with pytest.raises(ValueError, match=r"permutation of \['agent_0', 'agent_1'\]"):
        check_turn_order(order, agent_names(2))
