"""From a GGUF file to an ordinary model folder: `python -m agents.models.gguf FILE FOLDER`.

Quantised weights come out as what the file's numbers mean, not as what they were before they were
quantised.
"""

from __future__ import annotations

import argparse
import copy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from agents.command_line import run_command
from agents.files import write_folder
from agents.models.load import DTYPES, first_line, quiet_progress

MAGIC = b"GGUF"


def convert_gguf(file: Path, folder: Path, *, dtype: str = "float32") -> None:
    """Write the model and tokenizer of a GGUF file as a folder that `--model` opens.

    Args:
        file: the GGUF file; nothing is fetched.
        folder: to write, whole or not at all; replaced if it is there.
        dtype: of the weights in the folder. float32 loses nothing; bfloat16 halves the folder.

    Raises:
        ValueError: if the file is none, the extra `gguf` is not installed, or the library cannot
            read this architecture.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    _check_file(file)
    _check_extra()
    with quiet_progress(), torch.random.fork_rng(devices=[]):
        tokenizer, model = _read(file)
        ordinary = _unquantised(model, DTYPES[dtype])
        write_folder(folder, lambda fresh: _fill(fresh, ordinary, tokenizer))


def _check_file(file: Path) -> None:
    try:
        with file.open("rb") as opened:
            magic = opened.read(len(MAGIC))
    except OSError as error:
        raise ValueError(f"GGUF file {file} cannot be read: {error.strerror}") from error
    if magic != MAGIC:
        raise ValueError(f"{file} must be a GGUF file, and it does not begin like one")


def _check_extra() -> None:
    """The library needs both packages, and says so in two different ways."""
    missing = [name for name in ("gguf", "accelerate") if find_spec(name) is None]
    if missing:
        raise ValueError(
            f"GGUF files need the package{'s' if len(missing) > 1 else ''} {' and '.join(missing)}:"
            f" pip install 'cory-env[gguf]'"
        )


def _read(file: Path) -> tuple[Any, PreTrainedModel]:
    where = {"gguf_file": file.name, "local_files_only": True}
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(file.parent), **where)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            str(file.parent), output_loading_info=True, **where
        )
    except Exception as error:  # the library raises a dozen kinds; each means: cannot be read
        raise ValueError(
            f"GGUF file {file} could not be read as a causal language model with its tokenizer "
            f"({first_line(error)})"
        ) from error
    model, report = loaded
    if missing := sorted(report["missing_keys"]):
        raise ValueError(
            f"GGUF file {file} lacks weights of its architecture: {len(missing)} are missing, the "
            f"first is {missing[0]}"
        )
    return tokenizer, model


def _unquantised(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """The same weights in a model that the library is willing to save."""
    config = copy.deepcopy(model.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with torch.device("meta"):  # no initial weights are drawn: all of them come from the file
        ordinary = type(model)(config)
    ordinary.to_empty(device="cpu")
    for name, buffer in model.named_buffers():  # such as rotary frequencies, which no file holds
        ordinary.get_buffer(name).copy_(buffer)
    ordinary.load_state_dict(model.state_dict(), strict=True)
    ordinary.tie_weights()
    ordinary.generation_config = copy.deepcopy(model.generation_config)
    torch.nn.Module.to(ordinary, dtype=dtype)
    return ordinary


def _fill(folder: Path, model: PreTrainedModel, tokenizer: Any) -> None:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main() -> None:
    """Command line of `python -m agents.models.gguf`."""

    def command(arguments: list[str]) -> None:
        parser = argparse.ArgumentParser(
            prog="python -m agents.models.gguf",
            description="Write the model and tokenizer of a GGUF file as an ordinary folder.",
        )
        parser.add_argument("file", type=Path)
        parser.add_argument("folder", type=Path, help="to write; must not be there yet")
        parser.add_argument("--dtype", default="float32", choices=list(DTYPES))
        asked = parser.parse_args(arguments)
        if asked.folder.exists():
            raise ValueError(f"folder {asked.folder} must not be there yet, and it is")
        convert_gguf(asked.file, asked.folder, dtype=asked.dtype)
        print(f"{asked.file} is now the model folder {asked.folder}: --model {asked.folder}")

    run_command(command)


if __name__ == "__main__":
    main()
