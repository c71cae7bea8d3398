"""Each KL estimator has the gradient that its own definition says, and `exact` that of the KL.

Every episode of a toy goes through the learner's real `prepare` and `loss`, weighted with its
probability; the other side is autograd of the enumerated objective (`oracle.py`). Nothing random.
"""

from __future__ import annotations

from typing import get_args

import pytest
import torch

from agents.config import KLEstimator, KLScope
from tests.agents.gradients.compare import assert_equal, gradients
from tests.agents.gradients.oracle import oracle_of
from tests.agents.gradients.planting import kl_placed
from tests.agents.gradients.toy_game import (
    COEFS,
    make_game,
    score_tables,
    zero_tables,
)

ESTIMATORS = get_args(KLEstimator)
SCOPES = get_args(KLScope)


# One agent, responses of up to three tokens.


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("near", [None, 0.05])
def test_the_kl_alone(estimator: str, near: float | None) -> None:
    tables = zero_tables(1, 15)
    game = make_game(longest=3, tables=tables, kl_estimator=estimator, near=near)
    oracle = oracle_of(longest=3, near=near)
    assert oracle.probability().sum().item() == pytest.approx(1.0, abs=1e-12)
    expected = -COEFS[0] * oracle.estimator_target(0, estimator)
    assert expected.norm() > 1e-4
    assert_equal(gradients(game, oracle)[0], expected)


@pytest.mark.parametrize("estimator", ["exact", "k1"])
def test_the_right_ones_have_the_gradient_of_the_objective(estimator: str) -> None:
    tables = score_tables(1, 15)
    game = make_game(longest=3, tables=tables, kl_estimator=estimator)
    oracle = oracle_of(longest=3)
    objective = oracle.objective_gradient(0, oracle.scores(tables)[..., 0])
    assert objective.norm() > 0.1
    assert_equal(gradients(game, oracle)[0], objective)


@pytest.mark.parametrize("estimator", ["k3", "reference"])
def test_the_others_have_not(estimator: str) -> None:
    oracle = oracle_of(longest=3)
    true = oracle.kl_gradient(0)
    assert (oracle.estimator_target(0, estimator) - true).norm() > 0.1 * true.norm()


@pytest.mark.parametrize("temperature", [0.6, 1.7])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_at_another_temperature_the_sampled_policy_is_the_one_that_learns(
    estimator: str, temperature: float
) -> None:
    tables = score_tables(1, 7)
    game = make_game(tables=tables, kl_estimator=estimator, temperature=temperature)
    oracle = oracle_of(temperature=temperature)
    payoffs = oracle.scores(tables)[..., 0]
    assert_equal(
        gradients(game, oracle)[0], oracle.objective_gradient(0, payoffs, estimator=estimator)
    )


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_without_weight_every_estimator_is_the_plain_policy_gradient(estimator: str) -> None:
    tables = score_tables(1, 7)
    game = make_game(tables=tables, kl_estimator=estimator, kl_coef=0.0)
    oracle = oracle_of()
    assert_equal(
        gradients(game, oracle)[0], oracle.reward_gradient(0, oracle.scores(tables)[..., 0])
    )


# Two and three agents: whose KL an agent pays.


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_agents(estimator: str, scope: str, order: tuple[int, int]) -> None:
    tables = score_tables(2, 7)
    settings = {"kl_estimator": estimator, "kl_scope": scope}
    game = make_game("cory", n_agents=2, order=order, tables=tables, **settings)
    oracle = oracle_of(2, order=order)
    total = oracle.scores(tables).sum(-1)
    for seat, got in enumerate(gradients(game, oracle)):
        expected = oracle.objective_gradient(seat, total, scope=scope, estimator=estimator)
        assert_equal(got, expected)


def test_two_agents_with_longer_responses() -> None:
    tables = score_tables(2, 15)
    game = make_game("cory", n_agents=2, longest=3, tables=tables, kl_scope="team")
    oracle = oracle_of(2, longest=3)
    total = oracle.scores(tables).sum(-1)
    for seat, got in enumerate(gradients(game, oracle)):
        assert_equal(got, oracle.objective_gradient(seat, total, scope="team"))


def test_team_scope_adds_to_the_pioneer_alone_and_to_it_exactly_the_kl_of_its_reader() -> None:
    tables = score_tables(2, 7)
    oracle = oracle_of(2)
    own, team = (
        gradients(make_game("cory", n_agents=2, tables=tables, kl_scope=scope), oracle)
        for scope in ("own", "team")
    )
    added = COEFS[1] * oracle.kl_gradient(0, of=1)
    assert added.norm() > 0.05 * own[0].norm()
    assert_equal(team[0] - own[0], -added)
    assert_equal(team[1], own[1])


def test_without_transfer_nobody_reads_and_the_team_scope_changes_nothing() -> None:
    tables = score_tables(2, 7)
    oracle = oracle_of(2, transfer=False)
    assert oracle.kl_gradient(0, of=1).norm() < 1e-12
    own, team = (
        gradients(make_game("cory_no_transfer", n_agents=2, tables=tables, kl_scope=s), oracle)
        for s in ("own", "team")
    )
    for a, b in zip(own, team, strict=True):
        assert_equal(a, b)


# The rest of the table of places: estimators that the product does not offer, planted in it.


@pytest.mark.parametrize(
    ("in_reward", "in_loss"),
    [
        (None, "k1"),
        (None, "k2"),
        (None, "k3"),
        (None, "full"),
        ("k1", None),
        ("k3", None),
        ("full", None),
        ("full", "full"),
    ],
)
def test_places(in_reward: str | None, in_loss: str | None) -> None:
    game = make_game(longest=3, tables=zero_tables(1, 15))
    oracle = oracle_of(longest=3)
    true, current = oracle.kl_gradient(0), oracle.current(0, "kl")
    reverse = oracle.current(0, "reverse_kl")
    expected = {
        (None, "k1"): torch.zeros_like(true),  # E[grad log pi] = 0
        (None, "k2"): current,  # E[log-ratio * grad log pi] is the gradient of KL_t
        (None, "k3"): reverse,
        (None, "full"): current,
        ("k1", None): true,
        ("k3", None): true - reverse,  # E[k3] = KL, and E[k3 grad log pi] = grad (KL - reverse KL)
        ("full", None): true - current,
        ("full", "full"): true,
    }[in_reward, in_loss]
    with kl_placed(in_reward, in_loss):
        assert_equal(gradients(game, oracle)[0], -COEFS[0] * expected)


def test_half_the_square_in_the_reward_is_nobodys_gradient() -> None:
    # Its own: E over episodes of sum_t grad log pi_t * sum_(u >= t) log-ratio_u^2 / 2.
    game = make_game(longest=3, tables=zero_tables(1, 15))
    oracle = oracle_of(longest=3)
    says = oracle.says[0]
    squares = ((says.logps - says.ref_logps) ** 2 / 2).detach()
    to_go = squares.flip(-1).cumsum(-1).flip(-1)
    weights = oracle.probability().detach()
    expected = oracle.gradient(0, (weights.unsqueeze(-1) * says.logps * to_go).sum())
    with kl_placed("k2", None):
        got = gradients(game, oracle)[0]
    assert_equal(got, -COEFS[0] * expected)
    assert (expected - oracle.kl_gradient(0)).norm() > 0.2 * oracle.kl_gradient(0).norm()
