"""Tests of agents/config.py."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from agents.config import PRESETS, TrainConfig, from_mapping, resolved
from agents.methods import METHODS

BAD: list[tuple[str, Any]] = [
    ("method", "corry"),
    ("kl_estimator", "k2"),
    ("kl_scope", "both"),
    ("whiten", "rows"),
    ("dtype", "float16"),
    ("learning_rate_schedule", "cosine"),
    ("seed", -1),
    ("iterations", 0),
    ("batch_size", 0),
    ("batch_size", -2),
    ("batch_size", 7),
    ("minibatch_size", 0),
    ("update_epochs", 0),
    ("learning_rate", 0.0),
    ("learning_rate", -1e-4),
    ("learning_rate", math.nan),
    ("learning_rate", math.inf),
    ("max_grad_norm", 0.0),
    ("kl_coef", -0.1),
    ("kl_coef", math.nan),
    ("kl_target", 0.0),
    ("kl_target", -6.0),
    ("kl_horizon", 0),
    ("clip_coef", 0.0),
    ("clip_coef", -0.2),
    ("value_clip", -0.1),
    ("vf_coef", -0.1),
    ("vf_coef", math.inf),
    ("ent_coef", -0.1),
    ("gamma", 1.1),
    ("gamma", -0.1),
    ("gamma", math.nan),
    ("gae_lambda", 1.1),
    ("gae_lambda", math.nan),
    ("temperature", 0.0),
    ("temperature", math.nan),
    ("cooperation", math.nan),
    ("cooperation", math.inf),
    ("n_agents", 1),
    ("n_agents", 0),
    ("role_exchange_interval", 0),
    ("max_response_tokens", 0),
    ("max_prompt_tokens", 0),
    ("eval_interval", 0),
    ("eval_queries", 0),
    ("checkpoint_interval", 0),
    ("keep_checkpoints", 0),
    ("samples_per_iteration", -1),
    ("threads", 0),
]


@pytest.mark.case(40)
@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_bad_value_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{name} must .*got {value!r}".replace("'", ".")):
        TrainConfig(**{name: value})


def test_the_number_of_agents_belongs_to_the_method() -> None:
    assert TrainConfig(method="solo").agents_in_game == 1
    assert TrainConfig(method="cory").agents_in_game == 2
    assert TrainConfig(method="cory", n_agents=3).agents_in_game == 3
    with pytest.raises(ValueError, match="n_agents must be 1 for method solo, got 2"):
        TrainConfig(method="solo", n_agents=2)
    with pytest.raises(ValueError, match="multiple of the 3 agents, got 8"):
        TrainConfig(n_agents=3, batch_size=8)
    TrainConfig(method="solo", batch_size=7)  # odd is fine for one


def test_defaults_are_filled_task_first() -> None:
    full = resolved(TrainConfig(learning_rate=0.5), {"kl_coef": 0.25, "learning_rate": 0.1})
    assert full.learning_rate == 0.5  # the user's
    assert full.kl_coef == 0.25  # the task's
    assert full.batch_size == 128  # everybody's
    assert full.n_agents == 2


@pytest.mark.parametrize("method", METHODS)
def test_defaults_are_the_same_for_every_method(method: str) -> None:
    defaults = {"learning_rate": 1e-3, "batch_size": 64, "iterations": 7}
    full, cory = resolved(TrainConfig(method=method), defaults), resolved(TrainConfig(), defaults)
    changed = {
        f.name
        for f in dataclasses.fields(TrainConfig)
        if getattr(full, f.name) != getattr(cory, f.name)
    }
    assert changed <= {"method", "n_agents"}


def test_an_odd_chain_takes_the_next_multiple_of_the_default() -> None:
    assert resolved(TrainConfig(n_agents=3), {}).batch_size == 129


def test_a_tasks_default_must_name_a_setting() -> None:
    with pytest.raises(ValueError, match="learning_rat"):
        resolved(TrainConfig(), {"learning_rat": 1.0})


# Files.


def test_file_values_become_the_types_of_the_fields() -> None:
    got = from_mapping(
        {
            "learning-rate": "2e-4",  # YAML reads 2e-4 as text
            "kl_coef": 1,
            "iterations": 20.0,
            "batch_size": "64",
            "out": "runs/x",
            "data": None,
            "resume": True,
            "whiten": "batch",
            "method": "solo",
            "max_grad_norm": None,
            "n_agents": None,
        }
    )
    assert got == {
        "learning_rate": 2e-4,
        "kl_coef": 1.0,
        "iterations": 20,
        "batch_size": 64,
        "out": Path("runs/x"),
        "data": None,
        "resume": True,
        "whiten": "batch",
        "method": "solo",
        "max_grad_norm": None,
        "n_agents": None,
    }
    assert isinstance(got["kl_coef"], float) and isinstance(got["iterations"], int)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("iterations", 2.5),
        ("iterations", "many"),
        ("iterations", True),
        ("iterations", [3]),
        ("learning_rate", "fast"),
        ("learning_rate", {"a": 1}),
        ("resume", "yes"),
        ("resume", 1),
        ("method", 3),
        ("method", None),
        ("gamma", None),
        ("whiten", 1),
        ("progress", None),
    ],
)
def test_a_file_value_of_the_wrong_kind_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{name} must be "):
        from_mapping({name: value})


@pytest.mark.case(5)
@pytest.mark.parametrize("name", ["learning_rte", "Method", "", "versions"])
def test_an_unknown_setting_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=rf"setting '{name}' is not known"):
        from_mapping({name: 1})


def test_json_round_trip() -> None:
    config = TrainConfig(out=Path("a/b"), data=Path("c.txt"), learning_rate=1e-3, n_agents=3)
    assert TrainConfig(**from_mapping(json.loads(json.dumps(config.to_json())))) == config


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_valid_settings(name: str) -> None:
    assert set(PRESETS[name]) <= {f.name for f in dataclasses.fields(TrainConfig)}
    config = TrainConfig(**PRESETS[name])  # type: ignore[arg-type]
    assert config.kl_estimator == "reference"


def test_the_papers_numbers() -> None:
    imdb, gsm8k = PRESETS["paper_imdb"], PRESETS["paper_gsm8k"]
    # Batches of 256 and 32 queries for two agents; the value loss' 0.1 has a 1/2 inside.
    assert (imdb["learning_rate"], imdb["batch_size"], imdb["kl_coef"]) == (1.41e-5, 512, 0.3)
    assert (gsm8k["learning_rate"], gsm8k["batch_size"], gsm8k["kl_coef"]) == (1e-4, 64, 0.01)
    assert imdb["vf_coef"] == gsm8k["vf_coef"] == 0.05


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("iterations", 2.5, "a whole number"),
        ("iterations", True, "a whole number"),
        ("seed", "a", "a whole number"),
        ("seed", None, "a whole number"),
        ("learning_rate", "1e-3", "a number"),
        ("learning_rate", False, "a number"),
        ("task", 3, "text"),
        ("dtype", None, "text"),
        ("progress", 1, "True or False"),
        ("out", 3, "a path"),
    ],
)
def test_a_value_of_another_type_is_refused_from_python(name: str, value: Any, words: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name} must be {words}, got "):
        TrainConfig(**{name: value})


def test_paths_may_be_text() -> None:
    assert TrainConfig(out="runs/a", data="b.txt") == TrainConfig(
        out=Path("runs/a"), data=Path("b.txt")
    )


def test_an_adaptive_weight_must_not_begin_at_zero() -> None:
    with pytest.raises(ValueError, match="kl_coef must be positive where kl_target adapts it"):
        TrainConfig(kl_coef=0.0, kl_target=1.0)


def test_resume_from_needs_resume() -> None:
    with pytest.raises(ValueError, match="resume_from needs resume"):
        TrainConfig(resume_from=3)


@pytest.mark.parametrize("name", ["guard_length", "guard_entropy", "guard_repetition"])
def test_shares_are_shares(name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name} must be in \[0, 1\], got 1.5"):
        TrainConfig(**{name: 1.5})
