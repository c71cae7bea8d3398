"""From a query and what the agent may read to prompt tokens that fit.

A prompt that is too long loses tokens from the left of the earliest reference, then of the next:
the end of a response is where its answer stands, and the query is never touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cory_env.records import Query
from cory_env.tasks.base import Task
from cory_env.tokens import TextTokenizer


@dataclass(frozen=True)
class Prompt:
    """What an agent is conditioned on.

    Attributes:
        text: the prompt's text.
        ids: its tokens.
        dropped_tokens: reference tokens that were cut away.
    """

    text: str
    ids: tuple[int, ...]
    dropped_tokens: int = 0


@dataclass(frozen=True, eq=False)
class PromptBuilder:
    """Builds the prompts of one task for one tokenizer and one length."""

    task: Task
    tokenizer: TextTokenizer
    max_prompt_tokens: int

    def build(self, role: str, query: Query, references: Sequence[str] = ()) -> Prompt:
        """Return the prompt of a role, its references shortened until it fits.

        Args:
            role: the role of the agent that will write.
            query: the query.
            references: earlier responses that it may read, earliest first.

        Raises:
            ValueError: if it does not fit even with empty references.
        """
        kept = list(references)
        dropped = 0
        prompt = self._encode(role, query, kept)
        for index, reference in enumerate(references):
            ids = self.tokenizer.encode(reference)
            cut = 0
            while len(prompt.ids) > self.max_prompt_tokens and cut < len(ids):
                # Shorter text may merge into other tokens, so the whole prompt is encoded again.
                cut = min(len(ids), cut + len(prompt.ids) - self.max_prompt_tokens)
                kept[index] = self._tail(ids[cut:])
                prompt = self._encode(role, query, kept)
            dropped += cut
        if len(prompt.ids) > self.max_prompt_tokens:
            raise ValueError(
                f"the prompt of the {role} for query {query.text[:200]!r} has {len(prompt.ids)} "
                f"tokens without any reference text, more than max_prompt_tokens="
                f"{self.max_prompt_tokens}"
            )
        return Prompt(prompt.text, prompt.ids, dropped)

    def _encode(self, role: str, query: Query, references: Sequence[str]) -> Prompt:
        text = self.task.prompt(role, query, references)
        if not isinstance(text, str):
            raise ValueError(
                f"prompt of task {self.task.name!r} must return text, got {type(text).__name__}"
            )
        ids = tuple(self.tokenizer.encode_prompt(text))
        if not ids:
            raise ValueError(f"the prompt for query {query.text!r} has no tokens")
        return Prompt(text, ids)

    def _tail(self, ids: list[int]) -> str:
        # A cut inside a character of several bytes would leave a replacement sign in front.
        return self.tokenizer.decode(ids).lstrip("\ufffd")
