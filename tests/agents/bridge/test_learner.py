"""Tests of agents/bridge/learner.py: minibatches cut into pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from agents.bridge.learner import trimmed
from agents.learners import PPO
from agents.models import language_model
from agents.rollout import Prepared
from tests.agents.learners.toy import RESPONSES, toy_learner, toy_rollout

PAYOFFS = [0.3, -1.0, 2.0, 0.7, 1.3, -0.4, 0.9]


def gradient_of_a_step(learner: PPO, batch: Prepared) -> tuple[dict[str, float], Tensor]:
    """What one optimizer step logs, and the gradient it used."""
    learner.optim._optim.step = lambda *_: None  # type: ignore[method-assign]
    logged, drift = learner._step(batch)
    parts = [p.grad for p in learner.parameters_in_training]
    flat = torch.cat([g.flatten() for g in parts if g is not None])
    return {**logged, "approx_kl": drift[0], "clip_fraction": drift[1]}, flat


def moved_learner(**settings: Any) -> tuple[PPO, Prepared]:
    """A learner whose policy has moved since the batch was drawn, so that every term counts."""
    learner = toy_learner(max_grad_norm=None, ent_coef=0.1, vf_coef=0.5, **settings)
    batch = learner.prepare(toy_rollout(learner, RESPONSES, PAYOFFS))
    with torch.no_grad():
        for parameter in learner.parameters_in_training:
            parameter.add_(0.05)
    return learner, batch


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
@pytest.mark.parametrize("whiten", ["batch", "minibatch", "none"])
@pytest.mark.parametrize("estimator", ["exact", "k3", "reference"])
def test_pieces_add_up_to_the_minibatch(size: int, whiten: str, estimator: str) -> None:
    whole_log, whole = gradient_of_a_step(*moved_learner(whiten=whiten, kl_estimator=estimator))
    settings = {"whiten": whiten, "kl_estimator": estimator, "micro_batch_size": size}
    log, parts = gradient_of_a_step(*moved_learner(**settings))
    assert whole.norm() > 0.1
    assert torch.allclose(parts, whole, atol=1e-12, rtol=0)
    assert log == pytest.approx(whole_log, abs=1e-12)


def test_one_minibatch_of_eight_is_eight_accumulated_ones() -> None:
    responses, payoffs = [*RESPONSES, [1, 2]], [*PAYOFFS, 0.1]

    def learnt(micro: int | None) -> list[Tensor]:
        learner = toy_learner(learning_rate=0.01, micro_batch_size=micro)
        batch = learner.prepare(toy_rollout(learner, responses, payoffs))
        stats = learner.update_from(batch, 8, 3)
        assert stats.optimizer_steps == 3
        return [p.detach().clone() for p in learner.parameters_in_training]

    for one, eight in zip(learnt(None), learnt(1), strict=True):
        # Adam makes a step of a gradient of 1e-17 (the keys' bias has none) and eps 1e-8.
        assert torch.allclose(one, eight, atol=1e-9, rtol=0)


def test_pieces_of_empty_responses_are_left_out() -> None:
    learner = toy_learner(micro_batch_size=1)
    rollout = toy_rollout(learner, [[2], [0, 2]], [1.0, 2.0])
    rollout.response_ids[0] = -1
    batch = learner.prepare(rollout)
    assert len(list(learner._pieces(batch))) == 1
    assert learner.update_from(batch, None, 1).optimizer_steps == 1


def test_a_piece_knows_the_tokens_of_its_minibatch_and_is_trimmed() -> None:
    learner = toy_learner(micro_batch_size=2)
    batch = learner.prepare(toy_rollout(learner, [[2], [2], [0, 2]], [1.0, 2.0, 3.0]))
    one, two = learner._pieces(batch)
    assert (one.tokens, two.tokens) == (4, 4)
    assert (one.response_ids.shape, two.response_ids.shape) == ((2, 1), (1, 2))


def test_without_a_size_as_many_responses_as_their_logits_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    learner = toy_learner()
    batch = learner.prepare(toy_rollout(learner, RESPONSES, PAYOFFS))
    assert [len(p) for p in learner._pieces(batch)] == [7]
    # Two tokens of three logits of four bytes each: 24 bytes a response.
    monkeypatch.setattr(language_model, "LOGITS_BYTES", 3 * 24 + 5)
    assert [len(p) for p in learner._pieces(batch)] == [3, 3, 1]


@pytest.mark.parametrize("tokens", [1, 2, 5])
def test_logits_that_are_made_again_give_the_same_gradient(
    tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, batch = moved_learner()
    piece = trimmed(batch)

    def gradient() -> Sequence[Tensor | None]:
        loss, _ = learner.loss(learner.score(piece), piece)
        return torch.autograd.grad(loss, learner.parameters_in_training)

    whole = gradient()
    monkeypatch.setattr(language_model, "LOGITS_BYTES", tokens * 3 * 4)
    for a, b in zip(gradient(), whole, strict=True):
        assert a is not None and b is not None and torch.allclose(a, b, atol=1e-12, rtol=0)
