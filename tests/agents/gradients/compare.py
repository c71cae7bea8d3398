"""Both sides beside each other."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.agents.gradients.oracle import Oracle
from tests.agents.gradients.toy_game import Game, every_episode, expected_gradient


def gradients(game: Game, oracle: Oracle) -> list[Tensor]:
    """Direction in which the update of each seat's agent goes, in expectation.

    All episodes of the game are played, and each weighs as much as it is probable.
    """
    weights = oracle.probability().detach().flatten()
    batches = game.play(every_episode(oracle.n, len(oracle.responses)))
    return [-expected_gradient(game.learners[a], batches[a], weights) for a in game.order]


def assert_equal(got: Tensor, expected: Tensor) -> None:
    """To 1e-10 in each coordinate; the gradients compared here have norms around 1."""
    assert torch.allclose(got, expected, atol=1e-10, rtol=0), (got - expected).abs().max()
