"""Tests of agents/stock_training.py: whole runs of stock algorithms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from agents.bridge.stock import ALGORITHMS, networks
from agents.bridge.stock.cache import TurnCache
from agents.config import TrainConfig
from agents.guards import NonFiniteError
from agents.stock_training import StockTraining, is_stock
from agents.train import train
from agents.trained import open_agents
from agents.training import TrainResult
from tests.agents.runs import (
    assert_same_tensors,
    config,
    learner_state,
    lines,
    training_of,
    weights,
    without_seconds,
)

QUICK = ("A2C", "DQN")
EVERY = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in ALGORITHMS]
ON_POLICY = [p for p in EVERY if not ALGORITHMS[str(p.values[0])].off_policy]
DISTINCT = {"reward": "tests.agents.rewards:distinct", "update_epochs": 1}


def run(out: Path, name: str, **settings: Any) -> TrainResult:
    return train(config(out, algorithm=f"tianshou:{name}", **{**DISTINCT, **settings}))


def test_the_prefix_chooses_the_loop() -> None:
    assert is_stock("tianshou:PPO") and not is_stock("ppo")


@pytest.mark.parametrize("name", EVERY)
def test_a_run_leaves_what_every_run_leaves(tmp_path: Path, name: str) -> None:
    off_policy = ALGORITHMS[name].off_policy
    result = run(tmp_path / "run", name)
    assert result.finished
    out = tmp_path / "run"
    rows = lines(out / "metrics.jsonl")
    assert [row["iteration"] for row in rows] == [1, 2, 3, 4]
    samples = lines(out / "samples.jsonl")
    for row in rows:
        own = [s for s in samples if s["iteration"] == row["iteration"]]
        # Exchange after every second iteration; scores and payoffs are those of the samples.
        first = "agent_0" if row["iteration"] <= 2 else "agent_1"
        assert row[f"{first}/role"] == "pioneer"
        assert all(s["roles"][first] == "pioneer" for s in own)
        for agent in ("agent_0", "agent_1"):
            scores = [s["scores"][agent] for s in own]
            assert row[f"{agent}/score"] == pytest.approx(sum(scores) / len(scores))
            paid = [sum(s["scores"].values()) for s in own]
            assert row[f"{agent}/reward"] == pytest.approx(sum(paid) / len(paid))
            assert (row[f"{agent}/kl"] is None) == off_policy
            assert (row[f"{agent}/entropy"] is None) == off_policy
        assert row["episodes"] == 4 * row["iteration"]
        assert row["scored_responses"] == 8 * row["iteration"]
        assert row["optimizer_steps"] > 0
    initial = json.loads((out / "eval_initial.json").read_text())
    assert {f"eval/agent_{i}/score" for i in (0, 1)} <= initial.keys() & rows[-1].keys()
    assert (initial["eval/agent_0/kl"] is None) == ALGORITHMS[name].greedy
    assert (out / "curves.png").is_file()
    for folder in ("final", "best"):
        assert (out / folder).exists() == (not off_policy)
    assert list((out / "checkpoints").iterdir()) == [] or not off_policy
    if off_policy:
        with pytest.raises(ValueError, match=f"tianshou:{name} leaves none behind"):
            open_agents(run=out, model=None, config=TrainConfig(), reference=None)
        return
    for agent in ("agent_0", "agent_1"):
        AutoModelForCausalLM.from_pretrained(out / "final" / agent)


@pytest.mark.parametrize("name", ON_POLICY)
def test_a_resumed_run_equals_one_that_was_not_interrupted(tmp_path: Path, name: str) -> None:
    whole = run(tmp_path / "whole", name, eval_queries=2)
    run(tmp_path / "cut", name, eval_queries=2, iterations=2)
    again = run(tmp_path / "cut", name, eval_queries=2, resume=True)
    # Every second iteration is evaluated, so the shorter run wrote nothing that the other did not.
    assert without_seconds(again.metrics) == without_seconds(whole.metrics)
    assert_same_tensors(weights(tmp_path / "cut" / "final"), weights(tmp_path / "whole" / "final"))


@pytest.mark.parametrize("name", EVERY)
def test_the_same_seed_gives_the_same_run(tmp_path: Path, name: str) -> None:
    settings = {"iterations": 1, "eval_queries": 2}
    one = run(tmp_path / "one", name, **settings)
    two = run(tmp_path / "two", name, **settings)
    other = run(tmp_path / "other", name, **settings, seed=1)
    assert without_seconds(one.metrics) == without_seconds(two.metrics)
    assert without_seconds(one.metrics) != without_seconds(other.metrics)


def test_role_exchange_touches_no_optimizer(tmp_path: Path) -> None:
    made = training_of(tmp_path / "run", StockTraining, algorithm="tianshou:PPO", **DISTINCT)
    for _ in range(2):
        made.trainer.run_iteration()
    before = learner_state(made.session)
    assert any("optimizer" in name for name in before)
    made.session.begin(3)
    assert made.session.turn_order(3) != made.session.turn_order(2)
    assert_same_tensors(learner_state(made.session), before)


def test_every_token_is_fed_once_while_episodes_are_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[TurnCache] = []

    class Recorded(TurnCache):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            kept.append(self)

    monkeypatch.setattr(networks, "TurnCache", Recorded)
    made = training_of(tmp_path / "run", StockTraining, algorithm="tianshou:PPO", **DISTINCT)
    for _ in range(2):
        made.trainer.run_iteration()
        turns = [turn for record in made.session.env.records() for turn in record.turns]
        fed = sum(turn.prompt_tokens + len(turn.response_ids) - 1 for turn in turns)
        assert [cache.tokens_fed for cache in kept[-2:]] != [0, 0]
        assert sum(cache.tokens_fed for cache in kept[-2:]) == fed
    assert len(kept) == 4  # none lives through an update


def test_values_are_evaluated_by_the_largest_and_explored_while_collecting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ALGORITHMS["DQN"], "exploration", 1.0)
    settings = {"algorithm": "tianshou:DQN", "batch_size": 64, **DISTINCT}
    made = training_of(tmp_path / "run", StockTraining, **settings)
    made.trainer.run_iteration()
    turns = [t for r in made.session.env.records() for t in r.turns if t.agent == "agent_0"]
    # All tokens at random; by the untrained values alone the first would be one of a few.
    assert len({turn.response_ids[0] for turn in turns}) > 8
    prompt = np.array([[-1, 1, 6, 7, 5]])
    answers = [
        made.session.evaluators["agent_0"].respond(prompt, np.full((1, 3), u))[0].response_ids
        for u in (0.01, 0.5, 0.99)
    ]
    assert all(torch.equal(answer, answers[0]) for answer in answers)


def test_an_adaptive_weight_of_the_kl_moves_and_is_kept(tmp_path: Path) -> None:
    settings = {"kl_target": 0.001, "kl_horizon": 4, "iterations": 2}
    run(tmp_path / "run", "A2C", **settings)
    state = json.loads((tmp_path / "run" / "checkpoints" / "000002" / "agent_0.json").read_text())
    assert state["kl_coef"] != 0.01


def test_a_replay_that_is_stopped_says_that_it_cannot_go_on(tmp_path: Path) -> None:
    settings = {"stop_on": "zero_reward_variance", "reward": "tests.agents.rewards:constant"}
    result = run(tmp_path / "run", "DQN", **settings)
    assert not result.finished
    assert result.stopped is not None
    assert "cannot go on" in result.stopped and "--resume" not in result.stopped


@pytest.mark.parametrize(
    ("method", "agents"), [("solo", 1), ("independent", 2), ("cory_exact", 2), ("cory", 3)]
)
def test_other_methods_play_too(tmp_path: Path, method: str, agents: int) -> None:
    settings = {"method": method, "n_agents": agents, "batch_size": 2 * agents, "iterations": 1}
    result = run(tmp_path / "run", "A2C", **settings)
    assert result.finished
    for sample in lines(tmp_path / "run" / "samples.jsonl"):
        scores, paid = sample["scores"], sample["rewards"]
        assert len(scores) == agents
        if method == "cory_exact":  # the pioneer is paid for both, the observer for itself
            assert paid["agent_0"] == pytest.approx(sum(scores.values()))
        own = {"solo", "independent", "cory_exact"}
        last = f"agent_{agents - 1}"
        assert paid[last] == pytest.approx(scores[last] if method in own else sum(scores.values()))


@pytest.mark.filterwarnings(r"ignore:std\(\):UserWarning")
def test_weights_that_became_nan_within_an_update_end_the_run_with_a_sentence(
    tmp_path: Path,
) -> None:
    # Tianshou's PPO divides by the standard deviation of one number, and then meets its own NaN.
    out, settings = tmp_path / "run", {"batch_size": 2, "max_response_tokens": 1}
    with pytest.raises(NonFiniteError, match="the update of agent_0 in iteration 1 diverged"):
        train(config(out, algorithm="tianshou:PPO", update_epochs=2, **settings))
    assert (out / "failed_batch").is_dir()


def test_a_replay_that_diverges_leaves_its_responses(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(NonFiniteError, match="diverged"):
        run(out, "DQN", learning_rate=1e30)
    assert (out / "failed_batch").is_dir()


@pytest.mark.parametrize("settings", [{"dtype": "bfloat16"}, {"autocast": "bfloat16"}])
@pytest.mark.parametrize("name", ["DQN", pytest.param("DiscreteSAC", marks=pytest.mark.slow)])
def test_a_replay_learns_in_half_precision(
    tmp_path: Path, name: str, settings: dict[str, Any]
) -> None:
    result = run(tmp_path / "run", name, iterations=1, eval_queries=2, **settings)
    assert result.finished and result.metrics[-1]["agent_0/value_loss"] is not None


@pytest.mark.parametrize("name", ["NPG", "TRPO"])
def test_the_kl_of_untouched_weights_is_zero_with_the_other_attention(
    tmp_path: Path, name: str
) -> None:
    result = run(tmp_path / "run", name, iterations=1, batch_size=8, eval_queries=2)
    assert result.metrics[0]["agent_0/kl"] == result.metrics[0]["agent_1/kl"] == 0.0
