"""Every batch of independently drawn episodes of one query, through the learner's real code."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from agents.bridge.learner import trimmed
from agents.rollout import Rollout
from tests.agents.gradients.oracle import Oracle
from tests.agents.gradients.toy_game import Game, every_episode, model_gradient, rows_of, score

Change = Callable[[str, Rollout, tuple[int, ...]], Rollout]


def groups_of(oracle: Oracle, size: int) -> Iterator[tuple[tuple[int, ...], float]]:
    """Every group of episodes, and its probability."""
    chance = oracle.probability().detach().flatten().tolist()
    for rows in itertools.product(range(len(chance)), repeat=size):
        weight = 1.0
        for row in rows:
            weight *= chance[row]
        yield rows, weight


def unchanged(agent: str, rollout: Rollout, rows: tuple[int, ...]) -> Rollout:
    """The rollout as it is."""
    return rollout


def group_gradients(
    game: Game,
    oracle: Oracle,
    size: int,
    *,
    change: Change = unchanged,
    groups: Sequence[tuple[tuple[int, ...], float]] | None = None,
) -> list[Tensor]:
    """Direction of each seat's update with groups of a size, in expectation.

    A group is a batch: it goes through `prepare_team` and `loss`, whose divisor, the tokens of the
    batch, is multiplied away.

    Args:
        game: of two agents or one.
        oracle: of the same game.
        size: G.
        change: what is to be put in place in the rollout of a group, by agent and rows.
        groups: rows and weights; None: all that `oracle` knows.
    """
    rollouts = game.watch(every_episode(oracle.n, len(oracle.responses)))
    scored = {agent: score(game.learners[agent], rollouts[agent]) for agent in game.order}
    totals = {agent: torch.zeros((), dtype=torch.float64) for agent in game.order}
    kind = type(game.learners[game.order[0]])
    for rows, weight in groups_of(oracle, size) if groups is None else groups:
        index = torch.tensor(rows)
        parts = {
            agent: change(
                agent, replace(rollouts[agent].select(index), group=torch.zeros_like(index)), rows
            )
            for agent in game.order
        }
        for agent, prepared in kind.prepare_team(game.learners, parts).items():
            learner = game.learners[agent]
            if not len(prepared):
                continue  # nothing to learn from
            part = trimmed(learner.minibatch(prepared))
            # The number of an episode is its row among all.
            now = rows_of(scored[agent], part.episode, part.response_ids.shape[1])
            loss, _ = learner.loss(now, part)
            totals[agent] = totals[agent] + weight * loss * part.tokens / size
    return [-model_gradient(game.learners[agent], totals[agent]) for agent in game.order]
