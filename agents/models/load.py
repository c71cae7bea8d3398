"""From what the user typed after `--model` to a model and its tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import HfApi, try_to_load_from_cache
from transformers import AutoModelForCausalLM, AutoTokenizer

from agents.models import BUILTIN_MODELS
from agents.models.source import LoadedModel
from agents.streams import stream
from cory_env.tokens import as_tokenizer

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}


@contextmanager
def quiet_progress() -> Iterator[None]:
    """Keep the library from drawing its own progress bars over ours."""
    shown = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers.utils.logging.enable_progress_bar()


def load_model(
    name: str,
    *,
    seed: int = 0,
    dtype: str = "float32",
    device: str = "cpu",
    trust_remote_code: bool = False,
) -> LoadedModel:
    """Load a causal language model and its tokenizer.

    Args:
        name: `builtin:NAME`, a folder in the Hugging Face format, or a hub name.
        seed: for models whose weights are drawn.
        dtype: "float32", "float64" or "bfloat16".
        device: "cpu" or "cuda[:n]".
        trust_remote_code: run the code that comes with a model. Off unless the user turns it on.

    Raises:
        ValueError: one sentence saying what is missing.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    # The library draws initial weights from torch's global generator before it fills them in, and
    # keeps those that a file lacks: they shall follow from the seed and move nobody's stream.
    with quiet_progress(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(stream(seed, "missing weights").integers(2**31)))
        loaded = _load(name, seed, trust_remote_code)
    # Weights read from a file lie where its header ends. Copies lie as torch lays them: equal
    # weights then round alike, whether they were read, copied for another agent, or resumed.
    for parameter in loaded.model.parameters():
        parameter.data = parameter.data.clone()
    torch.nn.Module.to(loaded.model, device=_device(device), dtype=DTYPES[dtype])
    return loaded


def _load(name: str, seed: int, trust_remote_code: bool) -> LoadedModel:
    if name.startswith("builtin:"):
        return _builtin(name, seed)
    if Path(name).is_dir():
        return _from_folder(Path(name), trust_remote_code)
    if name.startswith((".", "/", "~")) or Path(name).exists() or name.count("/") > 1:
        raise ValueError(
            f"model must be a folder, a hub name or builtin:NAME, got {name!r}, "
            f"and there is no such folder"
        )
    return _from_hub(name, trust_remote_code)


def _device(device: str) -> torch.device:
    try:
        resolved = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device must be like cpu or cuda:0, got {device!r}") from error
    if resolved.type not in ("cpu", "cuda"):
        raise ValueError(f"device must be cpu or cuda[:n], got {device!r}")
    if resolved.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {device!r} was asked for, but torch sees no CUDA device here")
    return resolved


def _builtin(name: str, seed: int) -> LoadedModel:
    key = name.removeprefix("builtin:")
    if key not in BUILTIN_MODELS:
        known = ", ".join(f"builtin:{k}" for k in BUILTIN_MODELS)
        raise ValueError(f"model must be one of {known}, a folder or a hub name, got {name!r}")
    return BUILTIN_MODELS[key](seed)


def _from_folder(folder: Path, trust_remote_code: bool) -> LoadedModel:
    if not (folder / "config.json").is_file():
        raise ValueError(f"model folder {folder} must hold a config.json, and there is none")
    if not any(folder.glob("*.safetensors")):
        raise ValueError(
            f"model folder {folder} must hold its weights as *.safetensors, and there are none "
            f"(pickled weights are not opened)"
        )
    for index in folder.glob("*.index.json"):
        if ".bin" in index.read_text(encoding="utf-8", errors="replace"):
            raise ValueError(
                f"model folder {folder}: {index.name} names pickled weights (.bin), "
                f"which are not opened"
            )
    if not any((folder / f).is_file() for f in TOKENIZER_FILES):
        raise ValueError(
            f"model folder {folder} must hold a tokenizer "
            f"({' or '.join(TOKENIZER_FILES)}), and there is none"
        )
    return _open(str(folder), str(folder), trust_remote_code, local=True)


TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


def _from_hub(name: str, trust_remote_code: bool) -> LoadedModel:
    """Open a model of the hub, from the library's cache where it is there."""
    cached = isinstance(try_to_load_from_cache(name, "config.json"), str)
    if not cached:
        try:  # one short question; the library itself would retry for most of a minute
            HfApi().model_info(name, timeout=10)
        except Exception as error:
            raise ValueError(
                f"model {name!r} could not be loaded: there is no such folder here, and as a hub "
                f"name it could not be fetched (no network, or no such model); point --model at a "
                f"local folder instead ({_first_line(error)})"
            ) from error
    return _open(name, name, trust_remote_code, local=cached)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _open(path: str, source: str, trust_remote_code: bool, *, local: bool) -> LoadedModel:
    options = {"local_files_only": local, "trust_remote_code": trust_remote_code}
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, **options)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            path, use_safetensors=True, output_loading_info=True, **options
        )
    except Exception as error:  # the library raises a dozen kinds; each means: cannot be opened
        raise ValueError(
            f"model {source!r} could not be loaded as a causal language model with its tokenizer "
            f"({_first_line(error)})"
        ) from error
    model, report = loaded
    if missing := sorted(report["missing_keys"]):
        # The library would fill them with random numbers and go on.
        raise ValueError(
            f"model {source!r} lacks weights of its architecture: {len(missing)} are missing, the "
            f"first is {missing[0]}"
        )
    end_ids = _end_ids(model, tokenizer)
    try:
        text_tokenizer = as_tokenizer(tokenizer, end_ids=end_ids)
    except ValueError as error:
        raise ValueError(f"model {source!r} cannot be used: {error}") from error
    return LoadedModel(model, tokenizer, text_tokenizer, source)


def _end_ids(model: object, tokenizer: Any) -> tuple[int, ...] | None:
    """All end tokens: the tokenizer's, and those its generation settings add."""
    own = getattr(tokenizer, "eos_token_id", None)
    more = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    listed = more if isinstance(more, list) else [more]
    # Generation settings often keep the end token of another vocabulary; one that the tokenizer
    # does not know can never be drawn.
    known = len(tokenizer)
    found = [i for i in (own, *(i for i in listed if i is not None and i < known)) if i is not None]
    return tuple(dict.fromkeys(found)) or None
