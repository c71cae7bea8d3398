"""Measure a model in the game's two seats by nested sampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from agents.maths.influence import influence_from_scores
from cory_env.records import Query
from tools.build_builtin.sampling import sample

Scorer = Callable[[Sequence[Query], Sequence[str]], Sequence[float]]
Prompter = Callable[[str, Query, Sequence[str]], str]


@dataclass(frozen=True)
class Influence:
    """What the first response does to the second.

    Attributes:
        influence: share of the second score's variance that the first response explains.
        correlation: of r1 with the mean r2, within queries.
        mean_r1: mean score of the first responses.
        mean_r2: mean score of the second responses.
        copies: share of second responses with the same text as the first.
        copies_by_chance: the same, with the first response of another draw of the query.
        gap: mean r2 where r1 is 1 minus that where r1 is 0, over all queries; for 0/1 scores.
        gap_within: the same inside each query that has both, averaged over those.
    """

    influence: float
    correlation: float
    mean_r1: float
    mean_r2: float
    copies: float
    copies_by_chance: float
    gap: float | None
    gap_within: float | None


@dataclass(frozen=True)
class Player:
    """A model with what it needs to play one task by itself.

    Attributes:
        model: the language model, in evaluation mode.
        tokenizer: its tokenizer.
        prompt: the task's `prompt(role, query, earlier_responses)`.
        score: the task's reward.
        max_tokens: longest response, in tokens.
    """

    model: LlamaForCausalLM
    tokenizer: Tokenizer
    prompt: Prompter
    score: Scorer
    max_tokens: int

    def respond(self, texts: Sequence[str], generator: torch.Generator) -> list[str]:
        """Draw one response per prompt text, without special tokens."""
        prompts = [encoding.ids for encoding in self.tokenizer.encode_batch(list(texts))]
        return self.tokenizer.decode_batch(
            [list(ids) for ids in sample(self.model, prompts, self.max_tokens, generator)]
        )

    def mean_score(self, queries: Sequence[Query], generator: torch.Generator) -> float:
        """Average the score of one response per query to the query-only prompt."""
        texts = self.respond([self.prompt("pioneer", q, ()) for q in queries], generator)
        return float(np.mean(self.score(queries, texts)))


def nested(
    player: Player, queries: Sequence[Query], generator: torch.Generator, *, first: int, second: int
) -> Influence:
    """Play `first` first responses to each query and `second` second ones to each of those."""
    firsts_of = [query for query in queries for _ in range(first)]
    answers1 = player.respond([player.prompt("pioneer", q, ()) for q in firsts_of], generator)
    seconds_of = [query for query in firsts_of for _ in range(second)]
    read = [answer for answer in answers1 for _ in range(second)]
    prompts2 = [
        player.prompt("observer", query, (answer,))
        for query, answer in zip(seconds_of, read, strict=True)
    ]
    answers2 = player.respond(prompts2, generator)
    shape = (len(queries), first, second)
    r1 = np.asarray(player.score(firsts_of, answers1), dtype=np.float64).reshape(shape[:2])
    r2 = np.asarray(player.score(seconds_of, answers2), dtype=np.float64).reshape(shape)
    texts1 = np.asarray(answers1, dtype=object).reshape(shape[:2])
    texts2 = np.asarray(answers2, dtype=object).reshape(shape)
    other = np.roll(texts1, 1, axis=1)  # another draw of the same query
    gap, gap_within = _gaps(r1, r2)
    return Influence(
        influence=influence_from_scores(r2),
        correlation=_within_correlation(r1, r2.mean(axis=2)),
        mean_r1=float(r1.mean()),
        mean_r2=float(r2.mean()),
        copies=float((texts2 == texts1[:, :, None]).mean()),
        copies_by_chance=float((texts2 == other[:, :, None]).mean()),
        gap=gap,
        gap_within=gap_within,
    )


def _within_correlation(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    x = x - x.mean(axis=1, keepdims=True)
    y = y - y.mean(axis=1, keepdims=True)
    scale = float(np.sqrt(np.square(x).sum() * np.square(y).sum()))
    return float((x * y).sum()) / scale if scale > 0 else 0.0


def _gaps(r1: NDArray[np.float64], r2: NDArray[np.float64]) -> tuple[float | None, float | None]:
    right = r1 == 1.0
    if not np.isin(r1, (0.0, 1.0)).all() or right.all() or not right.any():
        return None, None
    means = r2.mean(axis=2)
    within = [
        means[q][right[q]].mean() - means[q][~right[q]].mean()
        for q in range(len(r1))
        if right[q].any() and not right[q].all()
    ]
    pooled = float(means[right].mean() - means[~right].mean())
    return pooled, float(np.mean(within)) if within else None
