"""Tests of agents/learners/a2c.py."""

from __future__ import annotations

import math

import pytest
import torch

from agents.learners.a2c import A2C
from tests.agents.learners.toy import made_rollout, made_scored, prepared_of, toy_learner


def test_advantages_by_hand() -> None:
    learner = toy_learner(A2C, kl_estimator="k3", gae_lambda=0.5, whiten="none")
    values = torch.tensor([[0.5, 0.25], [1.0, 0.0]], dtype=torch.float64)
    prepared = learner.prepare(made_rollout(values=values))
    # Row 0: A_1 = 1 - .25 = .75; A_0 = .25 - .5 + .5 * .75 = .125. Row 1: 3 - 1 = 2.
    expected = torch.tensor([[0.125, 0.75], [2.0, 0.0]], dtype=torch.float64)
    assert torch.allclose(prepared.advantages, expected)
    assert torch.allclose(prepared.returns, expected + values)


def test_the_loss_by_hand() -> None:
    # log-probs -log 2, -log 4 | -log 4; advantages 1, 2 | 3; critic 1 against 2, 3 | 4.
    learner = toy_learner(A2C, kl_coef=0.0, vf_coef=0.1, whiten="none")
    log_probs = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64).log().expand(2, 2, 3)
    ones = torch.ones(2, 2, dtype=torch.float64)
    scored = made_scored(log_probs, torch.tensor([[0, 2], [2, -1]]), ones)
    advantages = torch.tensor([[1.0, 2.0], [3.0, 0.0]], dtype=torch.float64)
    rollout = made_rollout(logprobs=scored.logprobs - 5.0)  # far from the old policy: no ratio
    loss, parts = learner.loss(scored, prepared_of(rollout, advantages, advantages + 1, 1.0))
    assert parts["policy_loss"].item() == pytest.approx((1 + 4 + 6) * math.log(2) / 3)
    assert loss.item() == pytest.approx(11 * math.log(2) / 3 + 0.1 * 14 / 3)
