"""Imports go one way: cory_env <- agents <- benchmarks <- tests, with one door to Tianshou."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
OURS = {"cory_env", "agents", "benchmarks", "tests", "tools"}
FORBIDDEN = {
    "cory_env": {"agents", "benchmarks", "tests", "tools", "torch", "tianshou", "transformers"},
    "agents": {"benchmarks", "tests", "tools"},
    "benchmarks": {"tests", "tools"},
}
FILES = [(package, path) for package in FORBIDDEN for path in (ROOT / package).rglob("*.py")]
AGENT_FILES = [path for package, path in FILES if package == "agents"]
BRIDGE = ROOT / "agents" / "bridge"
MATHS = ROOT / "agents" / "maths"


def imported(source: str, package: str = "") -> Iterator[tuple[int, str]]:
    """Yield (line, absolute module) of every import, also those inside functions.

    Args:
        source: the text of a file.
        package: the dotted package that the file lies in, to which relative imports refer.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = [*above, node.module or ""] if node.level else [node.module or ""]
            module = ".".join(part for part in base if part)
            yield node.lineno, module
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}"


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the imports of a file of this repository."""
    package = ".".join(path.relative_to(ROOT).parent.parts)
    return imported(path.read_text(encoding="utf-8"), package)


def name(value: object) -> str:
    """Short test ids."""
    return str(value.relative_to(ROOT)) if isinstance(value, Path) else str(value)


@pytest.mark.parametrize(("package", "path"), FILES, ids=name)
def test_imports_point_downwards(package: str, path: Path) -> None:
    for line, module in imports_of(path):
        assert module.split(".")[0] not in FORBIDDEN[package], f"{path}:{line} imports {module}"


@pytest.mark.parametrize("path", AGENT_FILES, ids=name)
def test_only_the_bridge_knows_the_frameworks_batches(path: Path) -> None:
    if path.is_relative_to(BRIDGE):
        return
    for line, module in imports_of(path):
        assert not module.startswith("tianshou.data"), f"{path}:{line} imports {module}"
    names = {
        node.id if isinstance(node, ast.Name) else node.attr
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Name | ast.Attribute)
    }
    assert "Batch" not in names, f"{path} says Batch"


@pytest.mark.parametrize("path", sorted(MATHS.rglob("*.py")), ids=name)
def test_pure_maths_imports_nothing_of_ours_but_itself(path: Path) -> None:
    for line, module in imports_of(path):
        pure = module.split(".")[0] not in OURS or f"{module}.".startswith("agents.maths.")
        assert pure or module == "agents", f"{path}:{line} imports {module}"
        assert not module.startswith("tianshou"), f"{path}:{line} imports {module}"


def test_the_reader_of_imports_sees_every_form() -> None:
    source = (
        "import torch.nn as nn\n"
        "def f():\n    from tianshou import data\n"
        "from . import masking\nfrom ..bridge import door\n"
    )
    assert [module for _, module in imported(source, "agents.maths")] == [
        "torch.nn",
        "agents.maths",
        "agents.maths.masking",
        "agents.bridge",
        "agents.bridge.door",
        "tianshou",
        "tianshou.data",
    ]
