"""Settings of all tests: reproducible examples, one thread, no network."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest
from hypothesis import settings

# Before any library reads them.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Point the contract of the learners at another one."""
    parser.addoption(
        "--learner",
        metavar="MODULE:CLASS",
        help="run the contract tests of the learners with this one instead of the registered ones",
    )


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("hub") is not None:
        return
    connect = socket.socket.connect

    def local_only(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "::1", "localhost"):
            raise AssertionError(f"a test must not use the network, it asked for {address!r}")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", local_only)
