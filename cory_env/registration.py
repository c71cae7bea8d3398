"""Register `cory/<task>-v0` with PettingZoo, one id for each task."""

from __future__ import annotations

from pettingzoo import aec_registry, register

from cory_env.tasks import TASKS


def environment_id(task: str) -> str:
    """Return the id under which PettingZoo's `make` finds a task's game."""
    return f"cory/{task}-v0"


def register_environments() -> None:
    """Register every task; a second call changes nothing."""
    for task in TASKS:
        name = environment_id(task)
        if name not in aec_registry:
            register("aec", name, "cory_env.cory_v0:env", kwargs={"task": task})
