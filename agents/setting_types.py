"""The types of settings: what Python may give, and what a file's plain values become."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any


def check_type(name: str, kind: str, value: Any) -> None:
    """Refuse a value of another type: 2.5 iterations or True queries would fail much later.

    Args:
        name: of the setting.
        kind: the field's type as written.
        value: as given from Python.

    Raises:
        ValueError: naming the setting.
    """
    if value is None and "None" in kind:
        return
    wanted, words = next(found for word, found in _ALLOWED.items() if word in kind)
    if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
        raise ValueError(f"{name} must be {words}, got {value!r}")


_ALLOWED: dict[str, tuple[type | tuple[type, ...], str]] = {
    "Path": ((Path, str), "a path"),
    "bool": (bool, "True or False"),
    "float": ((int, float), "a number"),
    "int": (int, "a whole number"),
    "str": (str, "text"),
}
"""Word in a field's type -> what a value may be; the first that fits."""


def converted(name: str, kind: str, value: Any) -> Any:
    """A file's value as the field's type; YAML reads 2e-4 as text, JSON has no paths."""
    if value is None:
        if "None" in kind:
            return None
        raise ValueError(f"{name} must be {kind}, got nothing")
    try:
        for word, convert in _CONVERSIONS.items():
            if word in kind:
                return convert(value)
    except (OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"{name} must be {kind}, got {value!r}") from error
    if not isinstance(value, str):
        raise ValueError(f"{name} must be text, got {value!r}")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _whole(value: Any) -> int:
    if isinstance(value, bool) or int(value) != float(value):
        raise ValueError
    return int(value)


_CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "Path": lambda value: Path(str(value)),
    "bool": _flag,
    "float": float,
    "int": _whole,
}
"""Word in a field's type -> conversion; the first that fits."""
