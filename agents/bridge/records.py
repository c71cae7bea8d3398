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

KEYS = {
    "logprobs": "logprobs",
    "values": "critic",  # `values` is a method of Batch: a key of that name breaks it
    "kl": "kl",
    "entropy": "entropy",
    "ref_logprobs": "ref_logprobs",
    "ref_hidden": "ref_hidden",
}
"""Field of a rollout -> key in the buffer's `policy`, a row each: [T] and for the last [T, H]."""


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
    values = {
        "logprobs": sampled.logprobs,
        "values": sampled.values,
        "kl": measured.kl,
        "entropy": measured.entropy,
        "ref_logprobs": measured.ref_logprobs,
        "ref_hidden": ref_hidden,
    }
    # numpy has no bfloat16; float32 holds every one of its values.
    entry = {
        KEYS[name]: (v.float() if v.dtype == torch.bfloat16 else v).cpu().numpy()
        for name, v in values.items()
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

    stored = {name: tensor(batch.policy[key]) for name, key in KEYS.items()}
    kept = stored["ref_hidden"][..., : reference.hidden_size]
    stored["ref_hidden"] = kept.to(next(reference.parameters()).dtype)
    return Rollout(
        prompt_ids=tensor(batch.obs.obs, torch.int64),
        response_ids=tensor(batch.act, torch.int64),
        payoffs=tensor(batch.rew[:, agent_index], torch.float64),
        episode=tensor(batch.info["episode"], torch.int64),
        seat=int(seats[0]),
        **stored,
    )
