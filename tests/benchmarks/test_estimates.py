from __future__ import annotations

import sys

import pytest

from benchmarks import estimates
from benchmarks.estimates import CASES, LIMIT, Compared, in_a_process, main, table


def test_an_error_is_a_share_of_what_was_measured() -> None:
    assert Compared(1.2e9, 1.0e9, "update").error == pytest.approx(0.2)
    assert Compared(3e9, 4e9, "update").error == pytest.approx(-0.25)


def test_the_table_shows_both_numbers_and_the_error() -> None:
    text = table({"one": Compared(1.2e9, 1.0e9, "update"), "two": Compared(2e9, 2.5e9, "save")})
    assert [word for word in text.split() if word in ("+20%", "-20%")] == ["+20%", "-20%"]
    assert "1.20 GB" in text
    assert "2.50 GB" in text


@pytest.mark.parametrize(("error", "status"), [(0.9 * LIMIT, 0), (1.1 * LIMIT, 1)])
def test_an_estimate_that_is_off_fails(
    error: float, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(estimates, "in_a_process", lambda name: Compared(1 - error, 1.0, "save"))
    monkeypatch.setattr(sys, "argv", ["estimates", "tiny"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == status
    assert ("FAILED: tiny" in capsys.readouterr().out) == bool(status)


@pytest.mark.slow
def test_what_is_foreseen_is_what_a_process_takes() -> None:
    """Larger sizes are `python -m benchmarks.estimates`: minutes."""
    found = in_a_process("tiny, batch 64")
    assert abs(found.error) <= LIMIT, found


def test_three_sizes_are_compared() -> None:
    assert len({case.shape for case in CASES.values()}) >= 3
