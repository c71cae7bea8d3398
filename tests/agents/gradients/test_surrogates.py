"""Where an update is not the gradient of the objective, it is what its formula says.

Discounting, traces, entropy bonus, the critic's loss, per-batch token means, whitening and later
steps of PPO each change the estimate on purpose. The right-hand sides are written down from the
formulas over all episodes (`oracle.py`) or token by token, and call nothing under test.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from agents.bridge.learner import trimmed
from agents.config import KLEstimator
from agents.rollout import Rollout
from tests.agents.gradients.batches import (
    Tokens,
    batch_gradient,
    expected_batch_gradient,
)
from tests.agents.gradients.compare import assert_equal, gradients
from tests.agents.gradients.oracle import Oracle, clipped_surrogate, oracle_of
from tests.agents.gradients.toy_game import (
    COEFS,
    Game,
    episode_losses,
    every_episode,
    expected_gradient,
    make_game,
    model_gradient,
    nudge,
    rows_of,
    score,
    score_tables,
)

ESTIMATORS = get_args(KLEstimator)


def policy_gradient(oracle: Oracle, seat: int, advantages: Tensor, estimator: str) -> Tensor:
    """E[sum_t A_t grad log pi_t] - coef * the estimator's part in the loss."""
    weights = oracle.probability().detach().unsqueeze(-1)
    logps = oracle.wide(oracle.says[seat].logps, seat, tail=1)
    in_loss = oracle.penalty(seat, estimator)[1]
    coef = COEFS[oracle.order[seat]]
    return oracle.gradient(seat, (weights * (logps * advantages - coef * in_loss)).sum())


# Discount and trace.


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(("gamma", "lam"), [(0.9, 1.0), (1.0, 0.5), (0.8, 0.0), (0.95, 0.7)])
def test_discount_and_trace(estimator: str, gamma: float, lam: float) -> None:
    tables = score_tables(1, 15)
    settings: dict[str, Any] = {"gamma": gamma, "gae_lambda": lam, "kl_estimator": estimator}
    game = make_game(longest=3, tables=tables, **settings)
    oracle = oracle_of(longest=3)
    payoffs = oracle.scores(tables)[..., 0]
    advantages = oracle.advantages(0, payoffs, estimator=estimator, gamma=gamma, lam=lam)
    expected = policy_gradient(oracle, 0, advantages, estimator)
    objective = oracle.objective_gradient(0, payoffs, estimator=estimator)
    assert (expected - objective).norm() > 0.01 * objective.norm()  # biased, so a real comparison
    assert_equal(gradients(game, oracle)[0], expected)


def test_discount_and_trace_of_two_agents() -> None:
    tables = score_tables(2, 7)
    game = make_game("cory", n_agents=2, tables=tables, gamma=0.9, gae_lambda=0.6)
    oracle = oracle_of(2)
    total = oracle.scores(tables).sum(-1)
    for seat, got in enumerate(gradients(game, oracle)):
        advantages = oracle.advantages(seat, total, gamma=0.9, lam=0.6)
        assert_equal(got, policy_gradient(oracle, seat, advantages, "exact"))


def with_values(game: Game, oracle: Oracle, values: list[Tensor]) -> list[Tensor]:
    """The update of each seat, had its critic said these values ([R] * n + [T])."""
    weights = oracle.probability().detach().flatten()
    game.play(every_episode(oracle.n, len(oracle.responses)))
    found = []
    for seat, agent in enumerate(game.order):
        learner, rollout = game.learners[agent], game.team.rollouts[agent]
        told = replace(rollout, values=values[seat].reshape(rollout.values.shape))
        found.append(-expected_gradient(learner, learner.prepare(told), weights))
    return found


@pytest.mark.parametrize("n", [1, 2])
def test_a_short_trace_is_right_with_the_true_value_and_wrong_with_none(n: int) -> None:
    tables = score_tables(n, 7)
    game = make_game("cory" if n > 1 else "solo", n_agents=n, tables=tables, gae_lambda=0.3)
    oracle = oracle_of(n)
    total = oracle.scores(tables).sum(-1)
    true = with_values(game, oracle, [oracle.true_values(seat, total) for seat in range(n)])
    none = with_values(game, oracle, [oracle.zeros(seat) for seat in range(n)])
    for seat in range(n):
        objective = oracle.objective_gradient(seat, total)
        assert_equal(true[seat], objective)
        assert (none[seat] - objective).norm() > 0.1 * objective.norm()
        advantages = oracle.advantages(seat, total, lam=0.3, values=oracle.zeros(seat))
        assert_equal(none[seat], policy_gradient(oracle, seat, advantages, "exact"))


# Entropy bonus and critic.


def test_the_entropy_bonus_counts_the_current_token_alone() -> None:
    tables = score_tables(1, 15)
    game = make_game(longest=3, tables=tables, ent_coef=0.4)
    oracle = oracle_of(longest=3)
    payoffs = oracle.scores(tables)[..., 0]
    bonus = oracle.current(0, "entropy")
    got = gradients(game, oracle)[0]
    assert_equal(got, oracle.objective_gradient(0, payoffs) + 0.4 * bonus)
    whole = oracle.gradient(0, (oracle.probability() * oracle.says[0].entropy.sum(-1)).sum())
    assert (bonus - whole).norm() > 0.1 * whole.norm()  # not that of the whole entropy


@pytest.mark.parametrize("value_clip", [None, 0.05])
def test_the_critic_is_fitted_to_the_returns_and_moves_only_by_its_own_loss(
    value_clip: float | None,
) -> None:
    # Linear head on the hidden state h: grad of (V - R)^2 is 2 (V - R) h, and with a clip it is
    # that of the larger of two errors. The head has moved since the episodes were played.
    tables = score_tables(1, 7)
    game = make_game(tables=tables, vf_coef=0.3, value_clip=value_clip, gae_lambda=0.7)
    oracle = oracle_of()
    weights = oracle.probability().detach()
    learner = game.learners["agent_0"]
    batch = game.play(every_episode(1, 7))["agent_0"]
    payoffs = oracle.scores(tables)[..., 0]
    returns = oracle.advantages(0, payoffs, lam=0.7) + oracle.says[0].values
    assert torch.allclose(batch.returns, returns * oracle.mask, atol=1e-12)
    nudge(learner.actor.value_head, 0.2)
    with torch.no_grad():
        hidden = learner.actor.response_hidden(batch.prompt_ids, batch.response_ids)
        now = (hidden @ learner.actor.value_head.weight.T).squeeze(-1)
        now = now + learner.actor.value_head.bias
    old = oracle.says[0].values
    expected = torch.zeros(8, dtype=torch.float64)
    clipped = 0
    for r, t in itertools.product(range(7), range(2)):
        if oracle.mask[r, t]:
            error, slope = now[r, t] - returns[r, t], 1.0
            moved = now[r, t] - old[r, t]
            if value_clip is not None and abs(moved) > value_clip:
                near = old[r, t] + math.copysign(value_clip, moved) - returns[r, t]
                slope = float(near**2 <= error**2)  # else a number is the larger
                clipped += not slope
            expected += weights[r] * 0.3 * 2 * error * slope * hidden[r, t]
    losses = torch.stack(episode_losses(learner, batch))
    (got,) = torch.autograd.grad((weights * losses).sum(), [learner.actor.value_head.weight])
    assert (clipped > 0) == (value_clip is not None)
    assert_equal(got.flatten(), expected)


# Later steps of PPO: the policy has moved since the episodes were drawn.


@pytest.mark.parametrize(
    ("estimator", "clip"), [*((e, 0.02) for e in ESTIMATORS), ("exact", 0.2), ("exact", 1e6)]
)
def test_a_later_step(estimator: str, clip: float) -> None:
    tables = score_tables(2, 7)
    game = make_game(
        "cory", n_agents=2, tables=tables, clip_coef=clip, kl_estimator=estimator, gae_lambda=0.9
    )
    old, new = oracle_of(2), oracle_of(2, moved=0.1)
    weights = old.probability().detach()
    total = old.scores(tables).sum(-1)
    batches = game.play(every_episode(2, 7))
    for seat, agent in enumerate(game.order):
        learner = game.learners[agent]
        nudge(learner.actor.model, 0.1)
        advantages = old.advantages(seat, total, estimator=estimator, lam=0.9)
        before, now = (o.wide(o.says[seat].logps, seat, tail=1) for o in (old, new))
        mask = old.token_mask(seat)
        surrogate = clipped_surrogate(now, before, advantages, mask, clip)
        # The reference's part in the loss is that of the policy as it is now, too.
        value = surrogate - COEFS[seat] * new.penalty(seat, estimator)[1]
        expected = new.gradient(seat, (weights.unsqueeze(-1) * value).sum())
        got = -expected_gradient(learner, batches[agent], weights.flatten())
        assert_equal(got, expected)
        outside = ((now - before).exp() - 1).abs()[mask] > clip
        assert bool(outside.any()) == (clip < 1)  # the clip bites where it should
        assert not bool(outside.all())


# Divisors that depend on the batch.


@pytest.mark.parametrize("whiten", ["none", "batch", "minibatch"])
@pytest.mark.parametrize(
    ("size", "estimator"), [*((k, e) for k in (1, 2) for e in ESTIMATORS), (3, "exact")]
)
def test_batches_in_expectation(whiten: str, size: int, estimator: str) -> None:
    """All batches of a size, each through `prepare` and `loss`, weighted with its probability."""
    tables = score_tables(1, 7)
    game = make_game(tables=tables, whiten=whiten, kl_estimator=estimator)
    oracle = oracle_of()
    tokens = Tokens(oracle, oracle.scores(tables)[..., 0], estimator)
    expected = tokens.expected(size, whiten=whiten != "none")
    assert_equal(expected_batch_gradient(game, oracle, size), expected)


def rows_in_two() -> list[list[int]]:
    return [[0, 3, 5, 6], [1, 2, 4]]


@pytest.mark.parametrize("whiten", ["batch", "minibatch", "none"])
def test_whitening_and_the_minibatches(whiten: str) -> None:
    # One batch of seven responses in two minibatches. "batch": mean and deviation of all seven,
    # the same in both; "minibatch": each its own. The KL of the loss is divided by that deviation.
    tables = score_tables(1, 7)
    game = make_game(tables=tables, whiten=whiten)
    oracle = oracle_of()
    tokens = Tokens(oracle, oracle.scores(tables)[..., 0], "exact")
    batch = game.play(every_episode(1, 7))["agent_0"]
    learner = game.learners["agent_0"]
    for rows in rows_in_two():
        over = {"batch": list(range(7)), "minibatch": rows, "none": None}[whiten]
        part = trimmed(learner.minibatch(batch.select(torch.tensor(rows))))
        loss, _ = learner.loss(
            rows_of(score(learner, batch), torch.tensor(rows), part.response_ids.shape[1]), part
        )
        expected = tokens.gradient_of(rows, whiten=over is not None, over=over)
        assert_equal(-model_gradient(learner, loss), expected)


def test_equal_advantages_are_not_blown_up() -> None:
    # One-token responses of one payoff without KL: nothing to learn, and sigma is 1.
    game = make_game(
        longest=1,
        tables=score_tables(1, 3, own_only=True),
        kl_coef=0.0,
        whiten="batch",
    )
    game.play([(0,), (1,), (2,)])
    learner = game.learners["agent_0"]
    rollout: Rollout = game.team.rollouts["agent_0"]
    told = replace(
        rollout, values=torch.zeros_like(rollout.values), payoffs=torch.full((3,), 0.1).double()
    )
    assert batch_gradient(learner, told).norm() < 1e-12
