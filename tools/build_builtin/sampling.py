"""Draw continuations at temperature 1 with a key-value cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import DynamicCache, LlamaForCausalLM

from tools.build_builtin.tokenizer_files import END, SPECIALS

END_ID = SPECIALS.index(END)


def sample(
    model: LlamaForCausalLM,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    generator: torch.Generator,
    *,
    batch_size: int = 256,
) -> list[tuple[int, ...]]:
    """Draw one continuation per prompt from the model's full distribution.

    Args:
        model: a causal language model in evaluation mode.
        prompts: token ids, each at least one token.
        max_tokens: longest continuation, in tokens.
        generator: source of randomness.
        batch_size: prompts computed side by side; changes which numbers are drawn.

    Returns:
        Token ids per prompt, in order: through the end token, or `max_tokens` of them.
    """
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    drawn: list[tuple[int, ...]] = [()] * len(prompts)
    for start in range(0, len(order), batch_size):
        chunk = order[start : start + batch_size]
        rows = _sample_batch(model, [prompts[index] for index in chunk], max_tokens, generator)
        for index, row in zip(chunk, rows, strict=True):
            drawn[index] = row
    return drawn


@torch.no_grad()
def _sample_batch(
    model: LlamaForCausalLM,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    generator: torch.Generator,
) -> list[tuple[int, ...]]:
    width = max(len(prompt) for prompt in prompts)
    ids = torch.zeros(len(prompts), width, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    cache = DynamicCache()
    columns: list[torch.Tensor] = []
    ended = torch.zeros(len(prompts), dtype=torch.bool)
    for _ in range(max_tokens):
        output = model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            cache=cache,
            logits_to_keep=1,
        )
        ids = torch.multinomial(output.logits[:, -1].float().softmax(-1), 1, generator=generator)
        columns.append(ids[:, 0])
        ended |= ids[:, 0] == END_ID
        if ended.all():
            break
        mask = torch.cat([mask, torch.ones_like(ids)], dim=1)
        positions = positions[:, -1:] + 1
    return [_through_end(row) for row in torch.stack(columns, dim=1).tolist()]


def _through_end(tokens: list[int]) -> tuple[int, ...]:
    return tuple(tokens[: tokens.index(END_ID) + 1] if END_ID in tokens else tokens)
