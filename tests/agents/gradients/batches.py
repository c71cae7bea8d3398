"""Batches of several responses of one agent, where the divisor is a statistic of the batch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from agents.bridge.learner import trimmed
from agents.learners import PPO
from agents.rollout import Rollout
from tests.agents.gradients.oracle import Oracle
from tests.agents.gradients.toy_game import (
    COEFS,
    Game,
    every_episode,
    model_gradient,
    rows_of,
    score,
)


def batches_of(oracle: Oracle, size: int) -> Iterator[tuple[tuple[int, ...], float]]:
    """Every batch of independently drawn responses, and its probability."""
    chance = oracle.probability().detach().tolist()
    for rows in itertools.product(range(len(chance)), repeat=size):
        weight = 1.0
        for row in rows:
            weight *= chance[row]
        yield rows, weight


def batch_gradient(learner: PPO, rollout: Rollout) -> Tensor:
    """Gradient of the learner's loss on a batch as one minibatch."""
    batch = trimmed(learner.minibatch(learner.prepare(rollout)))
    return model_gradient(learner, learner.loss(score(learner, batch), batch)[0])


def expected_batch_gradient(game: Game, oracle: Oracle, size: int) -> Tensor:
    """Direction of the update with batches of a size, in expectation; `prepare` sees each batch."""
    game.play(every_episode(1, len(oracle.responses)))
    learner = game.learners["agent_0"]
    rollout = game.team.rollouts["agent_0"]
    scored = score(learner, rollout)
    total = torch.zeros((), dtype=torch.float64)
    for rows, weight in batches_of(oracle, size):
        index = torch.tensor(rows)
        part = trimmed(learner.minibatch(learner.prepare(rollout.select(index))))
        loss, _ = learner.loss(rows_of(scored, index, part.response_ids.shape[1]), part)
        total = total + weight * loss
    return -model_gradient(learner, total)


class Tokens:
    """The formula of the loss on any batch, token by token in plain numbers.

    The update is linear in the gradients of each token's log-prob and of its KL in the loss, so a
    batch is two tables of coefficients, [R, T] each.
    """

    def __init__(self, oracle: Oracle, payoffs: Tensor, estimator: str) -> None:
        """Take the numbers of each token: one agent, lambda 1 and the oracle's critic."""
        self.oracle = oracle
        self.lengths = oracle.lengths.tolist()
        self.advantages = oracle.advantages(0, payoffs, estimator=estimator).tolist()
        self.in_loss = oracle.penalty(0, estimator)[1]

    def coefficients(
        self, rows: Sequence[int], whiten: bool, over: Sequence[int] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Of the log-probs and of the KL, for one minibatch.

        Args:
            rows: its responses.
            whiten: shift by the mean and divide by the deviation.
            over: the responses they are taken of; None: those of the minibatch.
        """
        mean, sigma = 0.0, 1.0
        if whiten:
            seen = [a for r in (over or rows) for a in self.advantages[r][: self.lengths[r]]]
            mean = sum(seen) / len(seen)
            if max(seen) > min(seen):
                squares = sum((a - mean) ** 2 for a in seen)
                sigma = (squares / (len(seen) - 1) + 1e-8) ** 0.5
        count = sum(self.lengths[r] for r in rows)
        of_logps = torch.zeros(len(self.lengths), self.oracle.longest, dtype=torch.float64)
        of_kl = torch.zeros_like(of_logps)
        for r in rows:
            for t in range(self.lengths[r]):
                of_logps[r, t] += (self.advantages[r][t] - mean) / sigma / count
                of_kl[r, t] -= COEFS[0] / sigma / count
        return of_logps, of_kl

    def _gradient(self, of_logps: Tensor, of_kl: Tensor) -> Tensor:
        value = (of_logps * self.oracle.says[0].logps).sum() + (of_kl * self.in_loss).sum()
        return self.oracle.gradient(0, value)

    def gradient_of(
        self, rows: Sequence[int], *, whiten: bool, over: Sequence[int] | None = None
    ) -> Tensor:
        """Direction of the update on one minibatch."""
        return self._gradient(*self.coefficients(rows, whiten, over))

    def expected(self, size: int, *, whiten: bool) -> Tensor:
        """The mean over all batches of a size."""
        parts = [
            (weight * a, weight * b)
            for rows, weight in batches_of(self.oracle, size)
            for a, b in [self.coefficients(rows, whiten)]
        ]
        sums = [torch.stack(list(column)).sum(0) for column in zip(*parts, strict=True)]
        return self._gradient(sums[0], sums[1])
