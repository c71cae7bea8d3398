"""Several agents on one frozen base: each has a low-rank adapter of its own (LoRA).

    y = W x + alpha / r * B A x        W frozen and shared; A [r, in] and B [out, r] the agent's

The layers are those of the library peft (extra `lora`), so what is written opens elsewhere. Its
own switch of the active adapter is a state of the whole model that also turns gradients on and off;
here the adapter is chosen around every forward, and a forward without a choice fails.

Source: Hu et al. 2021, section 4.1.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from agents.models.checksum import tensor_sum
from agents.streams import stream

AUTO = "auto"
"""As targets: every linear layer of attention and MLP."""
PREFIX = "base_model.model."
"""Before every name in the library's files."""


@dataclass(frozen=True)
class AdapterShape:
    """What an adapter is, without its numbers."""

    rank: int
    """r, the width of its bottleneck."""
    alpha: float
    """Its output is multiplied by alpha / r."""
    targets: tuple[str, ...]
    """Names of the layers it is on, or last parts of them; (AUTO,): all of attention and MLP."""
    rank_stabilised: bool = False
    """Divide by the root of r instead, as some adapters from elsewhere do."""

    @property
    def whole_alpha(self) -> Any:
        """Alpha as the library writes it: it says that it is a whole number, and takes others."""
        return int(self.alpha) if self.alpha == int(self.alpha) else self.alpha


def check_extra() -> None:
    """Refuse adapters where the library is missing.

    Raises:
        ValueError: saying what to install.
    """
    if find_spec("peft") is None:
        raise ValueError(
            "adapters need the package peft, which is not installed; install the extra lora: "
            "pip install 'cory-env[lora]'"
        )


class _NoChoice:
    """In place of the active adapters while none is chosen."""

    def __iter__(self) -> NoReturn:
        raise RuntimeError(
            "a forward of a shared base must choose its adapter: call it through an AdapterModel"
        )


_NO_CHOICE = _NoChoice()


class SharedBase:
    """A frozen model and the adapters on it, by name.

    No module: an agent's state holds its own adapter, and none of what it shares.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        """Freeze a model.

        Args:
            model: plain, without adapters. Its linear layers are wrapped when adapters are added.
        """
        check_extra()
        self.model = model.requires_grad_(False)
        self._layers: dict[str, Any] = {}
        self._trained: dict[str, bool] = {}
        self._shapes: dict[str, AdapterShape] = {}
        self._chosen: Sequence[str] | _NoChoice = _NO_CHOICE
        self._sum: str | None = None

    @property
    def checksum(self) -> str:
        """SHA-256 over the base's own tensors; they are frozen, so it is computed once."""
        if self._sum is None:
            own = self.model.state_dict().items()
            self._sum = tensor_sum(
                (name.replace(".base_layer.", "."), tensor)
                for name, tensor in own
                if ".lora_" not in name
            )
        return self._sum

    # Building.

    def add(
        self,
        name: str,
        shape: AdapterShape,
        *,
        seed: int = 0,
        tensors: Mapping[str, Tensor] | None = None,
        trained: bool = True,
    ) -> None:
        """Put one more adapter on the base.

        Args:
            name: of the adapter, e.g. the agent's id.
            shape: rank, scale and layers.
            seed: names the stream that A is drawn from; B is 0, so the adapter changes nothing yet.
                Agents start as duplicates: the name has no part in it.
            tensors: numbers to start from instead, by the names of the library's files.
            trained: whether gradients reach it.

        Raises:
            ValueError: if a target is no linear layer of this model, the rank is more than any of
                them is wide, or tensors do not fit it.
        """
        targets = self._targets(shape.targets)
        if tensors is None:  # those of a file have the rank that they have
            self._check_rank(shape.rank, targets)
        self._inject(name, shape, targets)
        weights = self._weights(name)
        if tensors is None:
            self._draw(weights, seed)
        else:
            fill(weights, tensors)
        self._trained[name] = trained
        self._shapes[name] = replace(shape, targets=tuple(targets))
        for known, wanted in self._trained.items():
            for weight in self._weights(known).values():
                weight.requires_grad_(wanted)

    def _targets(self, wanted: tuple[str, ...]) -> list[str]:
        linear = self._linear_layers()
        last = sorted({_short(path) for path in linear})
        if wanted == (AUTO,):
            return last
        for name in wanted:
            if not any(_matches(path, name) for path in linear):
                raise ValueError(
                    f"lora_targets must be auto or linear layers inside the model joined by "
                    f"commas, got {name!r}; its layers are {', '.join(last)}"
                )
        return sorted(wanted)

    def _check_rank(self, rank: int, targets: Sequence[str]) -> None:
        """Refuse a rank that no layer could use: the rank of a matrix is at most its shorter side.

        Narrow layers beside wider ones, such as those of grouped keys, may be exceeded.
        """
        sides = {}
        for path in self._linear_layers():
            if any(_matches(path, name) for name in targets):
                layer: Any = self.model.get_submodule(path)
                conv = isinstance(layer, Conv1D)
                sides[path] = min(
                    layer.weight.shape if conv else (layer.in_features, layer.out_features)
                )
        widest = max(sides, key=lambda path: sides[path])
        if rank > sides[widest]:
            raise ValueError(
                f"lora_rank must be at most {sides[widest]}, the shorter side of the widest layer "
                f"that adapters go to ({widest}), got {rank}"
            )

    def short_targets(self, name: str) -> list[str]:
        """The layers of an adapter by the last parts of their names, where that says it all."""
        paths = set(self.on(name))
        last = {_short(path) for path in paths}
        meant = {p for p in self._linear_layers() if any(_matches(p, part) for part in last)}
        return sorted(last if meant == paths else paths)

    def _linear_layers(self) -> list[str]:
        """Paths of what an adapter can be put on: the output layer is none of them."""
        inside = {id(module) for module in self.model.base_model.modules()}
        head = self.model.get_output_embeddings()
        found = [
            path.removesuffix(".base_layer")
            for path, module in self.model.named_modules()
            if isinstance(module, nn.Linear | Conv1D)
            and id(module) in inside
            and module is not head
            and ".lora_" not in path
        ]
        if not found:
            kind = self.model.config.model_type
            raise ValueError(f"model of type {kind!r} has no linear layer to put an adapter on")
        return found

    def _inject(self, name: str, shape: AdapterShape, targets: list[str]) -> None:
        from peft import LoraConfig, inject_adapter_in_model
        from peft.tuners.lora import LoraLayer

        config = LoraConfig(
            r=shape.rank,
            lora_alpha=shape.whole_alpha,
            target_modules=targets,
            use_rslora=shape.rank_stabilised,
            fan_in_fan_out=self.has_conv1d,
            init_lora_weights=False,
        )
        self._choose(())
        # What the library draws here is overwritten; it shall move nobody's stream either.
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it tells which layers keep their weights transposed
            inject_adapter_in_model(config, self.model, name)
        # The library's mark on the model: with it, a second adapter makes it warn.
        del self.model.peft_config
        self._layers = {
            path: module
            for path, module in self.model.named_modules()
            if isinstance(module, LoraLayer)
        }
        for layer in self.on(name).values():
            # In half precision the steps of an optimizer would be rounded away.
            exact = self.model.get_input_embeddings().weight.dtype == torch.float64
            dtype = torch.float64 if exact else torch.float32
            layer.lora_A[name].to(dtype=dtype)
            layer.lora_B[name].to(dtype=dtype)
        self._choose(_NO_CHOICE)

    @property
    def has_conv1d(self) -> bool:
        """Whether some layers keep their weights transposed, as GPT-2's do."""
        return any(isinstance(module, Conv1D) for module in self.model.modules())

    def _draw(self, weights: Mapping[str, Tensor], seed: int) -> None:
        """A uniform as the library draws it, from streams of its own by layer; B zero."""
        with torch.no_grad():
            for name, weight in weights.items():
                if ".lora_B." in name:
                    weight.zero_()
                    continue
                layer = name.removeprefix(PREFIX).removesuffix(".lora_A.weight")
                bound = 1 / math.sqrt(weight.shape[1])
                rng = stream(seed, f"lora/{layer}")
                values = rng.uniform(-bound, bound, size=tuple(weight.shape))
                weight.copy_(torch.as_tensor(values, dtype=weight.dtype))

    # Looking.

    def on(self, name: str) -> dict[str, Any]:
        """The layers that have an adapter of this name, by path."""
        return {path: layer for path, layer in self._layers.items() if name in layer.lora_A}

    def _weights(self, name: str) -> dict[str, nn.Parameter]:
        return {
            f"{PREFIX}{path}.lora_{side}.weight": getattr(layer, f"lora_{side}")[name].weight
            for path, layer in self.on(name).items()
            for side in "AB"
        }

    def shape(self, name: str) -> AdapterShape:
        """What an adapter is, with the names of its layers."""
        return self._shapes[name]

    def tensors(self, name: str) -> dict[str, Tensor]:
        """An adapter's numbers by the names of the library's files; not copied."""
        return {key: weight.detach() for key, weight in self._weights(name).items()}

    def tree(self, name: str) -> nn.Module:
        """An adapter as a module of its own that shares the numbers."""
        return module_tree(
            {
                f"{path}.lora_{side}": getattr(layer, f"lora_{side}")[name]
                for path, layer in self.on(name).items()
                for side in "AB"
            }
        )

    # Running.

    def using(self, name: str | None) -> AbstractContextManager[None]:
        """Forwards inside use this adapter; None: the base alone."""
        return _Choice(self, () if name is None else (name,))

    def remembering(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """For activations that are computed again: the same choice as the first time.

        The `context_fn` of torch's checkpointing: in the backward pass nothing is chosen any more.
        """
        chosen = self._chosen
        return nullcontext(), _Choice(self, () if isinstance(chosen, _NoChoice) else chosen)

    def _choose(self, names: Sequence[str] | _NoChoice) -> None:
        self._chosen = names
        for layer in self._layers.values():
            # Not `set_adapter`, which turns the gradients of every other adapter off.
            layer._active_adapter = names

    # Merging.

    @contextmanager
    def merged(self, name: str | None) -> Iterator[PreTrainedModel]:
        """The model as a plain one with an adapter in its weights, while the context lasts.

        Afterwards the base is what it was, to the bit: subtracting what was added would not be.

        Raises:
            ValueError: if the base is quantised, since its weights cannot take the sum.
        """
        kept = []
        try:
            for path, layer in self._layers.items():
                plain = layer.get_base_layer()
                kept.append((path, layer, plain.weight))
                if name is not None and name in layer.lora_A:
                    plain.weight = nn.Parameter(self._sum_of(layer, name), requires_grad=False)
                _put(self.model, path, plain)
            yield self.model
        finally:
            for path, layer, weight in kept:
                layer.get_base_layer().weight = weight
                _put(self.model, path, layer)

    def _sum_of(self, layer: Any, name: str) -> Tensor:
        weight = layer.get_base_layer().weight
        if not weight.is_floating_point():
            raise ValueError("an adapter cannot be merged into a quantised base")
        with torch.no_grad():
            return weight + layer.get_delta_weight(name).to(weight.dtype)  # type: ignore[no-any-return]

    def dissolve(self, name: str) -> PreTrainedModel:
        """Merge an adapter for good and give the plain model back; the base is used up."""
        with self.merged(name) as model:
            sums = {path: layer.get_base_layer().weight for path, layer in self._layers.items()}
        for path, layer in self._layers.items():
            plain = layer.get_base_layer()
            plain.weight = sums[path]
            _put(self.model, path, plain)
        self._layers = {}
        return model.requires_grad_(True)


class _Choice(AbstractContextManager[None]):
    """The adapters of forwards inside; may be entered again and again, also from within."""

    def __init__(self, base: SharedBase, names: Sequence[str]) -> None:
        self._base, self._names = base, names
        self._before: list[Sequence[str] | _NoChoice] = []

    def __enter__(self) -> None:
        self._before.append(self._base._chosen)
        self._base._choose(self._names)

    def __exit__(self, *exception: object) -> None:
        self._base._choose(self._before.pop())


# Names and numbers.


def fill(weights: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Copy an adapter's numbers, by name, into place.

    Raises:
        ValueError: if a layer is missing or has another shape: it is the adapter of another base.
    """
    for name in sorted({*weights, *tensors}):
        layer = name.removeprefix(PREFIX)
        if name not in weights:
            raise ValueError(f"it has {layer}, which the base has not")
        if name not in tensors:
            raise ValueError(f"it lacks {layer}")
        if weights[name].shape != tensors[name].shape:
            raise ValueError(
                f"its {layer} is {list(tensors[name].shape)}, "
                f"the base needs {list(weights[name].shape)}"
            )
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(tensors[name])


def module_tree(modules: Mapping[str, nn.Module]) -> nn.Module:
    """A module that holds others at their paths, so that its state has their names."""
    root = nn.Module()
    for path, module in modules.items():
        *parents, name = path.split(".")
        place = root
        for parent in parents:
            if parent not in place._modules:
                place.add_module(parent, nn.Module())
            place = place.get_submodule(parent)
        place.add_module(name, module)
    return root


def _put(model: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)


def _matches(path: str, name: str) -> bool:
    return path == name or path.endswith("." + name)


def _short(path: str) -> str:
    """The last part of a layer's name; the whole where that is a number."""
    last = path.rpartition(".")[2]
    return path if last.isdigit() else last
