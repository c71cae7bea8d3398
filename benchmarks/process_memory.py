"""What the system says of this process's memory."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

STATUS = Path("/proc/self/status")


def resident(field: str) -> int:
    """Bytes of this process: `VmRSS` now, `VmHWM` the largest so far.

    Raises:
    ------
    OSError
        Where the system has no `/proc/self/status`.
    """
    for line in STATUS.read_text(encoding="utf-8").splitlines():
        if line.startswith(field + ":"):
            return 1024 * int(line.split()[1])
    raise OSError(f"{STATUS} has no {field}")


def peak_memory() -> int:
    """Largest resident memory of this process so far, bytes.

    `getrusage` starts from what the parent held, which a child keeps through fork and exec: it
    is asked only where there is no `/proc`.
    """
    if STATUS.exists():
        return resident("VmHWM")
    unit = 1 if sys.platform == "darwin" else 1024  # that system counts in bytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def forget_peak() -> None:
    """Let the largest so far start again from what is held now (Linux)."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
