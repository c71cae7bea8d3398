"""Packages that only some of the work needs: imported when it does, and named when missing."""

from __future__ import annotations

import importlib
from typing import Any


def optional(module: str, extra: str, purpose: str) -> Any:
    """Import a module of an extra.

    Args:
        module: its dotted name.
        extra: the extra of this distribution that installs it.
        purpose: what needs it; the error begins with it.

    Raises:
        ValueError: if it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ValueError(
            f"{purpose} needs the extra {extra!r}: pip install 'cory-env[{extra}]' ({error})"
        ) from error
