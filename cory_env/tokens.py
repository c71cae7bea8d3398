"""Tokenizers of any make behind one small interface, and the shapes of token arrays.

V is the vocabulary size (largest token id + 1). Padding is -1, never a token id, because many
tokenizers use their end token as padding.

Special tokens come from templates only. A query or a response may spell one out ("<|im_end|>"); it
then stays the text that it is, and becomes ordinary tokens.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from cory_env.special_tokens import SpecialTokens

PAD = -1
END_NAMES = ("</s>", "<|endoftext|>", "<eos>", "<|im_end|>")
# SentencePiece writes a word's leading space as this sign, and its decoders drop it at the very
# front.
_SPACE_SIGN = "\u2581"
# A letter and a sign that hardly any vocabulary has.
_STRANGE_TEXT = "\ua66e \U0010fffd"

Message = Mapping[str, str]
"""One turn of a chat: its `role` ("system", "user" or "assistant") and its `content`."""


@dataclass(frozen=True, eq=False)
class TextTokenizer:
    """What the game needs of a tokenizer; build one with `as_tokenizer`.

    Attributes:
        vocab_size: V, the largest token id + 1.
        end_ids: the tokens that end a response; at least one.
        backend: the tokenizer it was made from.
        encoder: (text, with special tokens) -> token ids.
        decoder: token ids -> text without special tokens.
        piece: token id -> its name in the vocabulary, or None.
        chat: (messages, whether an answer shall follow) -> their text by the model's own chat
            template; None where the tokenizer has none.
        specials: the tokens that no query and no response may become.
    """

    vocab_size: int
    end_ids: tuple[int, ...]
    backend: Any
    encoder: Callable[[str, bool], list[int]]
    decoder: Callable[[list[int]], str]
    piece: Callable[[int], str | None]
    chat: Callable[[Sequence[Message], bool], str] | None = None
    specials: SpecialTokens = field(default_factory=SpecialTokens)

    def __post_init__(self) -> None:
        if not self.end_ids:
            raise ValueError(
                "tokenizer must have an end-of-sequence token (or give end_ids), got one without"
            )
        if not all(0 <= token < self.vocab_size for token in self.end_ids):
            raise ValueError(
                f"end_ids must lie in [0, {self.vocab_size - 1}], got {list(self.end_ids)}"
            )

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, none of them special even if the text spells one out."""
        ids = self.encoder(text, False)
        if not self.specials.among(ids) and not self.specials.spelled_in(text):
            return ids
        return self._encode_quoted(("", text, ""), (), prompt=False)

    def encode_prompt(self, text: str) -> list[int]:
        """Return the tokens of a prompt, to be continued by a response.

        The tokenizer's own tokens at the front (a begin token, say) are there exactly once, even if
        the text spells them out; an end token that it puts behind is not: the response comes there.
        """
        plain = self.encoder(text, False)
        if not self._adds_tokens:
            return plain
        full = self.encoder(text, True)
        extra = len(full) - len(plain)
        behind = 1 if extra and full[-1] in self.end_ids and full[extra - 1 : -1] == plain else 0
        front = full[: extra - behind]
        if front and plain[: len(front)] == front:
            return plain
        return full[: len(full) - behind]

    def encode_quoting(self, parts: Sequence[str], own: Sequence[int] | None = None) -> list[int]:
        """Return the tokens of a prompt that quotes texts which others wrote.

        They are those of `encode_prompt`, except where a quoted text spells out a special token:
        its name is then cut in two, and each half is encoded by itself.

        Args:
            parts: the template's own text and quoted text in turn: the first, third, ... part is
                the template's.
            own: special tokens of the prompt without the quoted texts, in order; None: found here.

        Raises:
            ValueError: if the tokenizer makes a special token of an ordinary text.
        """
        ids = self.encode_prompt("".join(parts))
        if own is None:
            own = self.own_specials(parts)
        spelled = any(map(self.specials.spelled_in, parts[1::2]))
        if self.specials.among(ids) == tuple(own) and not spelled:
            return ids
        return self._encode_quoted(parts, own, prompt=True)

    def own_specials(self, parts: Sequence[str]) -> tuple[int, ...]:
        """Return the special tokens of a prompt whatever it quotes; for `parts` see above."""
        return self.specials.among(self.encode_prompt(" ".join(filter(None, parts[::2]))))

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of tokens, without special tokens and with its leading space."""
        tokens = [int(token) for token in ids if token not in self.specials.control]
        text = self.decoder(tokens)
        first = self.piece(tokens[0]) if tokens else None
        lost_space = first is not None and first.startswith(_SPACE_SIGN) and text[:1] != " "
        return " " + text if lost_space else text

    @cached_property
    def _adds_tokens(self) -> bool:
        return bool(self.encoder("", True))

    def _encode_quoted(
        self, parts: Sequence[str], own: Sequence[int], *, prompt: bool
    ) -> list[int]:
        text = "".join(parts)
        ends = list(accumulate(map(len, parts)))
        spans = list(zip(ends[::2], ends[1::2], strict=False))
        # The second try is for names that only a tokenizer's normaliser sees in the text.
        for cuts in (self.specials.cuts(text, spans), _everywhere(spans)):
            ids = self._encode_pieces(text, cuts, prompt=prompt)
            found = self.specials.among(ids)
            if found == tuple(own):
                return ids
        raise ValueError(
            f"tokenizer makes special tokens of ordinary text: expected {list(own)}, got "
            f"{list(found)} for {text[:200]!r}"
        )

    def _encode_pieces(self, text: str, cuts: Iterable[int], *, prompt: bool) -> list[int]:
        bounds = [0, *sorted({cut for cut in cuts if 0 < cut < len(text)}), len(text)]
        first, *others = [text[start:end] for start, end in pairwise(bounds)]
        ids = list(self.encode_prompt(first) if prompt else self.encoder(first, False))
        for piece in others:
            ids += self._continued(piece)
        return ids

    def _continued(self, piece: str) -> list[int]:
        """Encode what stands behind other text: no space is put before it, as at a front."""
        line = self.encoder("\n", False)
        both = self.encoder("\n" + piece, False)
        return both[len(line) :] if both[: len(line)] == line else self.encoder(piece, False)


def _everywhere(spans: Sequence[tuple[int, int]]) -> Iterator[int]:
    for begin, stop in spans:
        yield from range(begin, stop + 1)


def as_tokenizer(source: Any, *, end_ids: Sequence[int] | None = None) -> TextTokenizer:
    """Make a `TextTokenizer` of whatever the user has.

    Args:
        source: a `TextTokenizer`; a `tokenizers.Tokenizer`; a folder with `tokenizer.json` and
            `tokenizer_config.json`; or a Hugging Face tokenizer object, slow or fast.
        end_ids: tokens that end a response, instead of the tokenizer's own.

    Raises:
        ValueError: if there is no such folder, no end token, or it is something else.
    """
    ends = None if end_ids is None else tuple(int(token) for token in end_ids)
    if isinstance(source, TextTokenizer):
        if ends is None:
            return source
        return replace(source, end_ids=ends)
    if isinstance(source, Tokenizer):
        return _from_tokenizers(source, ends if ends is not None else _named_ends(source))
    if isinstance(source, str | Path):
        return _from_folder(Path(source), ends)
    if callable(source) and callable(getattr(source, "decode", None)):
        return _from_hugging_face(source, ends)
    raise ValueError(
        "tokenizer must be a tokenizers.Tokenizer, a Hugging Face tokenizer or a folder, "
        f"got {type(source).__name__}"
    )


@dataclass(frozen=True, eq=False)
class _Fast:
    """Calls into a `tokenizers.Tokenizer`; a class, so that it can be pickled."""

    tokenizer: Tokenizer

    def encode(self, text: str, special: bool) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=special).ids)

    def decode(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def piece(self, token: int) -> str | None:
        name: str | None = self.tokenizer.id_to_token(token)
        return name


@dataclass(frozen=True, eq=False)
class _HuggingFace:
    """Calls into a Hugging Face tokenizer, known only by what it can do."""

    tokenizer: Any
    decode_options: dict[str, bool]

    def encode(self, text: str, special: bool) -> list[int]:
        encoded = self.tokenizer(text, add_special_tokens=special)
        return [int(token) for token in encoded["input_ids"]]

    def decode(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True, **self.decode_options))

    def piece(self, token: int) -> str | None:
        convert = getattr(self.tokenizer, "convert_ids_to_tokens", None)
        return None if convert is None else convert(token)

    def chat(self, messages: Sequence[Message], answer_follows: bool) -> str:
        options: dict[str, Any] = {}
        source = self.tokenizer.chat_template
        if isinstance(source, str) and "strftime_now" in source:
            options["chat_template"] = _FIXED_DATE + source
        text = self.tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            tokenize=False,
            add_generation_prompt=answer_follows,
            **options,
        )
        return str(text)


# Templates that tell the model the date would make a run's prompts those of one day. The day is the
# one that Llama 3 falls back on. A macro, since the library lets no function of ours in.
_FIXED_DATE = (
    "{%- macro strftime_now(form) -%}{{ form"
    + "".join(
        f"|replace('{sign}', '{value}')"
        for sign, value in (
            ("%d", "26"),
            ("%m", "07"),
            ("%b", "Jul"),
            ("%B", "July"),
            ("%Y", "2024"),
            ("%y", "24"),
            ("%A", "Friday"),
            ("%a", "Fri"),
            ("%H", "12"),
            ("%M", "00"),
            ("%S", "00"),
        )
    )
    + " }}{%- endmacro -%}"
)


def _from_tokenizers(tokenizer: Tokenizer, end_ids: tuple[int, ...]) -> TextTokenizer:
    if tokenizer.padding is not None or tokenizer.truncation is not None:
        # Either would silently change a prompt; the user's own object is left as it is.
        tokenizer = Tokenizer.from_str(tokenizer.to_str())
        tokenizer.no_padding()
        tokenizer.no_truncation()
    backend = _Fast(tokenizer)
    size = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
    made = TextTokenizer(size, end_ids, tokenizer, backend.encode, backend.decode, backend.piece)
    return _with_added(made, tokenizer.get_added_tokens_decoder())


def _with_added(tokenizer: TextTokenizer, added: Mapping[int, Any]) -> TextTokenizer:
    """Tell a tokenizer of its added tokens, id -> one with `content` and `special`."""
    special = frozenset(token for token, entry in added.items() if entry.special)
    try:
        unknown = special.intersection(tokenizer.encoder(_STRANGE_TEXT, False))
    except Exception:  # a vocabulary without such a token refuses the text
        unknown = frozenset()
    names = {token: str(entry.content) for token, entry in added.items()}
    return replace(tokenizer, specials=SpecialTokens(names, special, unknown))


def _named_ends(tokenizer: Tokenizer) -> tuple[int, ...]:
    found = (tokenizer.token_to_id(name) for name in END_NAMES)
    return tuple(token for token in found if token is not None)


def _from_folder(folder: Path, end_ids: tuple[int, ...] | None) -> TextTokenizer:
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise ValueError(
            f"tokenizer must be an object or a folder with tokenizer.json, got {str(folder)!r} "
            "(a hub name is not looked up here: pass the loaded tokenizer)"
        )
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises no other kind
        raise ValueError(f"tokenizer {file} cannot be read ({error})") from error
    if end_ids is None:
        end_ids = _configured_end(folder, tokenizer) or _named_ends(tokenizer)
    return _from_tokenizers(tokenizer, end_ids)


def _configured_end(folder: Path, tokenizer: Tokenizer) -> tuple[int, ...]:
    config = folder / "tokenizer_config.json"
    if not config.is_file():
        return ()
    try:
        values = json.loads(config.read_text(encoding="utf-8"))
    except (RecursionError, ValueError) as error:
        raise ValueError(f"tokenizer {config} cannot be read ({error})") from error
    end = values.get("eos_token") if isinstance(values, dict) else None
    name = end.get("content") if isinstance(end, dict) else end
    if not isinstance(name, str | None):
        raise ValueError(f"tokenizer {config} must name its eos_token, got {name!r}")
    token = None if name is None else tokenizer.token_to_id(name)
    return () if token is None else (token,)


def _from_hugging_face(tokenizer: Any, end_ids: tuple[int, ...] | None) -> TextTokenizer:
    if end_ids is None:
        end = getattr(tokenizer, "eos_token_id", None)
        ends = end if isinstance(end, list | tuple) else [] if end is None else [end]
        end_ids = tuple(int(token) for token in ends)
    vocab = getattr(tokenizer, "get_vocab", None)
    # Ids may have holes, so the number of tokens is only a fallback.
    size = max(vocab().values()) + 1 if vocab is not None else len(tokenizer)
    backend = _HuggingFace(tokenizer, _without_clean_up(tokenizer.decode))
    made = TextTokenizer(size, end_ids, tokenizer, backend.encode, backend.decode, backend.piece)
    if getattr(tokenizer, "chat_template", None) is not None:
        made = replace(made, chat=backend.chat)
    return _with_added(made, getattr(tokenizer, "added_tokens_decoder", {}))


def _without_clean_up(decode: Callable[..., str]) -> dict[str, bool]:
    # "Clean-up" removes the space before a full stop: decoded text would not be what was written.
    parameters = inspect.signature(decode).parameters.values()
    name = "clean_up_tokenization_spaces"
    if any(p.name == name or p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        return {name: False}
    return {}


def pad_left(ids: Sequence[int], width: int) -> NDArray[np.int64]:
    """Return ids as int64 [width], padded with -1 on the left.

    Raises:
        ValueError: if there are more ids than places.
    """
    if len(ids) > width:
        raise ValueError(f"ids must have at most {width} tokens, got {len(ids)}")
    padded = np.full(width, PAD, dtype=np.int64)
    padded[width - len(ids) :] = ids
    return padded


def response_ids(action: Iterable[int], end_ids: Sequence[int]) -> tuple[int, ...]:
    """Return the tokens of a response: up to before the first -1 or through the first end token."""
    kept: list[int] = []
    for token in action:
        if token == PAD:
            break
        kept.append(int(token))
        if token in end_ids:
            break
    return tuple(kept)
