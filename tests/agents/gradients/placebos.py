"""Batches in which the episodes of a placebo meet each other in every combination.

The runner permutes a batch along one cycle, so a batch is laid along that cycle: each episode is
followed by the one that it reads, or whose scores it is paid.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cory_env.runner import derangement
from tests.agents.gradients.oracle import Oracle
from tests.agents.gradients.toy_game import (
    COEFS,
    Game,
    every_episode,
    expected_gradient,
)

Tables = tuple[NDArray[np.float64], ...]


def covering_cycle(n_letters: int, window: int) -> list[int]:
    """A cycle in which each window of letters stands exactly once (de Bruijn; by Lyndon words)."""
    cycle: list[int] = []
    word = [0]
    while word:
        if window % len(word) == 0:
            cycle += word
        word = (word * window)[:window]
        while word and word[-1] == n_letters - 1:
            word.pop()
        if word:
            word[-1] += 1
    return cycle


def along_the_permutation(n_episodes: int, draw: int) -> list[int]:
    """Episodes in the order in which each is followed by the one it is permuted with.

    Args:
        n_episodes: of the batch; the runner's permutation is one cycle through all of them.
        draw: 0 for the permutation of what is read, 1 for that of the scores.
    """
    rng = np.random.default_rng(0)
    permutation = [derangement(n_episodes, rng) for _ in range(2)][draw]
    order = [0]
    while len(order) < n_episodes:
        order.append(permutation[order[-1]])
    return order


@dataclass(frozen=True)
class Layout:
    """A batch to be played, what each episode weighs, and what should come out."""

    episodes: list[tuple[int, ...]]
    weights: Tensor
    """[B]; they sum to 1."""
    expected: list[Tensor]
    """The gradient of each seat's own objective, the permuted episode held fixed."""

    def gradients(self, game: Game) -> list[Tensor]:
        """Direction in which the update of each seat's agent goes, in expectation."""
        batches = game.play(self.episodes)
        return [-expected_gradient(game.learners[a], batches[a], self.weights) for a in game.order]


def laid(
    episodes: list[tuple[int, ...]], weights: list[Tensor], expected: list[Tensor], draw: int
) -> Layout:
    """Put the places of a cycle where the runner's permutation wants them."""
    order = along_the_permutation(len(episodes), draw)
    number = {episode: place for place, episode in enumerate(order)}
    places = [number[e] for e in range(len(order))]
    return Layout(
        [episodes[p] for p in places], torch.stack(weights).detach()[places].double(), expected
    )


def placebo_sum(oracle: Oracle, tables: Tables) -> Layout:
    """Every episode is paid the others' scores of every episode, once each."""
    plays = every_episode(oracle.n, len(oracle.responses))
    cycle = covering_cycle(len(plays), 2)
    chance = oracle.probability()
    following = [*cycle[1:], cycle[0]]
    weights = [chance[plays[a]] * chance[plays[b]] for a, b in zip(cycle, following, strict=True)]
    scores = oracle.scores(tables)
    expected = [oracle.objective_gradient(s, scores[..., s]) for s in range(oracle.n)]
    return laid([plays[a] for a in cycle], weights, expected, draw=1)


def placebo_transfer(oracle: Oracle, tables: Tables) -> Layout:
    """Every response of the seats before the last, beside every one that may be read instead."""
    return (_transfer_of_two if oracle.n == 2 else _transfer_of_three)(oracle, tables)


def _transfer_of_two(oracle: Oracle, tables: Tables) -> Layout:
    n_responses = len(oracle.responses)
    turn = covering_cycle(n_responses, 2)
    cycle = turn * n_responses  # once for each a2
    first = oracle.says[0].logps.sum(-1).exp()  # [R]
    second = oracle.says[1].logps.sum(-1).exp()  # [R, R]: what is read, what is said
    episodes, weights = [], []
    for place, a1 in enumerate(cycle):
        read, a2 = cycle[(place + 1) % len(cycle)], place // len(turn)
        episodes.append((a1, a2))
        weights.append(first[a1] * first[read] * second[read, a2])
    total = oracle.scores(tables).sum(-1)  # of the own episode, [a1, a2]
    reward = torch.einsum("a,r,rb,ab->", first, first.detach(), second, total)
    costs = [oracle.says[seat].kl.sum(-1) for seat in range(2)]
    kls = [
        torch.einsum("a,a->", first, costs[0]),
        torch.einsum("r,rb,rb->", first.detach(), second, costs[1]),
    ]
    expected = _gradients(oracle, reward, kls)
    return laid(episodes, weights, expected, draw=0)


def _transfer_of_three(oracle: Oracle, tables: Tables) -> Layout:
    # Letters are (a1, a2): the episode's own, then those that it reads. The a2 that is read was
    # said to a third episode's a1, which nothing here sees: only its marginal q counts.
    n_responses = len(oracle.responses)
    letters = every_episode(2, n_responses)
    turn = covering_cycle(len(letters), 2)
    cycle = turn * n_responses  # once for each a3
    first, second, third = (says.logps.sum(-1).exp() for says in oracle.says)
    q = torch.einsum("c,cx->x", first, second).detach()
    episodes, weights = [], []
    for place, letter in enumerate(cycle):
        (a1, a2), a3 = letters[letter], place // len(turn)
        b1, b2 = letters[cycle[(place + 1) % len(cycle)]]
        episodes.append((a1, a2, a3))
        said = first[a1] * second[b1, a2] * third[b1, b2, a3]
        weights.append(said * first[b1] * q[b2])
    read = torch.einsum("b,x->bx", first.detach(), q)
    chance = torch.einsum("a,bx,bd,bxe->bxade", first, read, second, third)
    reward = torch.einsum("bxade,ade->", chance, oracle.scores(tables).sum(-1))
    costs = [says.kl.sum(-1) for says in oracle.says]
    kls = [
        torch.einsum("bxade,a->", chance, costs[0]),
        torch.einsum("bxade,bd->", chance, costs[1]),
        torch.einsum("bxade,bxe->", chance, costs[2]),
    ]
    return laid(episodes, weights, _gradients(oracle, reward, kls), draw=0)


def _gradients(oracle: Oracle, reward: Tensor, kls: list[Tensor]) -> list[Tensor]:
    coefs = [COEFS[agent] for agent in oracle.order]
    return [oracle.gradient(s, reward - coefs[s] * kls[s]) for s in range(oracle.n)]
