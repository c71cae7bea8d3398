"""Each file under examples/ does what it says."""

from __future__ import annotations

import ast
import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from agents.config import TrainConfig
from agents.models.load import load_model
from agents.train import train
from cory_env import Query, cory_v0, make_task
from cory_env.rewards import make_reward
from examples import my_model, my_task, plain_env_loop, plain_loop, stock_tianshou_ppo
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


def test_plain_torch_is_short_and_needs_nothing_of_ours_but_the_game() -> None:
    source = (ROOT / "examples" / "plain_loop.py").read_text()
    assert len(source.splitlines()) < 100
    nodes = list(ast.walk(ast.parse(source)))
    plain = [alias.name for n in nodes if isinstance(n, ast.Import) for alias in n.names]
    from_ = [n.module or "" for n in nodes if isinstance(n, ast.ImportFrom)]
    modules = {name.split(".")[0] for name in (*plain, *from_)}
    assert modules == {"__future__", "sys", "types", "torch", "pettingzoo", "cory_env"}


class Uniform(nn.Module):
    """Any of twelve tokens with the same chance, whatever was read."""

    def forward(self, tokens: Tensor) -> Tensor:
        return torch.zeros(*tokens.shape, 12)


def test_plain_torch_pays_the_pioneer_and_keeps_its_prompt_and_response() -> None:
    env = cory_v0.env("target", action_level="token")
    env.reset(seed=0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        episodes = [
            plain_loop.play(env, {"agent_0": Uniform(), "agent_1": Uniform()}) for _ in range(40)
        ]
    # A random response is right with a chance of 7/64, so 80 of them hardly miss all.
    scores = [own.score for played in episodes for own in played.values()]
    assert 0 < sum(scores) < len(scores)
    for played in episodes:
        pioneer, observer = played["agent_0"], played["agent_1"]
        assert pioneer.paid == observer.paid == pioneer.score + observer.score
        # `<s> a d |` and what it wrote, at most three tokens.
        assert len(pioneer.tokens) == 4 + pioneer.written
        assert pioneer.tokens[0] == 1 and pioneer.tokens[3] == 5
        assert 1 <= pioneer.written <= 3
        # `<s> a d |`, up to three words of the pioneer's, `|`.
        assert 5 <= len(observer.tokens) - observer.written <= 8


def test_plain_torch_loss_by_hand() -> None:
    # Payoffs 2 and 0: deviations 1 and -1 over their standard deviation sqrt(2), so 0.7071 and
    # -0.7071. Every token has a log-probability of -ln 12 and the entropy ln 12. The first wrote
    # two tokens, the second one: minus the mean of 2 (-0.7071 + 0.05) ln 12 and
    # (0.7071 + 0.05) ln 12, which is (0.7071 - 0.15) / 2 * ln 12 = 0.6922.
    batch = [
        SimpleNamespace(tokens=torch.tensor([1, 6, 7, 5, 8, 2]), written=2, paid=2.0),
        SimpleNamespace(tokens=torch.tensor([1, 6, 5, 9]), written=1, paid=0.0),
    ]
    by_hand = (math.sqrt(0.5) - 0.15) / 2 * math.log(12)
    assert by_hand == pytest.approx(0.6922, abs=1e-4)
    assert plain_loop.loss(Uniform(), batch).item() == pytest.approx(by_hand, rel=1e-4)


class Repeats(nn.Module):
    """Sure (but for a chance of 11 e**-9) that the next token is the one it just read."""

    def forward(self, tokens: Tensor) -> Tensor:
        return 9.0 * nn.functional.one_hot(tokens, 12).float()


def test_plain_torch_judges_the_tokens_that_were_written_and_no_others() -> None:
    # Both wrote what `Repeats` would write; the prompts are not what it would write. So the
    # log-probabilities of the responses are nearly 0, and with them the loss.
    batch = [
        SimpleNamespace(tokens=torch.tensor([1, 6, 7, 7, 7]), written=2, paid=2.0),
        SimpleNamespace(tokens=torch.tensor([1, 6, 6]), written=1, paid=0.0),
    ]
    assert abs(plain_loop.loss(Repeats(), batch).item()) < 0.01


@pytest.mark.slow
def test_plain_torch_teaches_both_agents() -> None:
    with torch.random.fork_rng():
        before, after = plain_loop.main()
    for agent in ("agent_0", "agent_1"):
        assert before[agent] < 0.2
        assert after[agent] > before[agent] + 0.5


# TorchRL changes settings of the process that imports it, so it gets one of its own.
needs_torchrl = pytest.mark.skipif(
    importlib.util.find_spec("torchrl") is None,
    reason="needs TorchRL: pip install 'cory-env[torchrl]'",
)


def in_another_process(code: str) -> str:
    """The last line that the code prints, run in the root of the repository."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.slow
@needs_torchrl
def test_torchrl_pays_the_pioneer_in_rows_of_the_observer() -> None:
    # The rows that are filtered before the advantages are made are lost to the pioneer.
    code = """
import json
from examples import torchrl_loop
games = torchrl_loop.make_games("train", role_schedule="fixed")
games.set_seed(0)
batch = games.rollout(60, break_when_any_done=False)
reward = {a: batch["next", a, "reward"].squeeze(-1) for a in torchrl_loop.AGENTS}
mask = {a: batch[a, "mask"] for a in torchrl_loop.AGENTS}
print(json.dumps([[float(r.sum()), float(r[mask[a]].sum())] for a, r in reward.items()]))
"""
    pioneer, observer = json.loads(in_another_process(code))
    assert pioneer[0] == observer[0] == observer[1] > 0
    assert pioneer[1] == 0


@pytest.mark.slow
@needs_torchrl
def test_torchrl_teaches_both_agents() -> None:
    # With fixed roles, so that the pioneer cannot learn from turns as an observer.
    code = """
import json
from examples.torchrl_loop import main
print(json.dumps(main(role_schedule="fixed")))
"""
    before, after = json.loads(in_another_process(code))
    for agent in ("agent_0", "agent_1"):
        assert before[agent] < 0.2
        assert after[agent] > before[agent] + 0.5


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
        "plain_loop",
        "stock_tianshou_ppo",
        "torchrl_loop",
    }
