"""Ctrl-C and SIGTERM: end after the iteration, not inside it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """Whether somebody asked the run to end, and how."""

    def __init__(self) -> None:
        self.signal: int | None = None
        """Number of the signal; None while nobody asked."""

    @property
    def asked(self) -> bool:
        """Whether to end after this iteration."""
        return self.signal is not None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take the first Ctrl-C or SIGTERM as a request; a second one ends the run at once."""
        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread may set handlers
            return

        def ask(number: int, frame: FrameType | None) -> None:
            self.signal = number
            for known, handler in before.items():
                signal.signal(known, handler)

        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
