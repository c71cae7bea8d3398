"""Each agent's update follows the gradient of its own objective, in every method.

The objective of seat i is E[sum_j W_ij score_j] - coef * E[its own KL on its own prompts]. All
episodes are played by the real game and weighted with their probability.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from agents.learners import PPO
from agents.methods import METHODS
from agents.rollout import Prepared
from tests.agents.gradients.compare import assert_equal, gradients
from tests.agents.gradients.oracle import Oracle, oracle_of
from tests.agents.gradients.placebos import Layout, placebo_sum, placebo_transfer
from tests.agents.gradients.toy_game import (
    Game,
    every_episode,
    expected_gradient,
    flat,
    make_game,
    model_gradient,
    score_tables,
)

COOPERATION = 0.7
PAID: dict[str, dict[int, list[list[float]]]] = {
    "sum": {2: [[1, 1], [1, 1]], 3: [[1, 1, 1], [1, 1, 1], [1, 1, 1]]},
    "own": {1: [[1]], 2: [[1, 0], [0, 1]], 3: [[1, 0, 0], [0, 1, 0], [0, 0, 1]]},
    "competitive": {
        2: [[1, -1], [-1, 1]],
        3: [[1, -0.5, -0.5], [-0.5, 1, -0.5], [-0.5, -0.5, 1]],
    },
    "exact": {2: [[1, 0.7], [0, 1]], 3: [[1, 0.7, 0.7], [0, 1, 0.7], [0, 0, 1]]},
}
"""Who is paid what, written out: row i is the seat that is paid, column j the seat that scored."""
PAID_BY_METHOD = {
    "solo": "own",
    "cory": "sum",
    "cory_no_transfer": "sum",
    "cory_no_exchange": "sum",
    "cory_own_reward": "own",
    "independent": "own",
    "competitive": "competitive",
    "cory_exact": "exact",
    "placebo_sum": "sum",
    "placebo_transfer": "sum",
}
WITHOUT_TRANSFER = {"cory_no_transfer", "independent"}
PLACEBOS = {"placebo_sum", "placebo_transfer"}
PLAIN = [m for m in PAID_BY_METHOD if m not in PLACEBOS | {"solo"}]


def test_every_method_is_here() -> None:
    assert list(METHODS) == list(PAID_BY_METHOD)


def paid(scores: Tensor, matrix: Sequence[Sequence[float]]) -> list[Tensor]:
    """Payoffs of each seat over all episodes; scores [R] * n + [n]."""
    return [sum(w * scores[..., j] for j, w in enumerate(row)) for row in matrix]  # type: ignore


def check(method: str, n: int, longest: int, order: tuple[int, ...], **settings: Any) -> None:
    n_responses = {1: 3, 2: 7}[longest]
    tables = score_tables(n, n_responses)
    game = make_game(
        method,
        n_agents=n,
        longest=longest,
        order=order,
        tables=tables,
        cooperation=COOPERATION,
        **settings,
    )
    oracle = oracle_of(n, longest=longest, order=order, transfer=method not in WITHOUT_TRANSFER)
    payoffs = paid(oracle.scores(tables), PAID[PAID_BY_METHOD[method]][n])
    scope = settings.get("kl_scope", "own")
    for seat, got in enumerate(gradients(game, oracle)):
        expected = oracle.objective_gradient(seat, payoffs[seat], scope=scope)
        assert expected.norm() > 0.01
        assert_equal(got, expected)


def test_solo() -> None:
    check("solo", 1, 2, (0,))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("method", PLAIN)
def test_two_agents(method: str, order: tuple[int, int]) -> None:
    check(method, 2, 2, order)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
@pytest.mark.parametrize("method", PLAIN)
def test_three_agents(method: str, order: tuple[int, ...]) -> None:
    check(method, 3, 1, order)


@pytest.mark.parametrize("scope", ["own", "team"])
def test_three_agents_with_longer_responses(scope: str) -> None:
    check("cory", 3, 2, (1, 2, 0), kl_scope=scope)


# Mixings of one's own.


@pytest.mark.parametrize("matrix", [[[0.3, -2.0], [1.5, 0.25]], [[0.0, 1.0], [1.0, 0.0]]])
def test_any_matrix(matrix: list[list[float]]) -> None:
    tables = score_tables(2, 7)
    game = make_game("cory", n_agents=2, tables=tables, reward_mixing=matrix)
    oracle = oracle_of(2)
    payoffs = paid(oracle.scores(tables), matrix)
    for seat, got in enumerate(gradients(game, oracle)):
        assert_equal(got, oracle.objective_gradient(seat, payoffs[seat]))


def test_a_callable_that_is_no_matrix() -> None:
    tables = score_tables(2, 7)

    def mixed(scores: Any) -> Any:  # both are paid the better score, the observer also a product
        return [np.max(scores), np.max(scores) + scores[0] * scores[1]]

    game = make_game("cory", n_agents=2, tables=tables, reward_mixing=mixed)
    oracle = oracle_of(2)
    scores = oracle.scores(tables)
    best = scores.max(-1).values
    for seat, payoff in enumerate([best, best + scores.prod(-1)]):
        got = gradients(game, oracle)[seat]
        assert_equal(got, oracle.objective_gradient(seat, payoff))


# What cooperation is: terms that are there, and terms that are zero.


def of_scores(
    method: str, n: int, matrix: list[list[float]], longest: int = 2, own_only: bool = False
) -> list[Tensor]:
    """Gradient of each seat from scores alone, paid by a matrix."""
    tables = score_tables(n, {1: 3, 2: 7}[longest], own_only=own_only)
    game = make_game(
        method, n_agents=n, longest=longest, tables=tables, reward_mixing=matrix, kl_coef=0.0
    )
    oracle = oracle_of(n, longest=longest, transfer=method not in WITHOUT_TRANSFER)
    return gradients(game, oracle)


def test_scores_of_earlier_seats_give_no_gradient() -> None:
    first, second = of_scores("cory", 2, [[0, 0], [1, 0]])
    assert first.norm() < 1e-10  # paid nothing, and a critic changes nothing
    assert second.norm() < 1e-10
    for got in of_scores("cory", 3, [[0, 0, 0], [1, 0, 0], [1, 1, 0]], longest=1):
        assert got.norm() < 1e-10


def test_scores_of_later_seats_do() -> None:
    assert of_scores("cory", 2, [[0, 1], [0, 0]])[0].norm() > 0.05
    first, second, third = of_scores("cory", 3, [[0, 0, 1], [0, 0, 1], [0, 0, 0]], longest=1)
    assert first.norm() > 0.02
    assert second.norm() > 0.02
    assert third.norm() < 1e-10


def test_without_transfer_the_scores_of_others_give_no_gradient() -> None:
    # A score that depends on its own response alone: nothing of the other's is in it.
    for got in of_scores("cory_no_transfer", 2, [[0, 1], [1, 0]], own_only=True):
        assert got.norm() < 1e-10
    matrix = [[0, 1, 1], [1, 0, 1], [1, 1, 0]]
    for got in of_scores("cory_no_transfer", 3, matrix, longest=1, own_only=True):
        assert got.norm() < 1e-10
    # With transfer the same scores do matter.
    assert of_scores("cory", 2, [[0, 1], [1, 0]], own_only=True)[0].norm() > 0.05


@functools.cache
def of_method(method: str, own_only: bool = False) -> list[Tensor]:
    tables = score_tables(2, 7, own_only=own_only)
    game = make_game(method, n_agents=2, tables=tables)
    return gradients(game, oracle_of(2, transfer=method not in WITHOUT_TRANSFER))


def test_the_observers_gradient_is_the_same_whoever_is_paid_for_the_pioneer() -> None:
    cory = of_method("cory")
    for method in ("cory_own_reward", "competitive", "cory_exact"):
        assert_equal(of_method(method)[1], cory[1])
    own, competitive = of_method("cory_own_reward")[0], of_method("competitive")[0]
    assert (cory[0] - own).norm() > 0.05
    assert_equal(cory[0] - own, own - competitive)  # the pioneer's part from r2: +1, 0, -1
    assert_equal(of_method("cory_exact")[0], cory[0])  # cooperation 1


def test_cory_without_transfer_is_independent_in_expectation() -> None:
    one, two = of_method("cory_no_transfer", True), of_method("independent", True)
    for a, b in zip(one, two, strict=True):
        assert_equal(a, b)


# The placebos, in expectation over the permuted episode.


def check_placebo(layout: Layout, method: str, oracle: Oracle, tables: Any) -> Game:
    assert layout.weights.sum().item() == pytest.approx(1.0, abs=1e-12)
    game = make_game(method, n_agents=oracle.n, longest=oracle.longest, tables=tables)
    for got, expected in zip(layout.gradients(game), layout.expected, strict=True):
        assert expected.norm() > 0.01
        assert_equal(got, expected)
    return game


@pytest.mark.parametrize("n", [2, 3])
def test_placebo_sum_has_the_gradient_of_own_scores(n: int) -> None:
    tables = score_tables(n, 3)
    oracle = oracle_of(n, longest=1)
    layout = placebo_sum(oracle, tables)
    game = check_placebo(layout, "placebo_sum", oracle, tables)
    # The noise is there: payoffs are not those of the own score.
    payoffs = game.team.rollouts[game.order[0]].payoffs
    own = torch.stack([oracle.scores(tables)[e][0] for e in layout.episodes])
    assert (payoffs - own).std() > 0.1


@pytest.mark.parametrize(("n", "longest"), [(2, 2), (3, 1)])
def test_placebo_transfer_reads_what_another_episode_said(n: int, longest: int) -> None:
    tables = score_tables(n, {1: 3, 2: 7}[longest])
    oracle = oracle_of(n, longest=longest)
    layout = placebo_transfer(oracle, tables)
    check_placebo(layout, "placebo_transfer", oracle, tables)
    # Unlike cory's, the pioneer's gradient has nothing of what the others made of its words.
    cory = oracle.objective_gradient(0, oracle.scores(tables).sum(-1))
    assert (cory - layout.expected[0]).norm() > 0.02


# The whole of an update: minibatches, scoring, backward and the optimizer's gradients.


def update_gradient(learner: PPO, batch: Prepared, weights: Tensor) -> Tensor:
    """What `update_from` hands to the optimizer, one response a step, weighted and summed.

    The optimizer is told to note the gradients and to leave the weights where they are.
    """
    parameters = list(learner.actor.model.parameters())
    steps: list[Tensor] = []
    learner.optim._optim.step = lambda: steps.append(  # type: ignore[method-assign]
        flat(parameters, [p.grad for p in parameters])
    )
    rows = torch.cat([part.episode for part in learner._minibatches(batch, 1, 0)])
    learner.update_from(batch, 1, 1)
    factors = weights[rows] * batch.mask.sum(-1)[rows]
    return (torch.stack(steps) * factors.unsqueeze(-1)).sum(0)


def test_the_optimizer_gets_these_gradients() -> None:
    tables = score_tables(2, 7)
    game = make_game("cory", n_agents=2, tables=tables)
    oracle = oracle_of(2)
    weights = oracle.probability().detach().flatten()
    batches = game.play(every_episode(2, 7))
    total = oracle.scores(tables).sum(-1)
    for seat, agent in enumerate(game.order):
        got = update_gradient(game.learners[agent], batches[agent], weights)
        assert_equal(-got, oracle.objective_gradient(seat, total))


def test_responses_of_one_length_differ_from_the_sum_by_a_constant() -> None:
    # One minibatch of equally long responses: the divisor is their number times their length.
    game = make_game(tables=score_tables(1, 7))
    batch = game.play([(3,), (4,), (6,)])["agent_0"]
    assert batch.mask.all()
    learner = game.learners["agent_0"]
    whole = model_gradient(learner, learner.loss(learner.score(batch), batch)[0])
    ones = torch.ones(3, dtype=torch.float64)
    assert_equal(6 * whole, expected_gradient(learner, batch, ones))
