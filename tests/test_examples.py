"""Each file under examples/ does what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.config import TrainConfig
from agents.train import train
from cory_env import Query, make_task
from cory_env.rewards import make_reward
from examples import my_task, plain_env_loop, stock_tianshou_ppo
from tests.markdown import ROOT


def test_the_plain_loop_pays_both_alike_and_says_who_spoke(
    capsys: pytest.CaptureFixture[str],
) -> None:
    paid = plain_env_loop.main(episodes=4)
    assert len(paid) == 4
    assert all(p["agent_0"] == p["agent_1"] for p in paid)  # the collective reward
    printed = capsys.readouterr().out
    assert printed.count("agent_0 (pioneer): ") == 2  # the roles alternate
    assert printed.count("agent_1 (pioneer): ") == 2


def test_the_plain_loop_repeats_by_its_seed() -> None:
    assert plain_env_loop.main(episodes=3, seed=5) == plain_env_loop.main(episodes=3, seed=5)


def test_my_reward_by_its_name() -> None:
    # "a b": one of two words; "e a i": all three; nothing: 0.
    reward = make_reward("examples.my_reward:score")
    assert list(reward([Query("q")] * 3, ["a b", "e a i", ""])) == [0.5, 1.0, 0.0]


def test_my_task_by_its_name() -> None:
    task = make_task("examples.my_task:MyTask")
    texts = [query.text for s in ("train", "validation", "test") for query in task.queries(s)]
    assert len(texts) == len(set(texts)) == 6**3
    assert task.prompt("observer", Query("a b c"), ["c b"]) == "a b c | c b |"
    # Two places of three; all; none.
    queries = [Query("a b c")] * 3
    assert my_task.backwards(queries, ["c b d", "c b a", ""]) == [2 / 3, 1.0, 0.0]


def test_my_task_trains(tmp_path: Path) -> None:
    result = train(
        TrainConfig(
            task="examples.my_task:MyTask",
            iterations=1,
            batch_size=8,
            eval_queries=4,
            out=tmp_path / "run",
            progress=False,
            tensorboard=False,
        )
    )
    assert result.finished
    assert result.config.learning_rate == 2e-3  # the task's own


@pytest.mark.case(57, 63)
def test_stock_ppo_runs(capsys: pytest.CaptureFixture[str]) -> None:
    rows = stock_tianshou_ppo.main(iterations=1, episodes=4)
    assert [sorted(row) for row in rows] == [["agent_0", "agent_1"]]
    assert capsys.readouterr().out.startswith("1 {'agent_0': ")


@pytest.mark.case(68)
def test_every_example_is_tested() -> None:
    names = {path.stem for path in (ROOT / "examples").glob("*.py")}
    assert names == {"plain_env_loop", "my_reward", "my_task", "stock_tianshou_ppo"}
