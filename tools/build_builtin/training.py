"""What the two model scripts share: the network, masked batches, the optimizers, saving."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from tools.build_builtin.paths import write_text
from tools.build_builtin.tokenizer_files import END, PAD, SPECIALS, START

IGNORED = -100
"""Label of a position that is not learnt, as in transformers."""


@dataclass(frozen=True)
class Example:
    """One sequence to learn from.

    Attributes:
        ids: all tokens.
        learn_from: position of the first token that is a target; those before are only read.
    """

    ids: tuple[int, ...]
    learn_from: int = 1


@dataclass(frozen=True, kw_only=True)
class FitSettings:
    """How long and how fast to train.

    Attributes:
        steps: optimizer steps.
        learning_rate: peak rate of AdamW, for the embedding and the norms.
        matrix_learning_rate: peak rate of Muon, for the weight matrices of the layers.
        weight_decay: decoupled decay of the matrices.
        dropout: share of the embedding's and each block's outputs dropped while training.
        warmup: steps of linear rise; afterwards a cosine falls to a twentieth of the peak.
    """

    steps: int
    learning_rate: float
    matrix_learning_rate: float
    weight_decay: float = 0.1
    dropout: float = 0.0
    warmup: int = 50


def new_model(
    vocab_size: int, *, hidden: int, layers: int, heads: int, seed: int
) -> LlamaForCausalLM:
    """Make a small Llama with random weights, tied embeddings and room for 256 tokens."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=int(hidden * 8 / 3 / 8) * 8,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        pad_token_id=SPECIALS.index(PAD),
        bos_token_id=SPECIALS.index(START),
        eos_token_id=SPECIALS.index(END),
    )
    return LlamaForCausalLM(config)


def collate(examples: Sequence[Example]) -> tuple[Tensor, Tensor]:
    """Pad examples on the right.

    Returns:
        ids: token ids, int64 [B, T].
        labels: the same where the token is a target, else -100, int64 [B, T].
    """
    width = max(len(example.ids) for example in examples)
    ids = torch.zeros(len(examples), width, dtype=torch.int64)
    labels = torch.full_like(ids, IGNORED)
    for row, example in enumerate(examples):
        tokens = torch.tensor(example.ids)
        ids[row, : len(tokens)] = tokens
        labels[row, example.learn_from : len(tokens)] = tokens[example.learn_from :]
    return ids, labels


def summed_loss(model: LlamaForCausalLM, ids: Tensor, labels: Tensor) -> Tensor:
    """Sum the negative log-likelihood of all targets, in nats.

    No attention mask is needed: padding stands on the right, where a causal model's earlier
    positions cannot see it.
    """
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
    return torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED, reduction="sum"
    )


def _backward(model: LlamaForCausalLM, groups: Sequence[Sequence[Example]]) -> None:
    """Add the gradient of the mean negative log-likelihood over the targets of all groups."""
    collated = [collate(group) for group in groups]
    targets = sum(int((labels[:, 1:] != IGNORED).sum()) for _, labels in collated)
    for ids, labels in collated:
        (summed_loss(model, ids, labels) / targets).backward()


@torch.no_grad()
def total_nats(model: LlamaForCausalLM, examples: Sequence[Example], batch_size: int = 32) -> float:
    """Sum the negative log-likelihood of the targets of all examples, in nats."""
    model.eval()
    total = 0.0
    ordered = sorted(examples, key=lambda example: len(example.ids))
    for start in range(0, len(ordered), batch_size):
        total += summed_loss(model, *collate(ordered[start : start + batch_size])).item()
    return total


def epochs(
    examples: Sequence[Example], tokens_per_batch: int, rng: np.random.Generator
) -> Iterator[list[Example]]:
    """Yield batches for ever: every example once per pass, batches of similar length."""
    while True:
        # The jitter makes neighbours differ from pass to pass while lengths stay alike.
        keys = [len(example.ids) + rng.uniform(0, 4) for example in examples]
        batches: list[list[Example]] = []
        width = 0
        for index in np.argsort(keys):
            length = len(examples[index].ids)
            width = max(width, length)
            if not batches or (len(batches[-1]) + 1) * width > tokens_per_batch:
                batches.append([])
                width = length
            batches[-1].append(examples[index])
        for index in rng.permutation(len(batches)):
            yield batches[index]


def _schedule(step: int, settings: FitSettings) -> float:
    if step < settings.warmup:
        return (step + 1) / settings.warmup
    progress = (step - settings.warmup) / max(1, settings.steps - settings.warmup)
    return 0.05 + 0.95 * 0.5 * (1.0 + math.cos(math.pi * progress))


def _optimizers(model: LlamaForCausalLM, settings: FitSettings) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for the rest: fewer steps than AdamW alone."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "layers." in name]
    chosen = {id(p) for p in matrices}
    rest = [p for p in model.parameters() if id(p) not in chosen]
    muon = torch.optim.Muon(
        matrices,
        lr=settings.matrix_learning_rate,
        weight_decay=settings.weight_decay,
        adjust_lr_fn="match_rms_adamw",
    )
    adam = torch.optim.AdamW(rest, lr=settings.learning_rate, betas=(0.9, 0.98), weight_decay=0.0)
    return [muon, adam]


@contextmanager
def _dropout(model: LlamaForCausalLM, share: float) -> Iterator[None]:
    """Drop outputs while the model is in training mode; the saved model knows nothing of it."""

    def drop(module: torch.nn.Module, _inputs: Any, output: Any) -> Any:
        if isinstance(output, tuple):  # attention also returns its weights
            return (torch.dropout(output[0], share, module.training), *output[1:])
        return torch.dropout(output, share, module.training)

    layers = model.model.layers
    places = [model.model.embed_tokens, *(part for x in layers for part in (x.self_attn, x.mlp))]
    handles = [place.register_forward_hook(drop) for place in places] if share else []
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def fit(
    model: LlamaForCausalLM,
    batches: Iterator[Sequence[Sequence[Example]]],
    settings: FitSettings,
) -> Iterator[int]:
    """Train, yielding the number of steps done after each, so the caller can look and stop.

    Args:
        model: changed in place.
        batches: one item a step, in groups of sequences of similar length; only within a group
            are they padded to the same length.
        settings: the learning rate follows `settings.steps` even if the caller stops before.
    """
    optimizers = _optimizers(model, settings)
    peaks = [group["lr"] for optimizer in optimizers for group in optimizer.param_groups]
    with _dropout(model, settings.dropout):
        for step in range(settings.steps):
            model.train()
            factor = _schedule(step, settings)
            groups = [group for optimizer in optimizers for group in optimizer.param_groups]
            for group, peak in zip(groups, peaks, strict=True):
                group["lr"] = peak * factor
            _backward(model, next(batches))
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            yield step + 1


def through_half(model: LlamaForCausalLM) -> LlamaForCausalLM:
    """Round the weights to float16 and back: what a reader of the saved file gets."""
    model.half().float().eval()
    return model


def save(model: LlamaForCausalLM, folder: Path, facts: Mapping[str, Any]) -> None:
    """Write a model folder (float16) and its training.json; files appear whole or not at all."""
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    # The floats on disk are halves; config.json says float32, so that every reader, whatever
    # its default, computes with 32 bits.
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        bos_token_id=model.config.bos_token_id,
        eos_token_id=model.config.eos_token_id,
        pad_token_id=model.config.pad_token_id,
    )
    model.half().save_pretrained(temporary)
    model.float()
    config_file = temporary / "config.json"
    config = json.loads(config_file.read_text(encoding="utf-8"))
    config["dtype"] = "float32"
    write_text(config_file, json.dumps(config, indent=2, sort_keys=True) + "\n")
    write_text(temporary / "training.json", json.dumps(facts, indent=2) + "\n")
    folder.mkdir(parents=True, exist_ok=True)
    for file in sorted(temporary.iterdir()):
        file.chmod(0o644)  # safetensors makes files that only their owner can read
        file.replace(folder / file.name)
    shutil.rmtree(temporary)
