"""From a query and what the agent may read to prompt tokens that fit.

A prompt that is too long loses tokens from the left of the earliest reference, then of the next:
the end of a response is where its answer stands, and the query is never touched.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from cory_env.chat import ChatFrame
from cory_env.records import Query
from cory_env.tasks.base import Task
from cory_env.tokens import TextTokenizer

MOST_KNOWN = 20_000
"""Prompts without an answer in them that are remembered."""


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
    """Builds the prompts of one task for one tokenizer and one length.

    With a frame they are chats: the task's prompt is the last question.
    """

    task: Task
    tokenizer: TextTokenizer
    max_prompt_tokens: int
    frame: ChatFrame | None = None
    _known: dict[tuple[str, Query, int], Prompt] = field(default_factory=dict, repr=False)

    def build(self, role: str, query: Query, references: Sequence[str] = ()) -> Prompt:
        """Return the prompt of a role, its references shortened until it fits.

        Args:
            role: the role of the agent that will write.
            query: the query.
            references: earlier responses that it may read, earliest first.

        Raises:
            ValueError: if it does not fit even with empty references.
        """
        if any(references):
            return self._build(role, query, references)
        # Without an answer in it a prompt is asked for again and again: at every reset, in every
        # pass over the queries, and when it is checked that the query fits.
        key = (role, query, len(references))
        if key not in self._known:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[key] = self._build(role, query, references)
        return self._known[key]

    def _build(self, role: str, query: Query, references: Sequence[str]) -> Prompt:
        kept = list(references)
        dropped = 0
        prompt = self._encode(role, query, kept)
        for index, reference in enumerate(references):
            if len(prompt.ids) <= self.max_prompt_tokens:
                break
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
                f"the prompt of the {role} for query {query.shown} has "
                f"{len(prompt.ids)} tokens without any reference text, more than "
                f"max_prompt_tokens={self.max_prompt_tokens}{self._share_of_frame()}"
            )
        return Prompt(prompt.text, prompt.ids, dropped)

    def _encode(self, role: str, query: Query, references: Sequence[str]) -> Prompt:
        text = self.task.prompt(role, query, references)
        if not isinstance(text, str):
            raise ValueError(
                f"prompt of task {self.task.name!r} must return text, got {type(text).__name__}"
            )
        if self.frame is not None:
            parts = self.frame.parts(text)
            return Prompt("".join(parts), self._quoting(parts, self.frame.own))
        if self.tokenizer.specials.spelled_in(text):
            return Prompt(text, self._quoting(self._plain_parts(role, query, references, text)))
        ids = self._quoting(("", text, ""), self._front)
        if not ids:
            raise ValueError(f"the prompt for query {query.text!r} has no tokens")
        return Prompt(text, ids)

    def _quoting(self, parts: Sequence[str], own: Sequence[int] | None = None) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode_quoting(parts, own))

    def _plain_parts(
        self, role: str, query: Query, references: Sequence[str], text: str
    ) -> tuple[str, ...]:
        """Return a prompt in parts: what the task itself says and what it quotes, in turn.

        The task is asked once more, with signs round the texts that are not its own.
        """
        metadata = {name: value for name, value in query.metadata.items() if isinstance(value, str)}
        begin, end = _unused_signs("".join([text, query.text, *references, *metadata.values()]))
        try:
            marked = self.task.prompt(
                role,
                replace(
                    query,
                    text=_marked(query.text, begin, end),
                    metadata={
                        **query.metadata,
                        **{name: _marked(value, begin, end) for name, value in metadata.items()},
                    },
                ),
                [_marked(reference, begin, end) for reference in references],
            )
        except Exception:  # a task may refuse a text that it does not know
            marked = ""
        parts = re.split(f"{begin}(.*?){end}", marked, flags=re.DOTALL)
        # A task that looks into what it quotes: then nothing that it says is a special token.
        return tuple(parts) if "".join(parts) == text else ("", text, "")

    @cached_property
    def _front(self) -> tuple[int, ...]:
        return self.tokenizer.own_specials(("", "", ""))

    def _share_of_frame(self) -> str:
        if self.frame is None:
            return ""
        tokens = len(self.tokenizer.encode_quoting(self.frame.parts(""), self.frame.own))
        return f" ({tokens} of them are the chat template with system prompt and examples)"

    def _tail(self, ids: list[int]) -> str:
        # A cut inside a character of several bytes would leave a replacement sign in front.
        return self.tokenizer.decode(ids).lstrip("\ufffd")


def _unused_signs(text: str) -> tuple[str, str]:
    """Return two private characters that a text has not."""
    begin, end, *_ = (chr(code) for code in range(0xF0000, 0xFFFFE) if chr(code) not in text)
    return begin, end


def _marked(text: str, begin: str, end: str) -> str:
    """Put signs round a text, inside of white space, which a task may take off."""
    core = text.strip()
    return text.replace(core, f"{begin}{core}{end}", 1) if core else text
