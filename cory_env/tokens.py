"""Tokenizers of any make behind one small interface, and the shapes of token arrays.

V is the vocabulary size (largest token id + 1). Padding is -1, never a token id, because many
tokenizers use their end token as padding.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

PAD = -1
END_NAMES = ("</s>", "<|endoftext|>", "<eos>", "<|im_end|>")
# SentencePiece writes a word's leading space as this sign, and its decoders drop it at the very
# front.
_SPACE_SIGN = "\u2581"


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
    """

    vocab_size: int
    end_ids: tuple[int, ...]
    backend: Any
    encoder: Callable[[str, bool], list[int]]
    decoder: Callable[[list[int]], str]
    piece: Callable[[int], str | None]

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
        """Return the tokens of a text, without special tokens."""
        return self.encoder(text, False)

    def encode_prompt(self, text: str) -> list[int]:
        """Return the tokens of a prompt, to be continued by a response.

        The tokenizer's own tokens at the front (a begin token, say) are there exactly once, even if
        the text spells them out; an end token that it puts behind is not: the response comes there.
        """
        plain, full = self.encoder(text, False), self.encoder(text, True)
        extra = len(full) - len(plain)
        behind = 1 if extra and full[-1] in self.end_ids and full[extra - 1 : -1] == plain else 0
        front = full[: extra - behind]
        if front and plain[: len(front)] == front:
            return plain
        return full[: len(full) - behind]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of tokens, without special tokens and with its leading space."""
        tokens = [int(token) for token in ids]
        text = self.decoder(tokens)
        first = self.piece(tokens[0]) if tokens else None
        lost_space = first is not None and first.startswith(_SPACE_SIGN) and text[:1] != " "
        return " " + text if lost_space else text


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
        return TextTokenizer(**{**vars(source), "end_ids": ends})
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


def _from_tokenizers(tokenizer: Tokenizer, end_ids: tuple[int, ...]) -> TextTokenizer:
    if tokenizer.padding is not None or tokenizer.truncation is not None:
        # Either would silently change a prompt; the user's own object is left as it is.
        tokenizer = Tokenizer.from_str(tokenizer.to_str())
        tokenizer.no_padding()
        tokenizer.no_truncation()
    backend = _Fast(tokenizer)
    size = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
    return TextTokenizer(size, end_ids, tokenizer, backend.encode, backend.decode, backend.piece)


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
    return TextTokenizer(size, end_ids, tokenizer, backend.encode, backend.decode, backend.piece)


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
