"""Tests of cory_env/extras.py."""

from __future__ import annotations

import math
import sys

import pytest

from cory_env.extras import optional


def test_a_module_that_is_there_is_returned() -> None:
    assert optional("math", "data", "x") is math


def test_a_missing_one_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    message = r"task 'x' needs the extra 'gsm-symbolic': pip install 'cory-env\[gsm-symbolic\]' \("
    with pytest.raises(ValueError, match=message):
        optional("reasoning_gym", "gsm-symbolic", "task 'x'")
