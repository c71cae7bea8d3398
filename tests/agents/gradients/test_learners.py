"""Learners whose estimate is exact have the objective's gradient; others that of their formula.

Where an estimate compares responses, all groups of them are enumerated; each goes through the
learner's own `prepare_team` and `loss`.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch

from agents.bridge.learner import Learner
from agents.learners.a2c import A2C
from agents.learners.counterfactual import Counterfactual
from agents.learners.grpo import GRPO
from agents.learners.happo import HAPPO
from agents.learners.magrpo import MAGRPO
from agents.learners.mappo import MAPPO
from agents.learners.raft import RAFT
from agents.learners.reinforce import Reinforce
from agents.learners.rloo import RLOO
from agents.maths.ratios import next_factor
from agents.rollout import Rollout
from tests.agents.gradients.compare import assert_equal, gradients
from tests.agents.gradients.groups import Change, group_gradients, groups_of
from tests.agents.gradients.oracle import Oracle, oracle_of
from tests.agents.gradients.toy_game import (
    COEFS,
    Game,
    every_episode,
    expected_gradient,
    make_game,
    nudge,
    score_tables,
)

ESTIMATORS = ["exact", "k1"]  # those with the true gradient


def alone(kind: type[Learner], longest: int = 2, **settings: Any) -> tuple[Game, Oracle, Any]:
    tables = score_tables(1, {1: 3, 2: 7}[longest])
    game = make_game(kind=kind, longest=longest, tables=tables, **settings)
    oracle = oracle_of(longest=longest)
    return game, oracle, oracle.scores(tables)[..., 0]


def pair(kind: type[Learner], method: str = "cory", longest: int = 1, **settings: Any) -> Any:
    tables = score_tables(2, {1: 3, 2: 7}[longest])
    game = make_game(method, n_agents=2, kind=kind, longest=longest, tables=tables, **settings)
    oracle = oracle_of(2, longest=longest)
    return game, oracle, oracle.scores(tables)


# One by one: a critic, and a baseline that does not depend on the response.


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a2c(estimator: str) -> None:
    game, oracle, payoffs = alone(A2C, kl_estimator=estimator)
    assert_equal(gradients(game, oracle)[0], oracle.objective_gradient(0, payoffs))


def test_a2c_of_two() -> None:
    game, oracle, scores = pair(A2C, longest=2)
    for seat, got in enumerate(gradients(game, oracle)):
        assert_equal(got, oracle.objective_gradient(seat, scores.sum(-1)))


def test_a2c_has_no_clip() -> None:
    # The policy has moved: E over the old episodes of A grad log pi_new, whatever the ratio.
    game, oracle, payoffs = alone(A2C)
    moved = oracle_of(moved=0.1)
    batch = game.play(every_episode(1, 7))["agent_0"]
    learner = game.learners["agent_0"]
    nudge(learner.actor.model, 0.1)
    weights = oracle.probability().detach()
    advantages = oracle.advantages(0, payoffs)
    value = moved.says[0].logps * advantages - COEFS[0] * moved.penalty(0, "exact")[1]
    expected = moved.gradient(0, (weights.unsqueeze(-1) * value).sum())
    assert_equal(-expected_gradient(learner, batch, weights), expected)


def with_baselines(game: Game, baselines: dict[int, float]) -> Change:
    """Every group meets the same past."""

    def change(agent: str, rollout: Rollout, rows: tuple[int, ...]) -> Rollout:
        game.learners[agent].baselines = dict(baselines)
        return rollout

    return change


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_reinforce(estimator: str) -> None:
    game, oracle, payoffs = alone(Reinforce, kl_estimator=estimator)
    got = group_gradients(game, oracle, 2, change=with_baselines(game, {0: 0.7}))
    assert_equal(got[0], oracle.objective_gradient(0, payoffs))


def test_the_first_batch_of_reinforce() -> None:
    game, oracle, payoffs = alone(Reinforce)
    got = group_gradients(game, oracle, 2, change=with_baselines(game, {}))
    assert_equal(got[0], oracle.objective_gradient(0, payoffs))


def test_reinforce_of_two() -> None:
    game, oracle, scores = pair(Reinforce)
    got = group_gradients(game, oracle, 2, change=with_baselines(game, {0: 0.7, 1: -1.4}))
    for seat in range(2):
        assert_equal(got[seat], oracle.objective_gradient(seat, scores.sum(-1)))


# Groups.


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_rloo(estimator: str) -> None:
    game, oracle, payoffs = alone(RLOO, kl_estimator=estimator)
    assert_equal(group_gradients(game, oracle, 2)[0], oracle.objective_gradient(0, payoffs))


def test_rloo_in_groups_of_three() -> None:
    game, oracle, payoffs = alone(RLOO, longest=1)
    assert_equal(group_gradients(game, oracle, 3)[0], oracle.objective_gradient(0, payoffs))


@pytest.mark.case(45)
@pytest.mark.parametrize("method", ["cory", "cory_exact", "competitive", "cory_own_reward"])
def test_rloo_of_two_compares_within_each_role(method: str) -> None:
    # The observers of a group read different answers; their baseline is still unbiased.
    game, oracle, scores = pair(RLOO, method)
    later = {"cory": 1.0, "cory_exact": 1.0, "competitive": -1.0, "cory_own_reward": 0.0}[method]
    got = group_gradients(game, oracle, 2)
    assert_equal(got[0], oracle.objective_gradient(0, scores[..., 0] + later * scores[..., 1]))
    assert_equal(got[1], oracle.objective_gradient(1, scores[..., 1]))


@pytest.mark.case(45)
def test_the_observer_is_compared_by_its_own_score() -> None:
    # Without the pioneer's score its advantages are another, quieter estimate of the same.
    game, _, scores = pair(RLOO, kl_coef=0.0)
    rollout = game.watch(every_episode(2, 3))["agent_1"]
    rows = torch.tensor([0, 4])
    part = replace(rollout.select(rows), group=torch.zeros(2, dtype=torch.int64))
    prepared = game.learners["agent_1"].prepare(part)
    r2 = scores[..., 1].flatten()[rows]
    assert torch.allclose(prepared.advantages[:, 0], r2 - r2.flip(0))


@pytest.mark.parametrize("size", [2, 3])
def test_grpo_without_deviation_has_a_known_factor(size: int) -> None:
    # A mean that includes the sample shrinks the reward's part by (G - 1) / G, not the KL's.
    game, oracle, payoffs = alone(GRPO, longest=1 if size == 3 else 2, grpo_std=False)
    expected = (size - 1) / size * oracle.reward_gradient(0, payoffs)
    expected = expected - COEFS[0] * oracle.kl_gradient(0)
    assert_equal(group_gradients(game, oracle, size)[0], expected)


def test_grpo_with_deviation_by_its_formula() -> None:
    # Token by token in plain numbers: groups of two have deviation |r - r'| / sqrt 2.
    game, oracle, payoffs = alone(GRPO)
    says, lengths = oracle.says[0], oracle.lengths.tolist()
    of_logps = torch.zeros(7, 2, dtype=torch.float64)
    of_kl = torch.zeros_like(of_logps)
    costs = says.kl.detach().flip(-1).cumsum(-1).flip(-1) * COEFS[0]
    for rows, weight in groups_of(oracle, 2):
        r = [payoffs[k].item() for k in rows]
        sigma = abs(r[0] - r[1]) / 2**0.5 if r[0] != r[1] else 1.0
        for own, other in ((0, 1), (1, 0)):
            for t in range(lengths[rows[own]]):
                advantage = (r[own] - r[other]) / 2 / sigma
                cost = costs[rows[own], t] - costs[rows[other], t]
                of_logps[rows[own], t] += weight / 2 * (advantage - cost / sigma)
                of_kl[rows[own], t] += weight / 2 * COEFS[0] / sigma
    value = (of_logps * says.logps).sum() - (of_kl * says.kl).sum()
    assert_equal(group_gradients(game, oracle, 2)[0], oracle.gradient(0, value))


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_raft_by_its_formula(share: float) -> None:
    # The better of two by payoff minus KL, or both; nothing where the payoffs are equal.
    game, oracle, payoffs = alone(RAFT, raft_keep=share)
    says = oracle.says[0]
    judged = payoffs - COEFS[0] * says.kl.detach().sum(-1)
    value = torch.zeros((), dtype=torch.float64)
    for rows, weight in groups_of(oracle, 2):
        if payoffs[rows[0]] == payoffs[rows[1]]:
            continue
        kept = rows if share == 1.0 else [max(rows, key=lambda k: judged[k].item())]
        for k in kept:
            value = value + weight / 2 * (says.logps[k].sum() - COEFS[0] * says.kl[k].sum())
    assert_equal(group_gradients(game, oracle, 2)[0], oracle.gradient(0, value))


# Together.


def test_magrpo() -> None:
    game, oracle, scores = pair(MAGRPO)
    got = group_gradients(game, oracle, 2)
    for seat in range(2):
        assert_equal(got[seat], oracle.objective_gradient(seat, scores.sum(-1)))


def test_magrpo_with_the_mean_has_a_known_factor() -> None:
    game, oracle, scores = pair(MAGRPO, magrpo_baseline="mean")
    for seat, got in enumerate(group_gradients(game, oracle, 2)):
        expected = oracle.reward_gradient(seat, scores.sum(-1)) / 2
        assert_equal(got, expected - COEFS[seat] * oracle.kl_gradient(seat))


def test_magrpo_with_the_maximum_of_the_others_is_unbiased() -> None:
    game, oracle, payoffs = alone(MAGRPO, longest=1, magrpo_baseline="max")
    assert_equal(group_gradients(game, oracle, 3)[0], oracle.objective_gradient(0, payoffs))


def test_magrpo_pays_the_later_kl_where_the_scope_is_the_team() -> None:
    game, oracle, scores = pair(MAGRPO, kl_scope="team")

    def charged(agent: str, rollout: Rollout, rows: tuple[int, ...]) -> Rollout:
        every = game.team._with_later_kl(game.team.rollouts)[agent].payoffs
        return replace(rollout, payoffs=every[torch.tensor(rows)])

    for seat, got in enumerate(group_gradients(game, oracle, 2, change=charged)):
        assert_equal(got, oracle.objective_gradient(seat, scores.sum(-1), scope="team"))


@pytest.mark.parametrize("estimator", [*ESTIMATORS, "reference"])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_mappo(estimator: str, order: tuple[int, int]) -> None:
    tables = score_tables(2, 7)
    settings = {"kl_estimator": estimator, "kl_scope": "team"}
    game = make_game("cory", n_agents=2, kind=MAPPO, tables=tables, order=order, **settings)
    oracle = oracle_of(2, order=order)
    total = oracle.scores(tables).sum(-1)
    for seat, got in enumerate(gradients(game, oracle)):
        # The later agent's KL stands in the stream, whatever the estimator leaves out of its own.
        expected = oracle.objective_gradient(seat, total, scope="team", estimator=estimator)
        assert_equal(got, expected)


def test_mappo_over_the_boundary_is_right_with_the_true_value_and_wrong_with_none() -> None:
    tables = score_tables(2, 7)
    settings = {"kl_scope": "team", "lambda_turn": 0.0, "kl_coef": 0.0}
    game = make_game("cory", n_agents=2, kind=MAPPO, tables=tables, **settings)
    oracle = oracle_of(2)
    total = oracle.scores(tables).sum(-1)
    r2 = oracle.scores(tables)[..., 1]
    weights = oracle.probability().detach().flatten()
    game.play(every_episode(2, 7))
    true = oracle.true_values(1, r2, "k3")  # k3: no KL in the rewards, here there is none at all
    for values, right in ((true, True), (oracle.zeros(1), False)):
        rollouts = dict(game.team.rollouts)
        shape = rollouts["agent_1"].values.shape
        rollouts["agent_1"] = replace(rollouts["agent_1"], values=values.reshape(shape))
        batches = MAPPO.prepare_team(game.learners, rollouts)
        got = -expected_gradient(game.learners["agent_0"], batches["agent_0"], weights)
        expected = oracle.reward_gradient(0, total)
        assert ((got - expected).norm() < 1e-10) == right
        if not right:  # then it is that of its own score alone
            assert_equal(got, oracle.reward_gradient(0, oracle.scores(tables)[..., 0]))


def test_happo_begins_as_ppo() -> None:
    game, oracle, scores = pair(HAPPO, longest=2)
    for seat, got in enumerate(gradients(game, oracle)):
        assert_equal(got, oracle.objective_gradient(seat, scores.sum(-1)))


@pytest.mark.case(47)
def test_the_factor_gives_the_pioneer_the_credit_of_the_new_observer() -> None:
    # The observer has been updated; M makes the old episodes weigh as the new ones would.
    tables = score_tables(2, 7)
    game = make_game("cory", n_agents=2, kind=HAPPO, tables=tables, kl_coef=0.0)
    old = oracle_of(2)
    batches = game.play(every_episode(2, 7))
    observer, pioneer = game.learners["agent_1"], game.learners["agent_0"]
    nudge(observer.actor.model, 0.02)
    ones = torch.ones(49, dtype=torch.float64)
    batch = batches["agent_1"]
    now = observer.logprobs_now(batch)
    factor, clamped = next_factor(ones, now, batch.logprobs, batch.mask)
    assert not clamped.any() and (factor - 1).abs().max() > 0.1
    weights = old.probability().detach().flatten()
    got = -expected_gradient(
        pioneer, pioneer.minibatch(replace(batches["agent_0"], factor=factor)), weights
    )
    moved = oracle_of(2, moved=0.02)
    first = old.wide(old.says[0].logps.sum(-1), 0)
    second = moved.says[1].logps.sum(-1).detach()
    total = old.scores(tables).sum(-1)
    expected = old.gradient(0, ((first + second).exp() * total).sum())
    assert_equal(got, expected)
    assert (expected - old.reward_gradient(0, total)).norm() > 0.01 * expected.norm()


def test_the_counterfactual_is_a_baseline() -> None:
    # The observer answers the bare query once more, independently: all answers are enumerated.
    game, oracle, scores = pair(Counterfactual)
    again = Oracle(2, longest=1, transfer=False)
    answers = again.says[1].logps.sum(-1)[0].exp().detach()  # of the observer, [R]
    assert answers.sum().item() == pytest.approx(1.0)
    table = torch.tensor([0.4, -1.3, 2.0], dtype=torch.float64)  # what they would score
    groups = []
    drawn: dict[tuple[int, ...], tuple[int, ...]] = {}
    for rows, weight in groups_of(oracle, 2):
        for said in itertools.product(range(3), repeat=2):
            groups.append((rows, weight * (answers[said[0]] * answers[said[1]]).item(), said))

    def totals(some: Any) -> list[torch.Tensor]:
        def change(agent: str, rollout: Rollout, rows: tuple[int, ...]) -> Rollout:
            game.learners[agent].baselines = {0: 0.3, 1: -0.2}
            return replace(rollout, without=table[torch.tensor(drawn[rows])] * (agent == "agent_0"))

        found = [torch.zeros(1, dtype=torch.float64)] * 2
        for said in itertools.product(range(3), repeat=2):
            part = [(rows, weight) for rows, weight, own in some if own == said]
            drawn.update({rows: said for rows, _ in part})
            got = group_gradients(game, oracle, 2, change=change, groups=part)
            found = [a + b for a, b in zip(found, got, strict=True)]
        return found

    for seat, got in enumerate(totals(groups)):
        assert_equal(got, oracle.objective_gradient(seat, scores.sum(-1)))
