"""The learners. A new one is one file and one line in `LEARNERS`."""

from __future__ import annotations

from agents.bridge.learner import Learner
from agents.bridge.stock import PREFIX, stock_class
from agents.learners.a2c import A2C
from agents.learners.counterfactual import Counterfactual
from agents.learners.grpo import GRPO
from agents.learners.happo import HAPPO
from agents.learners.magrpo import MAGRPO
from agents.learners.mappo import MAPPO
from agents.learners.ppo import PPO
from agents.learners.raft import RAFT
from agents.learners.reinforce import Reinforce
from agents.learners.rloo import RLOO
from cory_env.registry import resolve

LEARNERS: dict[str, type[Learner]] = {
    "ppo": PPO,
    "a2c": A2C,
    "reinforce": Reinforce,
    "rloo": RLOO,
    "grpo": GRPO,
    "raft": RAFT,
    "mappo": MAPPO,
    "happo": HAPPO,
    "magrpo": MAGRPO,
    "counterfactual": Counterfactual,
}
"""Name after `--algorithm` -> class."""


def learner_class(name: str) -> type[Learner]:
    """The class behind a name after `--algorithm`.

    Raises:
        ValueError: if there is none, or it is no learner.
    """
    if name.startswith(PREFIX):
        return stock_class(name)
    found = resolve(name, LEARNERS, "algorithm")
    if not (isinstance(found, type) and issubclass(found, Learner)):
        raise ValueError(f"algorithm {name!r} must be a subclass of Learner")
    return found


__all__ = ["LEARNERS", "PPO", "Learner", "learner_class"]
