"""Trained agents as ordinary transformers folders."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agents.evaluation import Evaluation
from agents.files import write_folder, write_json, write_text
from agents.models import ActorCritic, LoadedModel
from agents.models.load import quiet_progress

if TYPE_CHECKING:
    from agents.session import Session


def save_agent(path: Path, actor: ActorCritic, loaded: LoadedModel) -> None:
    """Write a model and its tokenizer where `AutoModelForCausalLM.from_pretrained` opens them.

    The value head is not in it: it belongs to training, and checkpoints keep it.
    """
    write_folder(path, lambda folder: _fill(folder, actor, loaded))


def save_best(path: Path, session: Session, best: dict[str, Any], evaluation: Evaluation) -> None:
    """Write the best agent so far, and say in `README` which it is and why."""
    agent = best["agent"]

    def fill(folder: Path) -> None:
        write_json(folder / "selection.json", {**best, **evaluation.to_json()})
        _fill(folder, session.learners[agent].actor, session.loaded[agent])
        write_text(
            folder / "README",
            f"{agent} after iteration {best['iteration']}: validation score "
            f"{evaluation.score:.4f} at KL {evaluation.kl:.3f} nats, "
            f"score - kl_coef * KL = {best['value']:.4f}, the highest of all evaluations.\n",
        )

    write_folder(path, fill)


def _fill(folder: Path, actor: ActorCritic, loaded: LoadedModel) -> None:
    # Pickled weights are never written; the tokenizer is saved from a copy, since saving may
    # touch its settings.
    with quiet_progress():
        actor.model.save_pretrained(folder)
    copy.deepcopy(loaded.tokenizer).save_pretrained(folder)
