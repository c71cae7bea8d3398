"""What later agents would have answered, had they not read a response: the game once more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from agents.bridge.policy import TeamPolicy
from cory_env.records import EpisodeRecord
from cory_env.rewards.base import score_batch
from cory_env.rules import GameRules
from cory_env.tokens import pad_left


@dataclass
class Extra:
    """Work of an iteration beside its episodes."""

    responses: int = 0
    """Drawn and scored beside those of the episodes."""
    tokens: int = 0
    """Drawn beside those of the episodes; negative where episodes share a response."""


@dataclass
class Replay:
    """Plays the turns after a seat again without its response, with the same random numbers.

    With the same numbers the answer to the changed prompt is as close to the real one as the policy
    allows, so the difference of the scores is what the response did, with little noise.
    """

    rules: GameRules
    policy: TeamPolicy
    extra: Extra = field(default_factory=Extra)
    """What the replays have cost since it was last cleared."""

    def contributions(
        self, records: Sequence[EpisodeRecord], seat: int, weights: Mapping[int, float]
    ) -> NDArray[np.float64]:
        """What later seats would have contributed to a seat's payoffs, [E].

        Args:
            records: the finished episodes of the iteration, in order.
            seat: whose response nobody reads.
            weights: of later seats' scores in its payoff; the others' scores are not needed.
        """
        total = np.zeros(len(records))
        if not any(weights.values()):
            return total
        read = [[turn.response for turn in record.turns[:seat]] for record in records]
        for later in range(seat + 1, max(s for s, w in weights.items() if w) + 1):
            texts = self._answers(records, later, read)
            for known, text in zip(read, texts, strict=True):
                known.append(text)
            if weights.get(later, 0.0):
                total += weights[later] * self._scores(records, later, texts)
        return total

    def _answers(
        self, records: Sequence[EpisodeRecord], seat: int, read: Sequence[Sequence[str]]
    ) -> list[str]:
        """Texts of a seat's answers to what it reads now."""
        rules = self.rules
        prompts = np.stack(
            [
                pad_left(
                    rules.prompts.build(rules.roles[seat], record.query, tuple(known)).ids,
                    rules.observation_width,
                )
                for record, known in zip(records, read, strict=True)
            ]
        )
        agent = records[0].turns[seat].agent
        uniforms = self.policy.uniforms(seat, np.arange(len(records)))
        sampled, _ = self.policy.policies[agent].respond(prompts, uniforms)
        rows = [[t for t in row if t >= 0] for row in sampled.response_ids.tolist()]
        self.extra.responses += len(rows)
        self.extra.tokens += sum(len(row) for row in rows)
        ends = rules.tokenizer.end_ids
        return [
            rules.tokenizer.decode(row[:-1] if row and row[-1] in ends else row) for row in rows
        ]

    def _scores(
        self, records: Sequence[EpisodeRecord], seat: int, texts: Sequence[str]
    ) -> NDArray[np.float64]:
        task, role = self.rules.task, self.rules.roles[seat]
        queries = [task.scored_query(role, record.query) for record in records]
        return score_batch(self.rules.reward, queries, texts).scores
