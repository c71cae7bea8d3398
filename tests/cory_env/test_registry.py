"""Tests of cory_env/registry.py."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest

from cory_env.registry import resolve

TABLE = {"one": 1, "two": 2}


def test_a_known_name_is_looked_up() -> None:
    assert resolve("two", TABLE, "number") == 2


def test_module_and_name_come_from_anywhere() -> None:
    assert resolve("math:pi", TABLE, "number") == math.pi
    assert resolve("pathlib:Path.cwd", TABLE, "number")() == Path.cwd()


def test_the_working_directory_is_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "somebody_elses_module.py").write_text("THING = 7\n")
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(tmp_path))])
    monkeypatch.chdir(tmp_path)
    assert resolve("somebody_elses_module:THING", TABLE, "number") == 7


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("three", r"unknown number 'three'; known are one, two, or give 'module:name'"),
        ("no_such_module:x", "cannot import 'no_such_module'"),
        (":x", "cannot import ''"),
        ("math:no_such_name", "math has no 'no_such_name'"),
        (3, "number must be a name or 'module:name', got 3"),
    ],
)
def test_what_can_not_be_found_is_said_in_one_sentence(spec: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resolve(spec, TABLE, "number")
