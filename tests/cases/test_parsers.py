"""Inputs that once ended in something else than a sentence; `tests/test_fuzz.py` looks for more."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from agents.command_line import settings_from_file
from agents.config import TrainConfig
from agents.session import _task_keywords
from cory_env import GameRules
from cory_env.data_files import read_queries
from cory_env.mixing import mixing
from cory_env.records import EpisodeRecord
from cory_env.registry import resolve
from cory_env.rewards.base import make_reward
from cory_env.tokens import as_tokenizer

DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (DEEP, "broken JSON"),
        ('{"query": "a", "answer": ' + "9" * 5000 + "}", "broken JSON"),
        ('{"query": "a \\ud800"}', "half of a surrogate pair"),
        ('{"query": "a", "answer": "\\udfff"}', "half of a surrogate pair"),
    ],
    ids=["deep", "long number", "query", "answer"],
)
def test_lines_of_data(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text('{"query": "good"}\n' + line)
    with pytest.raises(ValueError, match=rf"q\.jsonl, line 2: {message}"):
        read_queries(path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.json", DEEP),
        ("c.yaml", DEEP),
        ("c.json", '{"seed": ' + "9" * 5000 + "}"),
        ("c.yaml", "seed: !!int ''"),
        ("c.yaml", "seed: !!bool x"),
        ("c.yaml", "1: 2"),
        ("c.yaml", "? [a]\n: b"),
        ("c.yaml", "learning_rate: " + "9" * 400),
    ],
)
def test_settings(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=rf"{re.escape(name)}|learning_rate"):
        settings_from_file(tmp_path / name)


@pytest.mark.parametrize("value", [DEEP, "!!int ''", "!!bool x"])
def test_task_keywords(value: str) -> None:
    with pytest.raises(ValueError, match="task_args must be name=value"):
        _task_keywords(TrainConfig(task_args=f"kappa={value}"))


@pytest.mark.parametrize("spec", [".tasks:x", "..a:b", ":x", "a\x00b:c"])
def test_names(spec: str) -> None:
    with pytest.raises(ValueError, match="cannot import"):
        resolve(spec, {}, "task")


def test_a_reward_class_that_wants_arguments() -> None:
    with pytest.raises(ValueError, match=r"'fractions:Decimal.__class__' cannot be built without"):
        make_reward("fractions:Decimal.__class__")


def test_a_matrix_of_numbers_beyond_floats() -> None:
    with pytest.raises(ValueError, match="reward_mixing must be"):
        mixing([[10**400, 0], [0, 1]], 2)


@pytest.mark.parametrize("line", [DEEP, "[]", "{}", '{"query": {"q": 1}, "turns": []}', "3"])
def test_records(line: str) -> None:
    with pytest.raises(ValueError, match=r"record of an episode|Expecting"):
        EpisodeRecord.from_json(line)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tokenizer.json", "{}"),
        ("tokenizer.json", '{"model": 3}'),
        ("tokenizer_config.json", DEEP),
        ("tokenizer_config.json", "{"),
        ("tokenizer_config.json", '{"eos_token": 3}'),
        ("tokenizer_config.json", '{"eos_token": {"content": ["a"]}}'),
    ],
)
def test_tokenizers(name: str, text: str, tmp_path: Path) -> None:
    good: Any = GameRules.make("target").tokenizer.backend
    (tmp_path / "tokenizer.json").write_text(good.to_str())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    assert as_tokenizer(tmp_path).end_ids == (2,)
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=re.escape(name)):
        as_tokenizer(tmp_path)
