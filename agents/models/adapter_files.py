"""Adapters as folders of the library peft: read, written, put on a base and merged into it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from agents.files import write_json
from agents.models.checksum import tensor_sum
from agents.models.shared_base import PREFIX, AdapterShape, SharedBase, check_extra
from agents.models.source import LoadedModel

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
BASE_RECORD = "base.json"

_PLAIN = frozenset(
    {
        "auto_mapping",
        "base_model_name_or_path",
        "exclude_modules",
        "fan_in_fan_out",
        "inference_mode",
        "layers_pattern",
        "layers_to_transform",
        "lora_alpha",
        "lora_dropout",
        "peft_type",
        "peft_version",
        "r",
        "revision",
        "target_modules",
        "task_type",
        "use_rslora",
    }
)
"""Settings of an adapter that are read here, or that its weights say as well."""
_INITIAL = (True, "gaussian", "orthogonal")
"""Ways of drawing the first weights that leave the base as it is; others change it."""


@dataclass(frozen=True)
class BaseRecord:
    """What an adapter of ours was trained on: the name alone may mean another model by now."""

    model: str
    """As the user named it."""
    seed: int
    """Of the run; `builtin:target` is drawn from it."""
    dtype: str
    """Of the base's weights in training."""
    quantize: str
    """Whether its weights were kept in 4 bits: "4bit", else "none"."""
    sha256: str
    """Over the base's tensors, in that type."""


@dataclass(frozen=True)
class AdapterFiles:
    """A folder with an adapter, read but for its numbers."""

    folder: Path
    base: str
    """The base's folder or name."""
    shape: AdapterShape
    record: BaseRecord | None
    """Of adapters that were written here."""

    def tensors(self) -> dict[str, Tensor]:
        """The numbers, by the library's names.

        Raises:
            ValueError: if the file is damaged.
        """
        try:
            return load_file(self.folder / ADAPTER_WEIGHTS)
        except (OSError, SafetensorError) as error:
            raise ValueError(f"adapter folder {self.folder}: {ADAPTER_WEIGHTS}: {error}") from error


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter rather than a model."""
    return (folder / ADAPTER_CONFIG).is_file()


def read_adapter(folder: Path) -> AdapterFiles:
    """Read what an adapter is and which base it is for.

    Args:
        folder: with `adapter_config.json` and `adapter_model.safetensors`.

    Raises:
        ValueError: if it is no plain LoRA adapter, lacks its weights or base, or they are pickled.
    """
    check_extra()
    try:
        settings = _json(folder / ADAPTER_CONFIG)
        record = (
            BaseRecord(**_json(folder / BASE_RECORD)) if (folder / BASE_RECORD).is_file() else None
        )
    except (OSError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"adapter folder {folder} cannot be read: {error}") from error
    _check_plain(folder, settings)
    if not (folder / ADAPTER_WEIGHTS).is_file():
        raise ValueError(
            f"adapter folder {folder} must hold its weights as {ADAPTER_WEIGHTS}, and there is no "
            f"such file (pickled weights are not opened)"
        )
    base = settings.get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise ValueError(
            f"adapter folder {folder}: {ADAPTER_CONFIG} must name base_model_name_or_path"
        )
    files = AdapterFiles(folder, base, _shape(folder, settings), record)
    layers = {name.removeprefix(PREFIX).partition(".lora_")[0] for name in files.tensors()}
    return replace(files, shape=replace(files.shape, targets=tuple(sorted(layers))))


def _json(file: Path) -> dict[str, Any]:
    value = json.loads(file.read_bytes())
    if not isinstance(value, dict):
        raise ValueError(f"{file.name} must be an object of settings")
    return value


def _check_plain(folder: Path, settings: Mapping[str, Any]) -> None:
    kind = settings.get("peft_type")
    if kind != "LORA":
        raise ValueError(f"adapter folder {folder} must be of peft_type LORA, got {kind!r}")
    from peft import LoraConfig

    usual = vars(LoraConfig())
    for name, value in settings.items():
        if name in _PLAIN or not value or value == usual.get(name):
            continue
        if name != "init_lora_weights" or value not in _INITIAL:
            raise ValueError(
                f"adapter folder {folder} must be plain LoRA; its {name} is {value!r}, "
                f"which is not supported"
            )


def _shape(folder: Path, settings: Mapping[str, Any]) -> AdapterShape:
    rank, alpha = settings.get("r"), settings.get("lora_alpha")
    if type(rank) is not int or rank < 1:
        raise ValueError(f"adapter folder {folder}: r must be a whole number from 1, got {rank!r}")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not alpha > 0:
        raise ValueError(f"adapter folder {folder}: lora_alpha must be positive, got {alpha!r}")
    # The weights name the layers; which settings chose them does not matter any more.
    return AdapterShape(rank, float(alpha), (), bool(settings.get("use_rslora")))


def write_adapter(folder: Path, base: SharedBase, name: str, record: BaseRecord) -> None:
    """Write an adapter where `PeftModel.from_pretrained(base, folder)` opens it.

    Args:
        folder: there already.
        base: with the adapter on it.
        name: of the adapter.
        record: what the base is.
    """
    from peft import LoraConfig

    shape = base.shape(name)
    LoraConfig(
        r=shape.rank,
        lora_alpha=shape.whole_alpha,
        use_rslora=shape.rank_stabilised,
        target_modules=base.short_targets(name),
        fan_in_fan_out=base.has_conv1d,
        base_model_name_or_path=record.model,
        task_type="CAUSAL_LM",
        inference_mode=True,
    ).save_pretrained(str(folder))
    settings = _json(folder / ADAPTER_CONFIG)
    # The library writes a set, in an order that differs from process to process.
    write_json(
        folder / ADAPTER_CONFIG,
        {**settings, "target_modules": sorted(settings["target_modules"])},
    )
    numbers = {k: t.to("cpu", copy=True).contiguous() for k, t in base.tensors(name).items()}
    save_file(numbers, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    write_json(folder / BASE_RECORD, vars(record))


def put_on(base: SharedBase, name: str, files: AdapterFiles, *, trained: bool) -> None:
    """Put the adapter of a folder on its base.

    Raises:
        ValueError: if it does not fit: it is the adapter of another base.
    """
    try:
        base.add(name, files.shape, tensors=files.tensors(), trained=trained)
    except ValueError as error:
        raise ValueError(
            f"adapter folder {files.folder} is not for the base {files.base!r}: {error}"
        ) from error


def merge(loaded: LoadedModel) -> LoadedModel:
    """A base with an adapter beside it as one plain model."""
    assert loaded.adapter is not None
    base = SharedBase(loaded.model)
    put_on(base, "merged", loaded.adapter, trained=False)
    return replace(loaded, model=base.dissolve("merged"), adapter=None)


def check_record(files: AdapterFiles, loaded: LoadedModel, dtype: str, quantize: str) -> None:
    """Refuse a base that has changed since the adapter was trained on it.

    Raises:
        ValueError: if its tensors are others. Weights of another type cannot be compared.
    """
    record = files.record
    if record is None or (record.dtype, record.quantize) != (dtype, quantize):
        return
    if tensor_sum(loaded.model.state_dict().items()) != record.sha256:
        raise ValueError(
            f"adapter folder {files.folder} is not for the base {files.base!r}: the base's weights "
            f"are not those that the adapter was trained on (sha256 in {BASE_RECORD})"
        )
