"""The page about gradients says what the code does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tools import gradient_table
from tools.gradient_table import Error


def test_the_page_is_up_to_date() -> None:
    assert gradient_table.main(["--check"]) == 0


def test_a_page_that_is_out_of_date_is_named_and_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gradient_table, "PAGE", tmp_path / "gradients.md")
    monkeypatch.setattr(gradient_table, "page", lambda: "new\n")
    assert gradient_table.main(["--check"]) == 1
    gradient_table.PAGE.write_text("old\n", encoding="utf-8")
    assert gradient_table.main(["--check"]) == 1
    assert "gradients.md is out of date" in capsys.readouterr().err
    assert gradient_table.main([]) == 0
    assert gradient_table.PAGE.read_text(encoding="utf-8") == "new\n"
    assert gradient_table.main(["--check"]) == 0
    assert [p.name for p in tmp_path.iterdir()] == ["gradients.md"]


def test_errors_by_hand() -> None:
    true = torch.tensor([3.0, 4.0], dtype=torch.float64)
    assert Error.of(true, true).cells() == ["0", "1.00", "0", "exact"]
    assert Error.of(2 * true, true).cells() == ["1", "2.00", "0", "exact up to the factor"]
    # (4, -3) is at right angles to the gradient and as long: error 1, and no multiple is near.
    turned = true + torch.tensor([4.0, -3.0], dtype=torch.float64)
    assert Error.of(turned, true).cells() == ["1", "1.00", "1", "biased"]
    nothing = Error.of(torch.zeros_like(true), true)
    assert nothing.cells() == ["1", "0.00", "–", "biased"]
