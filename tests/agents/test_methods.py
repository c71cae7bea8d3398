"""Tests of agents/methods.py: who sees what and who is paid what, in real runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from agents.methods import METHODS
from agents.train import TrainResult
from cory_env import Query, make_task
from tests.agents.runs import lines

TASK = make_task("target")
C = 0.5

# W over seats, for two and for three agents, written down by hand.
ALL = {2: [[1, 1], [1, 1]], 3: [[1, 1, 1], [1, 1, 1], [1, 1, 1]]}
OWN = {1: [[1]], 2: [[1, 0], [0, 1]], 3: [[1, 0, 0], [0, 1, 0], [0, 0, 1]]}
W: dict[str, dict[int, list[list[float]]]] = {
    "solo": {1: OWN[1]},
    "cory": ALL,
    "cory_no_transfer": ALL,
    "cory_no_exchange": ALL,
    "cory_own_reward": OWN,
    "independent": OWN,
    "competitive": {
        2: [[1, -1], [-1, 1]],
        3: [[1, -0.5, -0.5], [-0.5, 1, -0.5], [-0.5, -0.5, 1]],
    },
    "cory_exact": {2: [[1, C], [0, 1]], 3: [[1, C, C], [0, 1, C], [0, 0, 1]]},
    "placebo_transfer": ALL,
}
NO_TRANSFER = {"solo", "cory_no_transfer", "independent"}
NO_EXCHANGE = {"solo", "cory_no_exchange", "independent"}
CASES = [(m, n) for m in METHODS for n in ((1,) if m == "solo" else (2, 3))]


@pytest.fixture
def play(run_of: Callable[..., TrainResult]) -> Callable[[str, int], list[list[dict[str, Any]]]]:
    """Play a method; episodes by iteration, roles exchanged after each."""

    def episodes(method: str, n: int) -> list[list[dict[str, Any]]]:
        run = run_of(
            method=method,
            n_agents=n,
            batch_size=6 * n,
            minibatch_size=None,
            iterations=2,
            role_exchange_interval=1,
            update_epochs=1,
            eval_queries=2,
            eval_interval=9,
            cooperation=C,
            reward="tests.agents.rewards:distinct",
        )
        rows = lines(run.out / "samples.jsonl")
        return [[r for r in rows if r["iteration"] == i] for i in (1, 2)]

    return episodes


def by_seat(row: dict[str, Any], key: str) -> list[Any]:
    """A sample's values in the order of the turns."""
    roles = row["roles"]
    names = ["pioneer", "observer", "observer_1", "observer_2"]
    order = sorted(roles, key=lambda agent: names.index(roles[agent]))
    return [row[key][agent] for agent in order]


def test_every_method_is_tried() -> None:
    assert {m for m, _ in CASES} == set(METHODS) == {*W, "placebo_sum"}


@pytest.mark.case(46)
@pytest.mark.parametrize(("method", "n"), [c for c in CASES if c[0] != "placebo_sum"])
def test_payoffs_are_the_mixing_of_the_recorded_scores(
    method: str, n: int, play: Callable[[str, int], list[list[dict[str, Any]]]]
) -> None:
    matrix = np.array(W[method][n], dtype=np.float64)
    for rows in play(method, n):
        assert len(rows) == 6
        for row in rows:
            scores = np.array(by_seat(row, "scores"))
            assert by_seat(row, "rewards") == pytest.approx(list(matrix @ scores), abs=1e-12)


@pytest.mark.parametrize("n", [2, 3])
def test_placebo_sum_pays_own_score_and_the_others_of_another_episode(
    n: int, play: Callable[[str, int], list[list[dict[str, Any]]]]
) -> None:
    for rows in play("placebo_sum", n):
        scores = np.array([by_seat(row, "scores") for row in rows])
        rewards = np.array([by_seat(row, "rewards") for row in rows])
        from_episode = []
        for e in range(len(rows)):
            # The scores are all different, so what was added tells where it came from.
            fits = [
                other
                for other in range(len(rows))
                if all(
                    rewards[e, s]
                    == pytest.approx(scores[e, s] + scores[other].sum() - scores[other, s])
                    for s in range(n)
                )
            ]
            assert len(fits) == 1 and fits[0] != e
            from_episode += fits
        assert sorted(from_episode) == list(range(len(rows)))  # each episode pays one other


@pytest.mark.parametrize(("method", "n"), [c for c in CASES if c[0] != "placebo_transfer"])
def test_who_reads_what(
    method: str, n: int, play: Callable[[str, int], list[list[dict[str, Any]]]]
) -> None:
    for rows in play(method, n):
        for row in rows:
            prompts, responses = by_seat(row, "prompts"), by_seat(row, "responses")
            for seat, role in enumerate(by_seat(row, "roles")):
                earlier = [] if method in NO_TRANSFER else responses[:seat]
                assert prompts[seat] == TASK.prompt(role, Query(row["query"]), earlier)
                if earlier:
                    assert all(text in prompts[seat] for text in earlier)


@pytest.mark.parametrize("n", [2, 3])
def test_placebo_transfer_shows_the_answers_to_another_query(
    n: int, play: Callable[[str, int], list[list[dict[str, Any]]]]
) -> None:
    for rows in play("placebo_transfer", n):
        responses = [by_seat(row, "responses") for row in rows]
        for e, row in enumerate(rows):
            prompts, roles = by_seat(row, "prompts"), by_seat(row, "roles")
            assert prompts[0] == TASK.prompt("pioneer", Query(row["query"]), [])
            for seat in range(1, n):
                shown = [
                    other
                    for other in range(len(rows))
                    if prompts[seat]
                    == TASK.prompt(roles[seat], Query(row["query"]), responses[other][:seat])
                ]
                assert [o for o in shown if o != e], (e, seat)
        own = [
            by_seat(row, "prompts")[1]
            == TASK.prompt(by_seat(row, "roles")[1], Query(row["query"]), responses[e][:1])
            for e, row in enumerate(rows)
        ]
        assert sum(own) <= 1  # only where two pioneers said the same


@pytest.mark.parametrize(("method", "n"), CASES)
def test_who_goes_first(
    method: str, n: int, play: Callable[[str, int], list[list[dict[str, Any]]]]
) -> None:
    first, second = play(method, n)
    agents = [f"agent_{k}" for k in range(n)]
    names = ["pioneer"] if n == 1 else ["pioneer", "observer"]
    names = ["pioneer", "observer_1", "observer_2"] if n == 3 else names
    assert all(row["roles"] == dict(zip(agents, names, strict=True)) for row in first)
    order = agents if method in NO_EXCHANGE else [*agents[1:], agents[0]]
    assert all(row["roles"] == dict(zip(order, names, strict=True)) for row in second)


def test_permuted_methods_refuse_a_batch_of_one_episode(
    run_of: Callable[..., TrainResult],
) -> None:
    for method in ("placebo_sum", "placebo_transfer"):
        with pytest.raises(ValueError, match="batch_size must give at least 2 episodes"):
            run_of(method=method, batch_size=2)
        with pytest.raises(ValueError, match="eval_queries must be at least 2"):
            run_of(method=method, eval_queries=1)
