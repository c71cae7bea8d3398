"""Look things up by name in a plain dict, or as `module:name` from anywhere."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def resolve(spec: str, table: Mapping[str, Any], kind: str) -> Any:
    """Return what a name stands for.

    Args:
        spec: a key of the table, or `module:name` (the working directory is on the path; the name
            may have dots).
        table: the known names.
        kind: what is looked up, for the error: "task", "reward", ...

    Raises:
        ValueError: if the name is unknown, the module does not import, or lacks the name.
    """
    if not isinstance(spec, str):
        raise ValueError(f"{kind} must be a name or 'module:name', got {spec!r}")
    if spec in table:
        return table[spec]
    if ":" not in spec:
        known = ", ".join(sorted(table))
        raise ValueError(f"unknown {kind} {spec!r}; known are {known}, or give 'module:name'")
    module_name, _, attribute = spec.partition(":")
    found = _import(module_name, spec, kind)
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise ValueError(f"{kind} {spec!r}: {module_name} has no {attribute!r}") from error
    return found


def _import(module_name: str, spec: str, kind: str) -> Any:
    # Console commands start without the working directory on the path, `python -m` with it in
    # front.
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module_name)
    except Exception as error:  # the user's own module may raise anything, a SyntaxError too
        missing = (
            isinstance(error, ModuleNotFoundError) and error.name == module_name.partition(".")[0]
        )
        way = "; run this in the folder of its file, or put that on PYTHONPATH" if missing else ""
        raise ValueError(
            f"{kind} {spec!r}: cannot import {module_name!r} ({error}){way}"
        ) from error
