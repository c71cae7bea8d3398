"""A toy task with a known optimum: name the goal letter.

A query is two letters of a..f, such as `a d`. A response scores 1.0 if its first word is the goal
letter, else 0.0. The goal is the first letter of the query, in both seats, and both seats see the
query, so each can reach the optimum of 1.0 alone. Responses have up to three tokens: after the
first word two are free.

Chance levels: an agent that writes a random letter scores 1/6. A uniformly random policy over the
twelve tokens scores 7/64 (about 0.11): the first token is the goal with probability 1/12; three of
the tokens (pad, begin, unknown) leave no text, so with probability 1/4 the next one decides: 1/12
(1 + 1/4 + 1/16).

**The influence knob.** A share `kappa` of the queries is *hidden*. There the pioneer's goal stays
the first letter, but an observer is judged by the *second*, and its prompt shows `? ?` instead of
the letters. So it can do better than chance only with what the pioneer wrote. The pioneer sees both
letters, and its two free tokens can carry the second: cheap talk, worth the trouble only to a
pioneer that is paid for the observer's score. With such talk the optimum is 1.0 in both seats for
every kappa; without it (or without knowledge transfer) an observer can score no more than
(1 - kappa) + kappa/6 in the mean.

Splits: there are only 36 pairs of letters, so each split repeats them all (train 10 times,
validation and test 3 times) with its own choice of hidden queries. What is held out is that choice,
not the pairs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, processors

from cory_env.records import Query
from cory_env.rewards.base import RewardSpec
from cory_env.roles import PIONEER
from cory_env.tasks.base import Task, check_split
from cory_env.tokens import TextTokenizer, as_tokenizer

LETTERS = ("a", "b", "c", "d", "e", "f")
SPECIALS = ("<pad>", "<s>", "</s>", "<unk>")
VOCABULARY = (*SPECIALS, "?", "|", *LETTERS)
REPEATS = {"train": 10, "validation": 3, "test": 3}


class TargetTask(Task):
    """Name the goal letter; the module's docstring has optimum, chance and influence knob."""

    name = "target"
    default_model = "builtin:target"
    default_reward = "target"
    completion = True
    # `<s> a d |` and, for each of two earlier responses, three words and ` |`.
    max_prompt_tokens = 12
    max_response_tokens = 3
    # A model of random weights has to be moved far: large steps, and little weight on the KL.
    training_defaults: Mapping[str, float | int | str] = {
        "learning_rate": 3e-3,
        "kl_coef": 0.01,
        "iterations": 20,
    }

    def __init__(
        self,
        *,
        kappa: float = 0.0,
        data: str | Path | None = None,
        reward: RewardSpec | None = None,
    ) -> None:
        """Fix the share of hidden queries.

        Args:
            kappa: share in [0, 1] of each split's queries that are hidden from observers.
            data: file with own queries (pairs of letters a..f), or None.
            reward: instead of the first-letter score.

        Raises:
            ValueError: if kappa is not in [0, 1] or the reward cannot be read.
        """
        if not 0.0 <= kappa <= 1.0:
            raise ValueError(f"kappa must be in [0, 1], got {kappa!r}")
        super().__init__(data=data, reward=reward)
        self.kappa = float(kappa)

    def queries(self, split: str) -> list[Query]:
        """Return the split's pairs of letters; `metadata["hidden"]` says which are hidden.

        They stand in the order of a hash, so that the first n are a fair sample. Which are hidden
        depends on split, place and kappa only; those hidden at a smaller kappa stay hidden at a
        larger one.
        """
        check_split(split)
        if self.data is None:
            texts = [f"{a} {b}" for a, b in product(LETTERS, LETTERS)] * REPEATS[split]
        else:
            texts = [query.text for query in self.user_queries(split)]
        hidden = set(_shuffled("hidden", split, len(texts))[: round(self.kappa * len(texts))])
        return [
            replace(self.query_from_text(texts[i]), metadata={"index": i, "hidden": i in hidden})
            for i in _shuffled("order", split, len(texts))
        ]

    def query_from_text(self, text: str) -> Query:
        """Make a query, not hidden, of two letters.

        Raises:
            ValueError: if the text is something else.
        """
        words = text.split()
        if len(words) != 2 or not set(words) <= set(LETTERS):
            raise ValueError(f"a query of 'target' must be two letters of a..f, got {text!r}")
        return Query(" ".join(words), answer=words[0], metadata={"hidden": False})

    def prompt(self, role: str, query: Query, earlier_responses: Sequence[str]) -> str:
        """Return `a d |` (`? ? |` if hidden), then each earlier response followed by ` |`."""
        shown = "? ?" if _hidden_from(role, query) else query.text
        return " ".join([shown, "|", *(f"{text} |".strip() for text in earlier_responses)])

    def scored_query(self, role: str, query: Query) -> Query:
        """Return the query with the role's goal letter as its answer."""
        if not _hidden_from(role, query):
            return query
        return replace(query, answer=query.text.split()[1])

    def tokenizer(self) -> TextTokenizer:
        """Return the twelve-word tokenizer: letters, `?`, `|` and the special tokens."""
        return letter_tokenizer()


@lru_cache(maxsize=1)
def letter_tokenizer() -> TextTokenizer:
    """Build the tokenizer: words at spaces, `<s>` in front of a prompt, `</s>` ends a response."""
    ids = {word: token for token, word in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(list(SPECIALS))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", ids["<s>"])]
    )
    return as_tokenizer(tokenizer, end_ids=(ids["</s>"],))


def _hidden_from(role: str, query: Query) -> bool:
    return role != PIONEER and bool(query.metadata.get("hidden", False))


def _shuffled(purpose: str, split: str, n: int) -> list[int]:
    return sorted(
        range(n), key=lambda i: hashlib.sha256(f"target/{purpose}/{split}/{i}".encode()).digest()
    )
