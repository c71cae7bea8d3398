"""What a checkpoint belongs to: the settings, the queries and the models a run started from."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agents.models import LanguageModel
from agents.models.adapters import AdapterModel
from agents.models.checksum import tensor_sum
from agents.run_folder import fixed_settings
from cory_env.chat import ChatFrame
from cory_env.records import Query
from cory_env.rewards.base import fingerprints
from cory_env.rules import GameRules

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
            seen[key] = model_sum(learner.reference)
        references[f"sha256 of the reference of {agent}"] = seen[key]
    prints = fingerprints(session.rules.reward)
    return {
        **fixed_settings(session.config),
        "sha256 of the queries": query_sum(session.task.queries("train")),
        "sha256 of the evaluation queries": query_sum(session.evaluation_queries),
        "sha256 of the prompts": prompts_sum(session.rules, session.evaluation_queries[0]),
        "sha256 of the chat template": frame_sum(session.rules.frame),
        **references,
        **({"fingerprints of the reward": prints} if prints else {}),
    }


def prompts_sum(rules: GameRules, query: Query) -> str:
    """SHA-256 over a query's prompts by seat: a template may lie in a file that was changed."""
    seats = enumerate(rules.roles) if rules.knowledge_transfer else [(0, rules.roles[0])]
    prompts = [rules.task.prompt(role, query, [""] * seat) for seat, role in seats]
    return hashlib.sha256(json.dumps(prompts).encode()).hexdigest()


def frame_sum(frame: ChatFrame | None) -> str | None:
    """SHA-256 over what stands round every prompt, examples included; None for plain prompts."""
    if frame is None:
        return None
    return hashlib.sha256(json.dumps(dataclasses.astuple(frame)).encode()).hexdigest()


def query_sum(queries: Sequence[Query]) -> str:
    """SHA-256 over texts and answers, in order."""
    digest = hashlib.sha256()
    for query in queries:
        digest.update(json.dumps([query.text, query.answer]).encode() + b"\n")
    return digest.hexdigest()


def model_sum(model: LanguageModel) -> str:
    """SHA-256 over a model's tensors; of agents on a shared base that is hashed once."""
    if isinstance(model, AdapterModel):
        return model.checksum
    return tensor_sum(model.state_dict().items())
