"""Drawn episodes agree with the enumerated gradient, and learners with a fault in them do not.

The other files weigh all episodes with their probability, so they never ask whether the sampler
draws with that probability. Here the policies draw from their own streams, with a fixed seed. The
test of each coordinate of the gradient is z = (mean - expected) / standard error, and the bound on
the largest is Bonferroni's: right code passes it with probability above 0.999.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from statistics import NormalDist

import pytest
import torch
from torch import Tensor

from tests.agents.gradients.oracle import oracle_of
from tests.agents.gradients.planting import FAULTS, no_fault
from tests.agents.gradients.toy_game import (
    Game,
    episode_losses,
    make_game,
    model_gradient,
    score_tables,
)

N_EPISODES = 2000


@dataclass(frozen=True)
class Drawn:
    game: Game
    counts: Counter[tuple[int, ...]]
    expected: list[Tensor]
    """The enumerated gradient of each seat's own objective."""


@pytest.fixture(scope="module")
def drawn() -> Drawn:
    # The pioneer's words matter for what the observer scores, so there is something to drop.
    first, second = score_tables(2, 7)
    tables = (first, second + 2.0 * first[:, None])
    game = make_game("cory", n_agents=2, tables=tables)
    for learner in game.learners.values():  # an arbitrary critic is right too, but noisy
        torch.nn.init.zeros_(learner.actor.value_head.weight)
        torch.nn.init.zeros_(learner.actor.value_head.bias)
    prepared, said = game.draw(N_EPISODES)
    counts = Counter(said)
    # Equal episodes were recorded equally, so below each is computed once and counted.
    kinds = list(counts)
    once = game.play(kinds)
    for agent, batch in prepared.items():
        rows = torch.tensor([kinds.index(episode) for episode in said])
        assert torch.allclose(batch.logprobs, once[agent].logprobs[rows], atol=1e-10)
        assert torch.allclose(batch.advantages, once[agent].advantages[rows], atol=1e-10)
    oracle = oracle_of(2)
    total = oracle.scores(tables).sum(-1)
    return Drawn(game, counts, [oracle.objective_gradient(seat, total) for seat in range(2)])


def largest_z(drawn: Drawn, seat: int) -> float:
    """The largest deviation of a coordinate of the mean gradient, in standard errors."""
    kinds = list(drawn.counts)
    agent = drawn.game.order[seat]
    learner = drawn.game.learners[agent]
    losses = episode_losses(learner, drawn.game.play(kinds)[agent])
    each = -torch.stack([model_gradient(learner, loss, retain=True) for loss in losses])
    shares = torch.tensor([drawn.counts[k] for k in kinds], dtype=torch.float64) / N_EPISODES
    mean = (shares.unsqueeze(-1) * each).sum(0)
    variance = (shares.unsqueeze(-1) * (each - mean) ** 2).sum(0) * N_EPISODES / (N_EPISODES - 1)
    error = (variance / N_EPISODES).sqrt()
    difference = (mean - drawn.expected[seat]).abs()
    fixed = error < 1e-12  # a weight that no episode moves
    assert bool((difference[fixed] < 1e-10).all())
    return float((difference[~fixed] / error[~fixed]).max())


def bound(drawn: Drawn) -> float:
    """Of the largest of all coordinates of both seats."""
    coordinates = sum(len(gradient) for gradient in drawn.expected)
    return NormalDist().inv_cdf(1 - 0.001 / (2 * coordinates))


def test_the_code_as_it_is_is_accepted(drawn: Drawn) -> None:
    with no_fault(drawn.game):
        for seat in range(2):
            assert largest_z(drawn, seat) < bound(drawn)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_rejected(drawn: Drawn, fault: str) -> None:
    with FAULTS[fault](drawn.game):
        assert max(largest_z(drawn, seat) for seat in range(2)) > bound(drawn)
