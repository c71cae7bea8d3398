"""Tests of agents/guards.py: known answers, once an occurrence, and runs that trip each guard."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from agents.bridge.learner import LossParts
from agents.guards import GUARDS, Bounds, Health, Watch, check_stop_on, health, trips
from agents.learners.ppo import PPO
from agents.models.language_model import Scored
from agents.rollout import Prepared
from agents.train import TrainResult, train
from cory_env.records import EpisodeRecord, Query, Turn
from tests.agents.runs import config, lines, training_of

USUAL = Health(
    reward_spread=1.0,
    truncated=0.0,
    response_tokens=10.0,
    kl=0.0,
    entropy=2.0,
    distinct_2=0.8,
    unique=1.0,
)
ROLES = {"agent_0": "pioneer", "agent_1": "observer"}


# Known answers.


def turn(agent: str, ids: tuple[int, ...], payoff: float, truncated: bool = False) -> Turn:
    return Turn(
        agent=agent,
        role=ROLES[agent],
        prompt="q",
        prompt_tokens=1,
        dropped_tokens=0,
        response="r",
        response_ids=ids,
        truncated=truncated,
        score=payoff,
        payoff=payoff,
    )


def test_health_by_hand() -> None:
    records = [
        EpisodeRecord(
            query=Query("q"),
            turns=(turn("agent_0", ids, paid, cut), turn("agent_1", (9,), 0.0)),
        )
        for ids, paid, cut in (
            ((1, 2, 3), 0.5, True),
            ((1, 2), -0.25, False),
            ((1, 2), 0.0, False),
            ((4,), 0.0, False),
        )
    ]
    # Bigrams 12 23, 12, 12: two of four differ. Responses 123, 12, 12, 4: three of four differ.
    assert health("agent_0", records, 1.5, 0.25) == Health(
        reward_spread=0.75,
        truncated=0.25,
        response_tokens=2.0,
        kl=1.5,
        entropy=0.25,
        distinct_2=0.5,
        unique=0.75,
    )
    lone = health("agent_1", records[:1], 0.0, None)
    assert lone.reward_spread is None and lone.distinct_2 is None and lone.unique == 1.0


@pytest.mark.parametrize(
    ("guard", "just_in", "just_out"),
    [
        ("zero_reward_variance", {"reward_spread": 1e-9}, {"reward_spread": 0.0}),
        ("all_truncated", {"truncated": 0.99}, {"truncated": 1.0}),
        ("short_responses", {"response_tokens": 5.0}, {"response_tokens": 4.99}),
        ("kl", {"kl": 20.0}, {"kl": 20.01}),
        ("entropy", {"entropy": 0.5}, {"entropy": 0.49}),
        ("repetition", {"distinct_2": 0.4}, {"distinct_2": 0.39}),
        ("repetition", {"unique": 0.5}, {"unique": 0.49}),
    ],
)
def test_each_guard_trips_beyond_its_bound_and_only_there(
    guard: str, just_in: dict[str, float], just_out: dict[str, float]
) -> None:
    assert trips(replace(USUAL, **just_in), USUAL, Bounds()) == {}
    found = trips(replace(USUAL, **just_out), USUAL, Bounds())
    assert list(found) == [guard]
    name, value = next(iter(just_out.items()))
    assert found[guard].value == value
    if name not in ("reward_spread", "truncated"):
        assert found[guard].bound == next(iter(just_in.values()))
    assert found[guard].message


def test_numbers_that_are_not_there_trip_nothing() -> None:
    nothing = replace(USUAL, reward_spread=None, entropy=None, distinct_2=None)
    assert trips(nothing, USUAL, Bounds()) == {}
    assert trips(USUAL, nothing, Bounds()) == {}


def test_bounds_move_the_guards() -> None:
    worse = replace(USUAL, kl=3.0, response_tokens=8.0, entropy=1.5, unique=0.9)
    strict = Bounds(guard_kl=2.0, guard_length=0.9, guard_entropy=0.8, guard_repetition=0.95)
    assert trips(worse, USUAL, Bounds()) == {}
    assert list(trips(worse, USUAL, strict)) == ["kl", "short_responses", "entropy", "repetition"]


# Once an occurrence.


def test_an_occurrence_is_named_when_it_begins() -> None:
    watch, bad = Watch(), replace(USUAL, kl=50.0)
    named = []
    for i, now in enumerate([USUAL, bad, bad, USUAL, bad, bad], start=1):
        named += [
            (row["iteration"], row["guard"]) for row in watch.look(i, ROLES, {"agent_0": now})
        ]
    assert named == [(2, "kl"), (5, "kl")]


def test_what_is_usual_belongs_to_the_role() -> None:
    watch = Watch()
    short = replace(USUAL, response_tokens=4.0)  # observers answer in 4 tokens, pioneers in 10
    assert watch.look(1, ROLES, {"agent_0": USUAL, "agent_1": short}) == []
    swapped = {"agent_0": "observer", "agent_1": "pioneer"}
    assert watch.look(2, swapped, {"agent_0": short, "agent_1": USUAL}) == []
    rows = watch.look(3, swapped, {"agent_0": short, "agent_1": short})
    assert [(r["agent"], r["guard"]) for r in rows] == [("agent_1", "short_responses")]


def test_the_state_survives_json() -> None:
    watch = Watch()
    watch.look(1, ROLES, {"agent_0": USUAL})
    watch.look(2, ROLES, {"agent_0": replace(USUAL, kl=50.0)})
    again = Watch()
    again.restore(json.loads(json.dumps(watch.to_json())))
    assert again == watch
    assert again.look(3, ROLES, {"agent_0": replace(USUAL, kl=50.0)}) == []


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"usual": {"pioneer": {"kl": 1.0}}, "active": []},
        {"usual": [], "active": []},
        {"usual": {"pioneer": {**vars(USUAL), "kl": "x"}}, "active": []},
        {"usual": {}, "active": ["ab", "abc"]},
    ],
)
def test_a_state_that_is_something_else_is_refused(state: Any) -> None:
    with pytest.raises((AttributeError, KeyError, TypeError, ValueError)):
        Watch().restore(state)


def test_stop_on_names_guards() -> None:
    assert check_stop_on(None) == frozenset()
    assert check_stop_on(" kl, entropy,") == {"kl", "entropy"}
    assert check_stop_on("all") == GUARDS.keys()
    with pytest.raises(ValueError, match=r"stop_on must name guards: zero_.*'typo'"):
        config(stop_on="kl,typo")


# Runs that trip each of them, and one that trips nothing.


def zero(queries: Sequence[Query], responses: Sequence[str]) -> list[float]:
    return [0.0] * len(responses)


def length(queries: Sequence[Query], responses: Sequence[str]) -> list[float]:
    return [0.1 * len(response) + 0.01 * ord(query.text[0]) for query, response in
            zip(queries, responses, strict=True)]  # fmt: skip


QUIET: dict[str, Any] = {
    "iterations": 3,
    "batch_size": 32,
    "minibatch_size": None,
    "learning_rate": 1e-4,
    "eval_interval": 9,
    "checkpoint_interval": 9,
    "max_response_tokens": 8,
    "reward": "tests.agents.test_guards:length",
}
TRIPPED: dict[str, dict[str, Any]] = {
    "zero_reward_variance": {"reward": "tests.agents.test_guards:zero"},
    "all_truncated": {"max_response_tokens": 1, "guard_repetition": 0.0},
    "short_responses": {"guard_length": 1.0},
    "kl": {"guard_kl": 0.0},
    "entropy": {"guard_entropy": 1.0},
    "repetition": {"guard_repetition": 1.0},
}
"""What trips each guard soon; shares of 1 are left as soon as a number falls at all."""


def warnings_of(run: TrainResult) -> list[dict[str, Any]]:
    return lines(run.out / "warnings.jsonl") if (run.out / "warnings.jsonl").exists() else []


def test_a_quiet_run_is_named_nothing(
    run_of: Callable[..., TrainResult], capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of(**QUIET, stop_on="all")
    assert run.finished and run.stopped is None and run.status == 0
    assert not (run.out / "warnings.jsonl").exists()
    assert "warning" not in capsys.readouterr().err


@pytest.mark.case(22)
@pytest.mark.parametrize("guard", TRIPPED)
def test_a_run_that_trips_a_guard_says_so_and_goes_on(
    guard: str, run_of: Callable[..., TrainResult], capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of(**{**QUIET, **TRIPPED[guard]})
    assert run.finished
    rows = [row for row in warnings_of(run) if row["guard"] == guard]
    assert rows
    assert rows[0].keys() == {"iteration", "agent", "guard", "value", "bound", "message"}
    first = rows[0]
    shown = capsys.readouterr().err
    assert f"warning: iteration {first['iteration']}, {first['agent']}, {guard}: " in shown


@pytest.mark.case(22)
@pytest.mark.parametrize("guard", ["zero_reward_variance", "entropy"])
def test_a_run_that_is_to_stop_on_a_guard_stops_and_resumes_to_the_same_end(
    guard: str, run_of: Callable[..., TrainResult], tmp_path: Path
) -> None:
    settings = {**QUIET, **TRIPPED[guard]}
    whole = run_of(**settings)
    first = next(row["iteration"] for row in warnings_of(whole) if row["guard"] == guard)
    stopped = train(config(tmp_path / "run", **settings, stop_on=guard))
    assert not stopped.finished and stopped.status == 1
    assert stopped.stopped is not None
    assert f"stopped after iteration {first} (iteration {first}, agent_" in stopped.stopped
    assert f"{guard}: " in stopped.stopped and "--resume" in stopped.stopped
    assert (tmp_path / "run/checkpoints/latest").read_text() == f"{first:06d}\n"
    # Who resumes has seen it: the same occurrence does not stop the run again.
    again = train(config(tmp_path / "run", **settings, resume=True))
    assert again.finished
    assert warnings_of(again) == warnings_of(whole)


# A loss or a gradient that is not finite.


class Breaking(PPO):
    """Its loss is not finite for agent_1 in one step; `at` and `what` say which."""

    at = (2, 3)
    what = "loss"
    steps: dict[str, int] = {}  # noqa: RUF012

    def loss(self, scored: Scored, batch: Prepared) -> tuple[torch.Tensor, LossParts]:
        total, parts = super().loss(scored, batch)
        key = f"{self.agent}/{self.iteration}"
        Breaking.steps[key] = Breaking.steps.get(key, 0) + 1
        if self.agent == "agent_1" and (self.iteration, Breaking.steps[key]) == Breaking.at:
            # sqrt has an infinite gradient at 0, and the loss stays finite.
            total = total * torch.nan if self.what == "loss" else total + zero_root(scored.values)
        return total, parts


def zero_root(values: torch.Tensor) -> torch.Tensor:
    return torch.sqrt((values - values.detach()).sum())


@pytest.mark.parametrize("what", ["loss", "gradient"])
@pytest.mark.parametrize("step", [1, 3])
def test_a_step_that_is_not_finite_is_not_taken_and_the_batch_is_kept(
    what: str, step: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Breaking, "at", (3, step))
    monkeypatch.setattr(Breaking, "what", what)
    monkeypatch.setattr(Breaking, "steps", {})
    settings = {"algorithm": "tests.agents.test_guards:Breaking", "checkpoint_interval": 9}
    training = training_of(tmp_path / "run", **settings)
    message = f"the update of agent_1 in iteration 3 diverged: its {what} is not finite"
    with pytest.raises(ValueError, match=message):
        training.run()
    actor = training.session.learners["agent_1"].actor
    assert all(bool(torch.isfinite(t).all()) for t in actor.state_dict().values())
    folder = tmp_path / "run/failed_batch"
    assert sorted(p.name for p in folder.iterdir()) == ["about.json", "batch.safetensors"]
    about = json.loads((folder / "about.json").read_text())
    assert (about["agent"], about["iteration"], about["not_finite"]) == ("agent_1", 3, what)
    assert bool(about["gradients_not_finite"]) == (what == "gradient")
    batch = load_file(folder / "batch.safetensors")
    assert {"prompt_ids", "response_ids", "logprobs", "advantages", "returns"} <= batch.keys()
    # The last finished iteration has its checkpoint, though none was due and weights had changed.
    assert (tmp_path / "run/checkpoints/latest").read_text() == "000002\n"
    monkeypatch.setattr(Breaking, "at", (0, 0))
    again = train(config(tmp_path / "run", resume=True, **settings))
    whole = train(config(tmp_path / "whole", **settings))
    assert [row["agent_1/score"] for row in again.metrics] == [
        row["agent_1/score"] for row in whole.metrics
    ]
    assert not folder.exists()
