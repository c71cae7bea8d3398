"""Draw responses with a key-value cache, and measure them against the reference.

The log-probability and the hidden state of each drawn token are kept, so an update needs no
second scoring pass of the policy that drew it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from agents.maths.logprobs import draw, gather_logprobs, log_softmax
from agents.maths.token_statistics import TokenStatistics, statistics_of
from agents.models.language_model import LanguageModel, counted, fitting_positions, spread

CHUNK_ROWS = 64
"""Responses measured at a time, so that [rows, T, V] tensors stay small."""


@dataclass(frozen=True)
class Sampled:
    """Drawn responses; B responses, T positions, H hidden width."""

    response_ids: Tensor
    """[B, T], int64; the end token included, -1 after it."""
    logprobs: Tensor
    """Of each drawn token under the policy that drew it, [B, T], nats."""
    values: Tensor
    """The critic's estimate before each token, [B, T]."""
    hidden: Tensor
    """From which each token was drawn, [B, T, H]; 0 after the end."""
    log_probs: Tensor | None = None
    """The distributions drawn from, [B, T', V] with T' the longest response; None where that would
    be too large to keep until it is measured."""

    @property
    def mask(self) -> Tensor:
        """True = a token of the response, [B, T]."""
        return self.response_ids >= 0


@dataclass(frozen=True)
class Measured:
    """What the policy and the reference say at each drawn token; all [B, T], 0 outside the mask."""

    entropy: Tensor
    """Of the policy's distribution, nats."""
    kl: Tensor
    """KL(policy || reference) over the whole vocabulary, nats."""
    ref_logprobs: Tensor
    """Of the drawn tokens under the reference on the same prompt, nats."""
    ref_hidden: Tensor | None
    """The reference's hidden states, [B, T, H]: its distribution, a factor V / H smaller."""
    ref_log_probs: Tensor | None = None
    """That distribution itself, [B, T', V] with T' the longest response; None where that would be
    too large to keep until the update."""


@torch.no_grad()
def sample(
    model: LanguageModel,
    prompt_ids: Tensor,
    uniforms: Tensor,
    *,
    end_ids: Sequence[int],
    temperature: float,
) -> Sampled:
    """Draw one response per prompt.

    Args:
        model: the policy.
        prompt_ids: left-padded with -1, [B, Q]; each row holds at least one token.
        uniforms: in [0, 1), one for each token that may be drawn, [B, T], float64.
        end_ids: tokens that end a response.
        temperature: of the distribution drawn from, the same one that is scored.

    Returns:
        The responses. A row that reaches T tokens without an end token is cut there.
    """
    batch, width = uniforms.shape
    device = prompt_ids.device
    prompt_ids = trim_left(prompt_ids)
    ends = torch.as_tensor(list(end_ids), device=device)
    response = torch.full((batch, width), -1, dtype=torch.int64, device=device)
    hiddens: list[Tensor] = []
    logprobs: list[Tensor] = []
    whole: list[Tensor] = []
    keep = batch * width <= fitting_positions(model.vocab_size)
    running = torch.ones(batch, dtype=torch.bool, device=device)
    real = prompt_ids >= 0
    mask = None if bool(real.all()) else real
    with model.precision():  # round the whole loop, or weights would be cast at every token
        states, step = model.read(prompt_ids, mask, width - 1)
        for t in range(width):
            hidden = states[:, -1]
            log_probs = log_softmax(model.logits(hidden), temperature)
            token = draw(log_probs, uniforms[:, t])
            response[:, t] = torch.where(running, token, -1)
            hiddens.append(hidden)
            if keep:
                whole.append(log_probs)
            else:
                logprobs.append(gather_logprobs(log_probs, token, running))
            running = running & ~torch.isin(token, ends)
            if t + 1 == width or not bool(running.any()):
                break
            if mask is not None:
                mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
            # Rows that have ended go on being fed something; what they say is never read.
            states = step(token.unsqueeze(1), mask)
    hidden = torch.stack(hiddens, dim=1)
    drawn = response[:, : hidden.shape[1]]
    said = torch.stack(whole, dim=1) if keep else None
    chosen = (
        torch.stack(logprobs, dim=1) if said is None else gather_logprobs(said, drawn, drawn >= 0)
    )
    return replace(_padded(response, chosen, model.values(hidden), hidden), log_probs=said)


def _padded(response: Tensor, logprobs: Tensor, values: Tensor, hidden: Tensor) -> Sampled:
    """Zero what follows an end, and widen to T."""
    drawn = logprobs.shape[1]
    missing = response.shape[1] - drawn
    keep = response[:, :drawn] >= 0
    pad = torch.nn.functional.pad
    return Sampled(
        response_ids=response,
        logprobs=pad(logprobs.masked_fill(~keep, 0.0), (0, missing)),
        values=pad(values.masked_fill(~keep, 0.0), (0, missing)),
        hidden=pad(hidden.masked_fill(~keep.unsqueeze(-1), 0.0), (0, 0, 0, missing)),
    )


@torch.no_grad()
def measure(
    policy: LanguageModel,
    reference: LanguageModel,
    prompt_ids: Tensor,
    sampled: Sampled,
    *,
    temperature: float,
    keep_ref_hidden: bool = False,
) -> Measured:
    """Entropy of the policy and its divergence from the reference at the drawn tokens.

    The policy's distribution comes from the hidden states kept while sampling; the reference runs
    once over all tokens, on the same prompt (CORY paper, equation 8).
    """
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    ref_hidden: list[Tensor] = []
    # Of one piece, a few megabytes: the update would have to compute it again.
    keep = keep_ref_hidden and sampled.log_probs is not None and len(prompt_ids) <= CHUNK_ROWS
    whole: Tensor | None = None
    for rows in torch.arange(len(prompt_ids), device=prompt_ids.device).split(CHUNK_ROWS):
        response = sampled.response_ids[rows]
        mask = response >= 0
        # Columns in which no row of this chunk has a token would cost arithmetic and say nothing.
        used = max(int(mask.sum(-1).max()), 1)
        hidden = reference.response_hidden(trim_left(prompt_ids[rows]), response[:, :used])
        mask = mask[:, :used]
        found, said = _measured_tokens(
            policy, reference, sampled, rows, counted(hidden, mask), mask, temperature=temperature
        )
        if keep and said is not None:
            whole = spread(said, mask)
        pad = response.shape[1] - used
        columns = (found.entropy, found.kl, found.ref_logprobs)
        padded = [torch.nn.functional.pad(spread(c, mask), (0, pad)) for c in columns]
        parts.append((padded[0], padded[1], padded[2]))
        if keep_ref_hidden:
            hidden = hidden.masked_fill(~mask.unsqueeze(-1), 0.0)
            ref_hidden.append(torch.nn.functional.pad(hidden, (0, 0, 0, pad)))
    joined = [torch.cat(list(column)) for column in zip(*parts, strict=True)]
    return Measured(
        entropy=joined[0],
        kl=joined[1],
        ref_logprobs=joined[2],
        ref_hidden=torch.cat(ref_hidden) if keep_ref_hidden else None,
        ref_log_probs=whole,
    )


def _measured_tokens(
    policy: LanguageModel,
    reference: LanguageModel,
    sampled: Sampled,
    rows: Tensor,
    ref_hidden: Tensor,
    mask: Tensor,
    *,
    temperature: float,
) -> tuple[TokenStatistics, Tensor | None]:
    """Statistics of the tokens of some rows, [N], from the distributions if they were kept.

    Those of the reference come along then, [N, V].
    """
    used = mask.shape[1]
    ids = counted(sampled.response_ids[rows, :used], mask)
    if sampled.log_probs is None:
        hidden = counted(sampled.hidden[rows, :used], mask)
        found = policy.statistics(
            hidden, ids, temperature, reference=reference, ref_hidden=ref_hidden
        )
        return found, None
    own = counted(sampled.log_probs[rows, :used], mask)
    ref = reference.log_probs(ref_hidden, temperature)
    return statistics_of(own, ids, ref), ref


def trim_left(prompt_ids: Tensor) -> Tensor:
    """Drop the columns that are padding in every row; [B, Q] -> [B, Q']."""
    longest = max(int((prompt_ids >= 0).sum(-1).max()), 1)
    return prompt_ids[:, -longest:]
