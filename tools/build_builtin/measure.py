"""Measure a model in the game's two seats by nested sampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from agents.maths.influence import Influence, influence_statistics
from cory_env.records import Query
from tools.build_builtin.sampling import sample

Scorer = Callable[[Sequence[Query], Sequence[str]], Sequence[float]]
Prompter = Callable[[str, Query, Sequence[str]], str]


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
    return influence_statistics(r1, r2, texts1, texts2)
