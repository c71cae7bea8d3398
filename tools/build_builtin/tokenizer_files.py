"""Build the two shipped tokenizers and write them as folders that both libraries open."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from tools.build_builtin.paths import write_text

PAD, START, END = "<pad>", "<s>", "</s>"
SPECIALS = [PAD, START, END]
"""Token ids 0, 1 and 2 of both tokenizers."""


def byte_pair_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Learn a byte-level BPE tokenizer of exactly `vocab_size` entries from texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIALS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _finish(tokenizer)


def character_tokenizer() -> Tokenizer:
    """Build a tokenizer with one token per byte: per character in English text.

    Bytes rather than a list of characters, so that no text is unknown to it.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*SPECIALS, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.add_special_tokens(SPECIALS)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return _finish(tokenizer)


def _finish(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{START} $A",
        pair=f"{START} $A $B",
        special_tokens=[(START, SPECIALS.index(START))],
    )
    return tokenizer


def write_folder(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json."""
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": START,
        "eos_token": END,
        "pad_token": PAD,
        "padding_side": "left",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 256,
    }
    write_text(folder / "tokenizer.json", tokenizer.to_str() + "\n")
    write_text(folder / "tokenizer_config.json", json.dumps(config, indent=2) + "\n")
