"""Small runs, made quick."""

from __future__ import annotations

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _no_curves(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Half of the time of a tiny run goes into its figure, which no test here looks at."""
    if "global_generators" not in request.node.name:  # there everything that a run does counts
        monkeypatch.setattr("agents.training.draw_curves", lambda *args: None)
