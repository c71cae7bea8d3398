"""From what the user typed after `--model` to a model and its tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import HfApi, snapshot_download, try_to_load_from_cache
from transformers import AutoModelForCausalLM, AutoTokenizer

from agents.models import BUILTIN_MODELS
from agents.models.adapter_files import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    AdapterFiles,
    check_record,
    is_adapter,
    merge,
    read_adapter,
)
from agents.models.quantized import check_quantize, multiply_alike, quantized_options
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
    quantize: str = "none",
    bases: dict[str, LoadedModel] | None = None,
) -> LoadedModel:
    """Load a causal language model and its tokenizer.

    Args:
        name: `builtin:NAME`, a folder in the Hugging Face format or with an adapter, or a hub name.
        seed: for models whose weights are drawn.
        dtype: "float32", "float64" or "bfloat16".
        device: "cpu" or "cuda[:n]".
        trust_remote_code: run the code that comes with a model. Off unless the user turns it on.
        quantize: "4bit": keep the weights of linear layers in 4 bits.
        bases: where several models may share theirs: what is loaded is taken from here or left
            here, and an adapter stays beside its base. None: an adapter is merged into it.

    Raises:
        ValueError: one sentence saying what is missing.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    weights: dict[str, Any] = {}
    if quantize != "none":
        check_quantize(quantize, device_named(device))
        weights = quantized_options(device_named(device), DTYPES[dtype])

    def base_of(name: str, seed: int) -> LoadedModel:
        key = f"{name} {seed}"
        if bases is not None and key in bases:
            return bases[key]
        found = _load_plain(name, seed, trust_remote_code, weights)
        if weights:
            multiply_alike(found.model)
        else:
            torch.nn.Module.to(found.model, device=device_named(device), dtype=DTYPES[dtype])
        if bases is not None:
            bases[key] = found
        return found

    folder = _adapter_folder(name)
    if folder is None:
        return base_of(name, seed)
    files = read_adapter(folder)
    base = _base_of_adapter(files, seed, base_of)
    check_record(files, base, dtype, quantize)
    apart = replace(base, source=name, adapter=files)
    return merge(apart) if bases is None else apart


def _base_of_adapter(
    files: AdapterFiles, seed: int, base_of: Callable[[str, int], LoadedModel]
) -> LoadedModel:
    if _adapter_folder(files.base) is not None:
        raise ValueError(
            f"adapter folder {files.folder} must be for a model, and its base {files.base!r} is an "
            f"adapter itself"
        )
    try:
        return base_of(files.base, seed if files.record is None else files.record.seed)
    except ValueError as error:
        raise ValueError(
            f"adapter folder {files.folder}: its base could not be opened; if it has moved, change "
            f"base_model_name_or_path in adapter_config.json ({error})"
        ) from error


def _adapter_folder(name: str) -> Path | None:
    """The folder of a name that means an adapter, fetched where it is on the hub; else None."""
    if Path(name).exists() or name.startswith(("builtin:", ".", "/", "~")) or name.count("/") > 1:
        return Path(name) if is_adapter(Path(name)) else None
    if isinstance(cached := try_to_load_from_cache(name, ADAPTER_CONFIG), str):
        return Path(cached).parent
    if isinstance(try_to_load_from_cache(name, "config.json"), str):
        return None
    try:
        listed = HfApi().model_info(name, timeout=10).siblings or []
        if ADAPTER_CONFIG not in {file.rfilename for file in listed}:
            return None
        return Path(snapshot_download(name, allow_patterns=[ADAPTER_CONFIG, ADAPTER_WEIGHTS]))
    except Exception:  # opening it as a model says what is wrong
        return None


def _load_plain(
    name: str, seed: int, trust_remote_code: bool, weights: dict[str, Any]
) -> LoadedModel:
    """A model without adapters, where and as it was read.

    Args:
        name: see `load_model`.
        seed: see `load_model`.
        trust_remote_code: see `load_model`.
        weights: how the library shall quantise them; empty: not at all.
    """
    # The library draws initial weights from torch's global generator before it fills them in, and
    # keeps those that a file lacks: they shall follow from the seed and move nobody's stream.
    with quiet_progress(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(stream(seed, "missing weights").integers(2**31)))
        loaded = _load(name, seed, trust_remote_code, weights)
    # Weights read from a file lie where its header ends. Copies lie as torch lays them: equal
    # weights then round alike, whether they were read, copied for another agent, or resumed.
    for parameter in loaded.model.parameters() if not weights else ():
        parameter.data = parameter.data.clone()
    return loaded


def _load(name: str, seed: int, trust_remote_code: bool, weights: dict[str, Any]) -> LoadedModel:
    if name.startswith("builtin:"):
        if weights:
            raise ValueError(f"quantize 4bit needs a model folder or a hub name, got {name!r}")
        return _builtin(name, seed)
    if Path(name).is_dir():
        return _from_folder(Path(name), trust_remote_code, weights)
    if name.endswith(".gguf"):
        raise ValueError(
            f"model {name!r} is a GGUF file: make a folder of it first, with "
            f"python -m agents.models.gguf FILE FOLDER"
        )
    check_hub_name(name, "model must be a folder, a hub name or builtin:NAME")
    return _from_hub(name, trust_remote_code, weights)


def check_hub_name(name: str, expected: str) -> None:
    """Refuse what is meant as a folder and is none.

    Raises:
        ValueError: beginning with what was expected.
    """
    if name.startswith((".", "/", "~")) or Path(name).exists() or name.count("/") > 1:
        raise ValueError(f"{expected}, got {name!r}, and there is no such folder")


def device_named(device: str) -> torch.device:
    """The device of a name.

    Raises:
        ValueError: if it is no cpu or cuda[:n], or there is no such device here.
    """
    try:
        resolved = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device must be like cpu or cuda:0, got {device!r}") from error
    if resolved.type not in ("cpu", "cuda"):
        raise ValueError(f"device must be cpu or cuda[:n], got {device!r}")
    if resolved.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {device!r} was asked for, but torch sees no CUDA device here")
    if resolved.type == "cuda" and (resolved.index or 0) >= torch.cuda.device_count():
        last = torch.cuda.device_count() - 1
        raise ValueError(
            f"device {device!r} was asked for, but the last CUDA device here is cuda:{last}"
        )
    return resolved


def _builtin(name: str, seed: int) -> LoadedModel:
    key = name.removeprefix("builtin:")
    if key not in BUILTIN_MODELS:
        known = ", ".join(f"builtin:{k}" for k in BUILTIN_MODELS)
        raise ValueError(f"model must be one of {known}, a folder or a hub name, got {name!r}")
    return BUILTIN_MODELS[key](seed)


def _from_folder(folder: Path, trust_remote_code: bool, weights: dict[str, Any]) -> LoadedModel:
    check_folder(folder)
    return _open(str(folder), trust_remote_code, weights, local=True)


def check_folder(folder: Path, kind: str = "model") -> None:
    """Refuse a folder that lacks a configuration, a tokenizer, or weights as safetensors.

    Args:
        folder: of a model in the Hugging Face format.
        kind: what it is called in the sentence.

    Raises:
        ValueError: saying what is missing.
    """
    if not (folder / "config.json").is_file():
        raise ValueError(f"{kind} folder {folder} must hold a config.json, and there is none")
    if not any(folder.glob("*.safetensors")):
        raise ValueError(
            f"{kind} folder {folder} must hold its weights as *.safetensors, and there are none "
            f"(pickled weights are not opened)"
        )
    for index in folder.glob("*.index.json"):
        if ".bin" in index.read_text(encoding="utf-8", errors="replace"):
            raise ValueError(
                f"{kind} folder {folder}: {index.name} names pickled weights (.bin), "
                f"which are not opened"
            )
    if not any((folder / f).is_file() for f in TOKENIZER_FILES):
        raise ValueError(
            f"{kind} folder {folder} must hold a tokenizer "
            f"({' or '.join(TOKENIZER_FILES)}), and there is none"
        )


TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


def _from_hub(name: str, trust_remote_code: bool, weights: dict[str, Any]) -> LoadedModel:
    """Open a model of the hub, from the library's cache where it is there."""
    return _open(name, trust_remote_code, weights, local=is_cached(name))


def is_cached(name: str, kind: str = "model", setting: str = "--model") -> bool:
    """Whether a model of the hub lies in the library's cache; else it can be fetched.

    Raises:
        ValueError: if it does not lie there and cannot be fetched.
    """
    try:  # one short question; the library itself would retry for most of a minute
        if isinstance(try_to_load_from_cache(name, "config.json"), str):
            return True
        HfApi().model_info(name, timeout=10)
    except Exception as error:
        raise ValueError(
            f"{kind} {name!r} could not be loaded: there is no such folder here, and as a hub "
            f"name it could not be fetched (no network, or no such model); point {setting} at a "
            f"local folder instead ({first_line(error)})"
        ) from error
    return False


def first_line(error: Exception) -> str:
    """The first line of a library's message, for a sentence of ours."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _open(
    source: str, trust_remote_code: bool, weights: dict[str, Any], *, local: bool
) -> LoadedModel:
    options = {"local_files_only": local, "trust_remote_code": trust_remote_code}
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source, use_safetensors=True, output_loading_info=True, **options, **weights
        )
    except Exception as error:  # the library raises a dozen kinds; each means: cannot be opened
        raise ValueError(
            f"model {source!r} could not be loaded as a causal language model with its tokenizer "
            f"({first_line(error)})"
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
