"""The tasks by name. A new one is one file and one line here."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from cory_env.registry import resolve
from cory_env.tasks.base import SPLITS, Task
from cory_env.tasks.custom import CustomTask
from cory_env.tasks.gsm8k import Gsm8kTask
from cory_env.tasks.gsm_symbolic import GsmSymbolicTask
from cory_env.tasks.imdb import ImdbTask
from cory_env.tasks.reviews import ReviewsTask
from cory_env.tasks.sums import SumsTask
from cory_env.tasks.target import TargetTask

TASKS: dict[str, Callable[..., Task]] = {
    "reviews": ReviewsTask,
    "sums": SumsTask,
    "target": TargetTask,
    "imdb": ImdbTask,
    "gsm8k": Gsm8kTask,
    "gsm_symbolic": GsmSymbolicTask,
    "custom": CustomTask,
}

__all__ = ["SPLITS", "TASKS", "Task", "make_task"]


def make_task(name: str, **kwargs: Any) -> Task:
    """Build a task.

    Args:
        name: a key of TASKS, or `module:name` of a Task class from anywhere.
        kwargs: the task's own keywords; every task takes `data` (own queries) and `reward`.

    Raises:
        ValueError: if the name is unknown, it is not a task, or a keyword is wrong.
    """
    found = resolve(name, TASKS, "task")
    if not (inspect.isclass(found) and issubclass(found, Task)) and not inspect.isfunction(found):
        got = getattr(found, "__name__", repr(found))
        raise ValueError(f"task {name!r} must be a subclass of Task, got {got}")
    known = inspect.signature(found).parameters
    if unknown := sorted(set(kwargs) - set(known)):
        raise ValueError(f"task {name!r} takes {', '.join(known)}, got {', '.join(unknown)}")
    try:
        task = found(**kwargs)
    except TypeError as error:
        raise ValueError(f"task {name!r} cannot be made with {sorted(kwargs)}: {error}") from error
    if not isinstance(task, Task):
        raise ValueError(f"task {name!r} must be a subclass of Task, got {type(task).__name__}")
    return task
