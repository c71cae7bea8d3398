"""Chat models: the model's own chat template round every prompt.

The template is asked once, when the game is made, with signs in place of the texts. What stands
round the signs is the frame of every prompt. So no query and no response can change how the
template behaves, earlier messages stay what they are, and it is known which characters of a prompt
are the template's and which are quoted: only the template's may become special tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from cory_env.data_files import read_queries
from cory_env.roles import PIONEER
from cory_env.tasks.base import Task
from cory_env.tokens import Message, TextTokenizer

MODES = ("auto", "always", "never")
# Signs for the texts of the messages: private characters, which no template has.
_FIRST_SIGN = 0xE000
# White space round them, and what `strip` with these characters (None: all white space) leaves.
_PADDING = ("\n\t ", " \t\n")
_LEFT = {"\n\t ": "", "\t ": "\n", "": None}
_RIGHT = {" \t\n": "", " \t": "\n", "": None}
_PROBES = ("Is 1 < 2?", "Two lines,\n\nof 'quotes', \"quotes\", {braces} & <marks>.")


@dataclass(frozen=True)
class ChatSettings:
    """How prompts become chats.

    Attributes:
        mode: "auto" uses the tokenizer's chat template where it has one and the task asks something
            (a task whose query is a beginning to be continued gets it as it is); "always"; "never".
        system: text of a system message; None: none, the template may have its own.
        few_shot: questions with their answers, which come before as messages. A question gets the
            task's query-only prompt.
        generation_prompt: text that begins every answer, behind what the template itself puts
            there. It is no part of the response. It may spell out special tokens.
    """

    mode: str = "auto"
    system: str | None = None
    few_shot: tuple[tuple[str, str], ...] = ()
    generation_prompt: str = ""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"chat mode must be one of {list(MODES)}, got {self.mode!r}")
        if not isinstance(self.system, str | None):
            raise ValueError(f"the system prompt must be text or None, got {self.system!r}")
        if not isinstance(self.generation_prompt, str):
            raise ValueError(f"the generation prompt must be text, got {self.generation_prompt!r}")
        pairs: Any = self.few_shot
        if isinstance(pairs, str) or not isinstance(pairs, Sequence):
            raise ValueError(f"few_shot must be pairs of question and answer, got {pairs!r}")
        for pair in pairs:
            texts = isinstance(pair, tuple | list) and all(isinstance(text, str) for text in pair)
            if not texts or len(pair) != 2 or not all(text.strip() for text in pair):
                raise ValueError(
                    f"few_shot must be pairs of question and answer, two texts, got {pair!r}"
                )
        object.__setattr__(self, "few_shot", tuple((pair[0], pair[1]) for pair in pairs))

    @property
    def needs(self) -> str:
        """What of the settings makes no sense without a template, in words; "" if nothing."""
        given = {
            "a system prompt": self.system is not None,
            "few-shot examples": bool(self.few_shot),
            "a generation prompt": bool(self.generation_prompt),
        }
        return " and ".join(name for name, there in given.items() if there)


@dataclass(frozen=True)
class ChatFrame:
    """What stands round the one text that changes from prompt to prompt; see `chat_frame`.

    Attributes:
        before: the template's text and the texts of system prompt and examples in turn, from the
            template's to the template's.
        after: the template's text behind the changing one, with the begin of the answer.
        strips: what the template takes off the text's left and right side: these characters, or
            None for all white space.
        own: the special tokens of the frame, in order.
        turn_end: the token that the template puts behind an answer, or None.
    """

    before: tuple[str, ...]
    after: str
    strips: tuple[str | None, str | None]
    own: tuple[int, ...] = ()
    turn_end: int | None = None

    def parts(self, text: str) -> tuple[str, ...]:
        """Return the prompt in which a text is asked, for `TextTokenizer.encode_quoting`."""
        left, right = self.strips
        return (*self.before, text.lstrip(left).rstrip(right), self.after)


def load_few_shot(path: str | Path) -> tuple[tuple[str, str], ...]:
    """Read examples from a file with `query` and `answer` (.jsonl or .csv).

    Raises:
        ValueError: if it cannot be read, or a line has no answer.
    """
    queries = read_queries(path)
    for query in queries:
        if query.answer is None:
            line = query.metadata.get("line")
            raise ValueError(f"{path}, line {line}: a few-shot example needs an answer")
    return tuple((query.text, str(query.answer)) for query in queries)


def in_use(task: Task, tokenizer: TextTokenizer, settings: ChatSettings) -> bool:
    """Return whether the prompts of a task become chats.

    Raises:
        ValueError: if they do not although a setting needs it.
    """
    if settings.mode == "always" and tokenizer.chat is None:
        raise ValueError(
            "the chat template is asked for (always), and the tokenizer has none (a loaded Hugging "
            "Face tokenizer may have one, a tokenizers.Tokenizer or a folder's path has not)"
        )
    asks = settings.mode == "always" or not task.completion
    if settings.mode != "never" and asks and tokenizer.chat is not None:
        return True
    if settings.needs:
        reason = (
            "it is switched off (never)"
            if settings.mode == "never"
            else "the tokenizer has none"
            if tokenizer.chat is None
            else f"task {task.name!r} lets its queries be continued and uses none unless told "
            f"to (always)"
        )
        raise ValueError(
            f"{settings.needs} cannot be used without the model's chat template, and {reason}"
        )
    return False


def chat_frame(
    task: Task, tokenizer: TextTokenizer, settings: ChatSettings
) -> tuple[TextTokenizer, ChatFrame | None]:
    """Ask the model's chat template once, and check that it does what prompts rely on.

    Returns:
        The tokenizer, which also ends a response with the token that the template puts behind an
        answer, and takes the template's marks for special tokens; and the frame of every prompt, or
        None where none is used (the tokenizer is then the same).

    Raises:
        ValueError: if a setting needs a template that is not used, or the template refuses, drops
            or changes a message.
    """
    if not in_use(task, tokenizer, settings):
        return tokenizer, None
    template = _Template(tokenizer)
    try:
        frame = _checked_frame(template, _messages(task, settings))
        tail = template.behind_answer()
    except ValueError as error:
        if settings.needs:
            raise
        raise ValueError(f'{error}; chat mode "never" goes without it') from error
    end = _turn_end(tokenizer, tail)
    marks = _marks(tokenizer, (*frame.before[::2], frame.after, tail))
    ends = tokenizer.end_ids if end is None else (*tokenizer.end_ids, end)
    specials = replace(
        tokenizer.specials,
        special=tokenizer.specials.special | marks,
        control=tokenizer.specials.control | (marks - tokenizer.specials.special),
    )
    tokenizer = replace(tokenizer, end_ids=tuple(dict.fromkeys(ends)), specials=specials)
    frame = replace(frame, after=frame.after + settings.generation_prompt, turn_end=end)
    return tokenizer, replace(frame, own=tokenizer.own_specials(frame.parts("")))


def _checked_frame(template: _Template, messages: Sequence[Message]) -> ChatFrame:
    _check_prefixes(template, messages)
    frame = _frame(template, messages)
    for probe in _PROBES:
        seen = template.text([*messages[:-1], {**messages[-1], "content": probe}], answer=True)
        if seen != "".join(frame.parts(probe)):
            raise ValueError(
                f"the chat template does more with a message than to quote it: for {probe!r} it "
                f"gives {seen[-200:]!r}"
            )
    return frame


def _messages(task: Task, settings: ChatSettings) -> list[Message]:
    """System prompt, examples, and last a question that stands for all."""
    messages: list[Message] = []
    if settings.system is not None:
        messages.append({"role": "system", "content": settings.system})
    for question, answer in settings.few_shot:
        asked = task.prompt(PIONEER, task.query_from_text(question), ())
        messages.append({"role": "user", "content": asked})
        messages.append({"role": "assistant", "content": answer})
    return [*messages, {"role": "user", "content": _PROBES[0]}]


@dataclass(frozen=True)
class _Template:
    """A tokenizer's template, with errors in one sentence."""

    tokenizer: TextTokenizer

    def text(self, messages: Sequence[Message], *, answer: bool) -> str:
        assert self.tokenizer.chat is not None
        try:
            return self.tokenizer.chat(messages, answer)
        except Exception as error:  # a template may raise what it likes
            reason = " ".join(str(error).split())
            if messages[0]["role"] == "system" and self._works(messages[1:], answer):
                raise ValueError(f"the chat template refuses a system prompt ({reason})") from error
            raise ValueError(f"the chat template cannot be used ({reason})") from error

    def _works(self, messages: Sequence[Message], answer: bool) -> bool:
        assert self.tokenizer.chat is not None
        try:
            self.tokenizer.chat(messages, answer)
        except Exception:  # then it is not the system prompt alone
            return False
        return bool(messages)

    def behind_answer(self) -> str:
        """What the template puts behind an answer."""
        question, answer = chr(_FIRST_SIGN), chr(_FIRST_SIGN + 1)
        chat = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        return self.text(chat, answer=False).rpartition(answer)[2]


def _check_prefixes(template: _Template, messages: Sequence[Message]) -> None:
    """Refuse a template that changes what was said: each prompt must begin with the earlier ones.

    An example's question is a prompt too, which ends where its answer begins.
    """
    whole = template.text(messages, answer=True)
    for k, message in enumerate(messages):
        if message["role"] != "user":
            continue
        earlier = template.text(messages[: k + 1], answer=True)
        if not whole.startswith(earlier):
            raise ValueError(
                f"the chat template changes earlier messages when others follow: the prompt of all "
                f"{len(messages)} does not begin with that of the first {k + 1}, which ends in "
                f"{earlier[-60:]!r}"
            )


def _frame(template: _Template, messages: Sequence[Message]) -> ChatFrame:
    """Find what stands round the messages, by rendering signs in their place."""
    signs = [chr(_FIRST_SIGN + number) for number in range(len(messages))]
    bare = _between(template, messages, signs, ("", ""))
    padded = _between(template, messages, signs, _PADDING)
    lefts: list[str | None] = []
    rights: list[str | None] = []
    for number, (text, seen) in enumerate(zip(bare, padded, strict=True)):
        behind = _RIGHT if number else {"": ""}
        ahead = _LEFT if number < len(signs) else {"": ""}
        fits = [(b, a) for b, a in product(behind, ahead) if b + text + a == seen]
        if not fits:
            raise ValueError(
                f"the chat template does more with a message than to quote it: {seen!r} stands "
                f"where {text!r} was expected"
            )
        rights.append(behind[fits[0][0]])
        lefts.append(ahead[fits[0][1]])
    texts = [
        message["content"].lstrip(left).rstrip(right)
        for message, left, right in zip(messages, lefts[:-1], rights[1:], strict=True)
    ]
    before = [part for pair in zip(bare[:-2], texts[:-1], strict=True) for part in pair]
    frame = ChatFrame((*before, bare[-2]), bare[-1], (lefts[-2], rights[-1]))
    whole = template.text(messages, answer=True)
    if whole != "".join(frame.parts(messages[-1]["content"])):
        lost = next((m for m in messages if m["content"].strip() not in whole), None)
        part = "" if lost is None else f"the {_named(lost)} {lost['content'][:200]!r}"
        raise ValueError(f"the chat template drops or changes a part of {part or 'the messages'}")
    return frame


def _between(
    template: _Template, messages: Sequence[Message], signs: Sequence[str], padding: tuple[str, str]
) -> list[str]:
    """Return the template's text before, between and behind the messages."""
    left, right = padding
    marked = [
        {**message, "content": left + sign + right}
        for message, sign in zip(messages, signs, strict=True)
    ]
    text = template.text(marked, answer=True)
    found = re.findall(f"[{signs[0]}-{signs[-1]}]", text)
    for message, sign in zip(messages, signs, strict=True):
        if found.count(sign) != 1:
            does = "drops" if sign not in found else "repeats"
            raise ValueError(
                f"the chat template {does} the {_named(message)} {message['content'][:200]!r}"
            )
    if found != list(signs):
        raise ValueError("the chat template changes the order of the messages")
    return re.split(f"[{signs[0]}-{signs[-1]}]", text)


def _named(message: Mapping[str, Any]) -> str:
    return {"system": "system prompt", "user": "question", "assistant": "answer"}[message["role"]]


def _turn_end(tokenizer: TextTokenizer, tail: str) -> int | None:
    """Return the added token that follows an answer, with at most white space before it."""
    for token in tokenizer.encoder(tail, False):
        if tokenizer.specials.names.get(token, "").strip():
            return token
        if tokenizer.decode([token]).strip():
            return None
    return None


def _marks(tokenizer: TextTokenizer, texts: Sequence[str]) -> frozenset[int]:
    """Return the added tokens that a template uses as marks; line breaks are none."""
    names = tokenizer.specials.names
    found = (token for text in texts for token in tokenizer.encoder(text, False))
    return frozenset(token for token in found if names.get(token, "").strip())
