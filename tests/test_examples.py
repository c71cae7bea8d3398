"""Each file under examples/ does what it says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from agents.config import TrainConfig
from agents.models.load import load_model
from agents.train import train
from cory_env import Query, make_task
from cory_env.rewards import make_reward
from examples import my_model, my_task, plain_env_loop, stock_tianshou_ppo
from tests.markdown import ROOT, blocks


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


def test_my_learner_by_its_name_and_its_length(tmp_path: Path) -> None:
    assert len((ROOT / "examples" / "my_learner.py").read_text().splitlines()) < 60
    result = train(
        TrainConfig(
            algorithm="examples.my_learner:MyLearner",
            iterations=1,
            batch_size=8,
            eval_queries=4,
            out=tmp_path / "run",
            progress=False,
            tensorboard=False,
        )
    )
    # Its own defaults: one pass, as many steps as PPO, a third of the task's learning rate.
    assert result.metrics[0]["optimizer_steps"] == 2 * 4
    assert result.config.learning_rate == pytest.approx(1e-3)


def test_my_learner_is_the_one_of_the_page() -> None:
    page = ROOT / "docs" / "write_your_own_learner.md"
    shown = next(b.text for b in blocks(page) if b.text.startswith("# my_learner.py\n"))
    example = (ROOT / "examples" / "my_learner.py").read_text()
    for line in shown.splitlines():
        bare = line.strip()
        if bare and not bare.startswith(("#", '"""', "def ", "traits", "import ", "from ")):
            assert bare in example, line


def test_my_model_opens_as_a_model(tmp_path: Path) -> None:
    folder = my_model.main(str(tmp_path / "model"))
    first = load_model(str(folder)).model.state_dict()
    again = load_model(str(my_model.main(str(tmp_path / "again")))).model.state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert first["transformer.wte.weight"].shape == (12, 64)


@pytest.mark.case(68)
def test_every_example_is_tested() -> None:
    names = {path.stem for path in (ROOT / "examples").glob("*.py")}
    assert names == {
        "plain_env_loop",
        "my_learner",
        "my_model",
        "my_reward",
        "my_task",
        "stock_tianshou_ppo",
    }
