"""Small model folders of two families with tokenizers that are made here."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from agents.models.target import draw_weights

TEXTS = ["a d | b |", "a b c d e", "the film was good .", "Q: 1 + 2\nA: 3", "a d | b c |"] * 4
KINDS = ("byte_level", "sentencepiece")


def byte_level() -> Tokenizer:
    """As of GPT-2: bytes and merges, no begin token, a space belongs to the word behind it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=290,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>", "<pad>", "<stop>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def sentencepiece() -> Tokenizer:
    """As of Llama: a begin token, spaces as signs, bytes for what is not known."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(), decoders.Fuse()]
    )
    bytes_ = [f"<0x{i:02X}>" for i in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=310,
        special_tokens=["<unk>", "<s>", "</s>", "<pad>", "<stop>", *bytes_],
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def fast(kind: str, *, pad_is_end: bool) -> PreTrainedTokenizerFast:
    """The tokenizer as transformers has it."""
    end = "<|endoftext|>" if kind == "byte_level" else "</s>"
    names = {} if kind == "byte_level" else {"bos_token": "<s>", "unk_token": "<unk>"}
    made = byte_level() if kind == "byte_level" else sentencepiece()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token=end, pad_token=end if pad_is_end else "<pad>", **names
    )


def small_model(
    kind: str, tokenizer: PreTrainedTokenizerFast, *, tied: bool, seed: int = 0
) -> PreTrainedModel:
    """GPT-2 (absolute positions) for the byte-level one, Llama (rotary) for the other."""
    ids = {
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "tie_word_embeddings": tied,
    }
    model: PreTrainedModel
    if kind == "byte_level":
        model = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=128, **ids))
    else:
        model = LlamaForCausalLM(
            LlamaConfig(
                hidden_size=16,
                intermediate_size=32,
                num_hidden_layers=2,
                num_attention_heads=2,
                max_position_embeddings=128,
                **ids,
            )
        )
    draw_weights(model, seed, std=0.4)
    return model


def model_folder(
    path: Path,
    kind: str,
    *,
    pad_is_end: bool = True,
    tied: bool = True,
    several_ends: bool = False,
    seed: int = 0,
    **generation: object,
) -> Path:
    """Save a model and its tokenizer; a second end token stands in the generation settings."""
    with torch.random.fork_rng(devices=[]):
        tokenizer = fast(kind, pad_is_end=pad_is_end)
        model = small_model(kind, tokenizer, tied=tied, seed=seed)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    ends: list[int] = [tokenizer.eos_token_id]
    if several_ends:
        ends.append(tokenizer.convert_tokens_to_ids("<stop>"))
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": ends, **generation}))
    return path
