"""Determinism: named streams only, and nothing that does not belong to the game moves a token."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agents.bridge.stock import seeded, stock_ppo, token_vector_env, train_stock
from agents.models.load import load_model
from agents.train import train
from cory_env import cory_v0
from tests.agents.runs import (
    assert_same_tensors,
    config,
    learner_state,
    lines,
    session_of,
    stopping_after,
    training_of,
    weights,
    without_seconds,
)
from tests.cases.models import KINDS, model_folder

State = tuple[object, list[int], list[int]]


def global_state() -> State:
    """Of the three generators that everybody shares."""
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore[index]


def scramble(seed: int) -> State:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    return global_state()


EVENTS = {"tensorboard": True, "kl_target": 0.05, "kl_horizon": 50}
"""Beside what a small run has: exchanges, evaluations, checkpoints, exported models."""


@pytest.mark.case(36, 52, 61)
def test_a_run_neither_reads_nor_moves_the_global_generators(tmp_path: Path) -> None:
    before = scramble(1)
    one = train(config(tmp_path / "one", iterations=2, **EVENTS))
    assert global_state() == before
    before = scramble(2)
    training_of(tmp_path / "two", stopping_after(1), iterations=2, **EVENTS).run()
    two = train(config(tmp_path / "two", iterations=2, resume=True, **EVENTS))
    assert global_state() == before
    assert without_seconds(one.metrics) == without_seconds(two.metrics)
    assert lines(tmp_path / "one/samples.jsonl") == lines(tmp_path / "two/samples.jsonl")
    assert_same_tensors(weights(tmp_path / "one/final"), weights(tmp_path / "two/final"))


@pytest.mark.parametrize("kind", KINDS)
def test_opening_and_judging_a_model_leaves_the_global_generators(
    kind: str, tmp_path: Path
) -> None:
    folder = model_folder(tmp_path / "model", kind)
    before = scramble(3)
    load_model(str(folder))
    assert global_state() == before
    session_of(model=str(folder), max_prompt_tokens=60, max_response_tokens=3)
    assert global_state() == before


def test_the_environment_leaves_the_global_generators() -> None:
    def played(seed: int | None) -> list[tuple[str, str]]:
        env = cory_v0.env(role_schedule="random")
        env.reset(seed=seed)
        seen = []
        for _ in range(5):
            seen.append((env.unwrapped.episode.query.text, env.agent_selection))
            for agent in env.agent_iter():
                done = env.last()[2]
                env.step(None if done else np.array([env.possible_agents.index(agent) + 5, 2, -1]))
            env.reset()
        return seen

    before = scramble(4)
    first = played(9)
    assert global_state() == before
    scramble(5)
    assert played(9) == first
    before = global_state()
    played(None)  # even without a seed: what is drawn then comes from the system
    assert global_state() == before


def test_a_rerun_is_equal_to_the_last_bit(tmp_path: Path) -> None:
    one, two = (
        training_of(tmp_path / name, iterations=2, eval_queries=2) for name in ("one", "two")
    )
    one.run()
    two.run()
    assert without_seconds(one.folder.metrics()) == without_seconds(two.folder.metrics())
    assert_same_tensors(learner_state(one.session), learner_state(two.session))


@pytest.mark.case(12, 19)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_width_of_the_padding_moves_no_token(dtype: str, tmp_path: Path) -> None:
    def samples(width: int) -> list[dict[str, Any]]:
        out = tmp_path / str(width)
        settings = {"iterations": 2, "eval_queries": 2, "dtype": dtype}
        training_of(out, max_prompt_tokens=width, **settings).run()
        return lines(out / "samples.jsonl")

    assert samples(12) == samples(29)


@pytest.mark.case(12)
@pytest.mark.parametrize("kind", ["collect", "measure"])
def test_chunks_move_no_token_in_float64(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def first_batch(name: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        training = training_of(
            tmp_path / name, iterations=1, dtype="float64", batch_size=24, eval_queries=2
        )
        training.run()
        return lines(tmp_path / name / "samples.jsonl"), training.session.team.rollouts

    whole_samples, whole = first_batch("whole")
    if kind == "measure":
        monkeypatch.setattr("agents.sampling.CHUNK_ROWS", 5)
    else:
        in_parts(monkeypatch, 5)
    part_samples, parts = first_batch("parts")
    assert part_samples == whole_samples
    for agent, rollout in whole.items():
        assert torch.equal(rollout.response_ids, parts[agent].response_ids)
        for name in ("logprobs", "kl", "entropy", "values", "ref_logprobs"):
            one, two = getattr(rollout, name), getattr(parts[agent], name)
            assert torch.allclose(one, two, atol=1e-10, rtol=0), name


def in_parts(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Let every draw go through the model a few rows at a time."""
    from agents.bridge import policy as module
    from agents.sampling import Sampled, sample

    def parts(model: Any, prompts: Any, uniforms: Any, **options: Any) -> Sampled:
        found = [
            sample(model, prompts[i : i + size], uniforms[i : i + size], **options)
            for i in range(0, len(prompts), size)
        ]
        fields = ("response_ids", "logprobs", "values", "hidden")
        return Sampled(**{f: torch.cat([getattr(part, f) for part in found]) for f in fields})

    monkeypatch.setattr(module, "sample", parts)


# Stock learners draw from the global generators, so those are seeded around them.


def stock_rewards(seed: int) -> list[dict[str, float]]:
    env = token_vector_env(3, 0, reward="tests.agents.rewards:distinct")
    models = [learner.actor for learner in session_of().learners.values()]
    return train_stock(
        stock_ppo(models, env.workers[0].env, learning_rate=1e-2),
        env,
        ["agent_0", "agent_1"],
        iterations=2,
        update_epochs=1,
        minibatch_size=4,
        max_episode_steps=6,
        seed=seed,
    )


@pytest.mark.case(59)
def test_stock_training_neither_reads_nor_moves_the_global_generators() -> None:
    before = scramble(6)
    first = stock_rewards(1)
    assert global_state() == before
    scramble(7)
    assert stock_rewards(1) == first
    assert stock_rewards(2) != first


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_seeded_restores_the_generators_when_something_fails(error: type[BaseException]) -> None:
    def fails(context: Callable[[], AbstractContextManager[None]]) -> None:
        with context():
            random.random()
            np.random.rand()
            torch.rand(())
            raise error

    before = scramble(8)
    with pytest.raises(error):
        fails(lambda: seeded(0, "stock"))
    assert global_state() == before
