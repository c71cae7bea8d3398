"""Tests of cory_env/registration.py and of what importing the package does."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pettingzoo
import pytest

from cory_env.registration import environment_id, register_environments
from cory_env.tasks import TASKS

SCRIPT = """
import sys
from pettingzoo import aec_registry, make
import cory_env
env = make("aec", "cory/target-v0", action_level="token")
env.reset(seed=0)
for agent in env.agent_iter():
    observation, reward, terminated, truncated, info = env.last()
    env.step(None if terminated or truncated else env.action_space(agent).sample())
heavy = {"torch", "tianshou", "transformers", "agents", "benchmarks"} & set(sys.modules)
print(sorted(heavy), sorted(name for name in aec_registry if name.startswith("cory/")))
"""


def test_a_fresh_interpreter_plays_without_loading_anything_heavy() -> None:
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False, timeout=120
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"[] {sorted(map(environment_id, TASKS))}\n"


@pytest.mark.parametrize("task", sorted(TASKS))
def test_every_task_is_registered(task: str) -> None:
    assert environment_id(task) == f"cory/{task}-v0"
    assert pettingzoo.spec("aec", environment_id(task)).kwargs == {"task": task}


def test_registering_again_changes_nothing_and_warns_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        register_environments()


def test_make_takes_the_keywords_of_env() -> None:
    env = pettingzoo.make("aec", "cory/target-v0", n_agents=3, render_mode="ansi")
    env.reset(seed=0)
    assert env.possible_agents == ["agent_0", "agent_1", "agent_2"]
    assert env.render_mode == "ansi"
