"""Tests of benchmarks/token_path.py: what it compares, not how long that takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import token_path
from benchmarks.speed import NEW_TOKENS, SHAPES


@pytest.mark.slow
def test_both_paths_play_a_whole_batch(tmp_path: Path) -> None:
    made = token_path.paths(tmp_path, "tiny")
    whole = 2 * SHAPES["tiny"].queries * NEW_TOKENS
    # One token in 2,048 ends a response, so nearly all have all their tokens.
    for collect in vars(made).values():
        assert 0.9 * whole < collect() <= whole


def test_a_ratio_above_the_limit_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def compare(_: str, rounds: int) -> dict[str, list[float]]:
        return {"responses": [100.0] * rounds, "tokens": [slow] * rounds}

    monkeypatch.setattr(token_path, "compare", compare)
    slow = 299.0
    assert token_path.main(["--rounds", "3"]) == 0
    assert "token path / response path 2.99, limit 3" in capsys.readouterr().out
    slow = 301.0
    assert token_path.main(["--rounds", "3"]) == 1
    assert "FAILED: 3.01 is above the limit 3" in capsys.readouterr().out
