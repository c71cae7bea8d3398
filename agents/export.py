"""Trained agents as ordinary transformers folders."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agents.config import TrainConfig
from agents.evaluation import Evaluation
from agents.files import write_folder, write_json, write_text
from agents.models import ActorCritic, LoadedModel
from agents.models.adapter_files import BaseRecord, write_adapter
from agents.models.adapters import AdapterModel
from agents.models.load import quiet_progress

if TYPE_CHECKING:
    from agents.session import Session


def save_agent(path: Path, actor: ActorCritic, loaded: LoadedModel, config: TrainConfig) -> None:
    """Write a model and its tokenizer where `AutoModelForCausalLM.from_pretrained` opens them.

    The value head is not in it: it belongs to training, and checkpoints keep it.

    Args:
        path: the folder to be.
        actor: the agent.
        loaded: what it started from.
        config: says whether an adapter is merged into its base or written alone.
    """
    write_folder(path, lambda folder: _fill(folder, actor, loaded, config))


def save_best(path: Path, session: Session, best: dict[str, Any], evaluation: Evaluation) -> None:
    """Write the best agent so far, and say in `README` which it is and why."""
    agent = best["agent"]

    def fill(folder: Path) -> None:
        write_json(folder / "selection.json", {**best, **evaluation.to_json()})
        _fill(folder, session.learners[agent].actor, session.loaded[agent], session.config)
        write_text(
            folder / "README",
            f"{agent} after iteration {best['iteration']}: validation score "
            f"{evaluation.score:.4f} at KL {evaluation.kl:.3f} nats, "
            f"score - kl_coef * KL = {best['value']:.4f}, the highest of all evaluations.\n",
        )

    write_folder(path, fill)


def _fill(folder: Path, actor: ActorCritic, loaded: LoadedModel, config: TrainConfig) -> None:
    # Pickled weights are never written; the tokenizer is saved from a copy, since saving may
    # touch its settings.
    with quiet_progress():
        if not isinstance(actor, AdapterModel):
            actor.model.save_pretrained(folder)
        elif config.export == "merged":
            with actor.base.merged(actor.adapter_name) as plain:
                plain.save_pretrained(folder)
        else:
            assert actor.adapter_name is not None
            write_adapter(folder, actor.base, actor.adapter_name, _record(actor, loaded, config))
    copy.deepcopy(loaded.tokenizer).save_pretrained(folder)


def _record(actor: AdapterModel, loaded: LoadedModel, config: TrainConfig) -> BaseRecord:
    files = loaded.adapter
    known = None if files is None else files.record
    return BaseRecord(
        model=loaded.source if files is None else files.base,
        seed=config.seed if known is None else known.seed,
        dtype=config.dtype,
        quantize=config.quantize,
        sha256=actor.base.checksum,
    )
