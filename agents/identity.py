"""What a checkpoint belongs to: the settings, the queries and the models a run started from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from agents.run_folder import fixed_settings
from cory_env.records import Query

if TYPE_CHECKING:
    from agents.session import Session


def identity(session: Session) -> dict[str, Any]:
    """Plain values that two runs share only if one may go on from the other's checkpoint.

    A folder or file of the same name may have been changed since; so contents are compared.
    """
    seen: dict[int, str] = {}
    references = {}
    for agent, learner in session.learners.items():
        key = id(learner.reference)  # agents that start alike share one
        if key not in seen:
            seen[key] = module_sum(learner.reference)
        references[f"sha256 of the reference of {agent}"] = seen[key]
    return {
        **fixed_settings(session.config),
        "sha256 of the queries": query_sum(session.task.queries("train")),
        "sha256 of the evaluation queries": query_sum(session.evaluation_queries),
        **references,
    }


def query_sum(queries: Sequence[Query]) -> str:
    """SHA-256 over texts and answers, in order."""
    digest = hashlib.sha256()
    for query in queries:
        digest.update(json.dumps([query.text, query.answer]).encode() + b"\n")
    return digest.hexdigest()


def module_sum(module: torch.nn.Module) -> str:
    """SHA-256 over the names, types, shapes and bits of all tensors."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()
