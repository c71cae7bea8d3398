"""Small real runs that several test files look at; a run is played once in a session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from agents.train import TrainResult, train
from tests.agents.runs import config

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def cory_run(tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    """Four iterations of CORY with every kind of event: exchanges, evaluations, checkpoints."""
    return train(config(tmp_path_factory.mktemp("cory") / "run", tensorboard=True))


@pytest.fixture(scope="session")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., TrainResult]:
    """Play a run of other settings, each combination once."""
    played: dict[str, TrainResult] = {}

    def play(**settings: object) -> TrainResult:
        name = repr(sorted(settings.items()))
        if name not in played:
            folder: Path = tmp_path_factory.mktemp("run") / "run"
            played[name] = train(config(folder, **settings))
        return played[name]

    return play
