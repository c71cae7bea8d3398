"""From the rows of Tianshou's buffer to typed rollouts, and back from samples to policy entries."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tianshou.data import Batch

from agents.models.language_model import LanguageModel
from agents.rollout import Rollout
from agents.sampling import Measured, Sampled

NUMBERS = ("logprobs", "values", "kl", "entropy", "ref_logprobs")
"""Fields of a rollout of a row [T] each. They lie together in the buffer, as `policy.numbers`
[5, T]: Tianshou walks all keys of a batch many times an iteration."""


def policy_entry(
    sampled: Sampled, measured: Measured, *, seat: int, hidden_width: int
) -> dict[str, NDArray[Any]]:
    """What the buffer keeps of a response beside its tokens.

    Args:
        sampled: responses, B rows.
        measured: the same, measured.
        seat: of the agent. Kept here because a row's own `info` is the one after its step: the next
            seat's.
        hidden_width: of the team's widest reference. Tianshou's buffer has one shape for all
            agents, so narrower ones are padded here and cut again when they are read.
    """
    ref_hidden = measured.ref_hidden
    if ref_hidden is None:
        ref_hidden = sampled.hidden[..., :0]
    numbers = (
        sampled.logprobs,
        sampled.values,
        measured.kl,
        measured.entropy,
        measured.ref_logprobs,
    )
    # numpy has no bfloat16; float32 holds every one of its values.
    entry = {
        name: (v.float() if v.dtype == torch.bfloat16 else v).cpu().numpy()
        for name, v in (("numbers", torch.stack(numbers, dim=1)), ("ref_hidden", ref_hidden))
    }
    missing = hidden_width - entry["ref_hidden"].shape[-1]
    if measured.ref_hidden is not None and missing:
        entry["ref_hidden"] = np.pad(entry["ref_hidden"], ((0, 0), (0, 0), (0, missing)))
    entry["seat"] = np.full(len(sampled.response_ids), seat, dtype=np.int64)
    return entry


def rollout_from_batch(
    batch: Batch, agent_index: int, device: torch.device, reference: LanguageModel
) -> Rollout:
    """Read one agent's rows of a multi-agent buffer.

    Args:
        batch: rows in which the agent acted; `rew` is [B, N] after the credit hook.
        agent_index: the agent's column in `rew`.
        device: where the learner computes.
        reference: the agent's: its hidden states have their width and type.
    """
    seats = np.unique(batch.policy["seat"])
    if len(seats) != 1:
        raise RuntimeError(f"an agent keeps its seat within an iteration, got seats {seats}")

    def tensor(values: NDArray[Any], dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.as_tensor(np.asarray(values)).to(device=device, dtype=dtype)

    numbers = tensor(batch.policy["numbers"])
    stored = {name: numbers[:, i] for i, name in enumerate(NUMBERS)}
    kept = tensor(batch.policy["ref_hidden"])[..., : reference.hidden_size]
    stored["ref_hidden"] = kept.to(next(reference.model.parameters()).dtype)
    return Rollout(
        prompt_ids=tensor(batch.obs.obs, torch.int64),
        response_ids=tensor(batch.act, torch.int64),
        payoffs=tensor(batch.rew[:, agent_index], torch.float64),
        episode=tensor(batch.info["episode"], torch.int64),
        seat=int(seats[0]),
        **stored,
    )
