"""Bases whose linear layers keep their weights in 4 bits (bitsandbytes, extra `quantize`).

Only the numbers are the library's. It multiplies by one kernel where a gradient is due and by
another, that rounds otherwise, where none is: policy and reference would differ before the first
update. Here every product takes one way.
"""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn


def check_quantize(quantize: str, device: torch.device) -> None:
    """Refuse what cannot be quantised here.

    Args:
        quantize: "4bit".
        device: where it is to lie.

    Raises:
        ValueError: if the way is unknown, there is no CUDA device, or a package is missing.
    """
    if quantize != "4bit":
        raise ValueError(f"quantize must be none or 4bit, got {quantize!r}")
    if device.type != "cuda":
        seen = "" if torch.cuda.is_available() else ", and torch sees none here"
        raise ValueError(
            f"quantize 4bit needs a CUDA device: expected device cuda, got {device}{seen}"
        )
    missing = [package for package in ("bitsandbytes", "accelerate") if find_spec(package) is None]
    if missing:
        raise ValueError(
            f"quantize 4bit needs {' and '.join(missing)}, which is not installed; install the "
            f"extra quantize: pip install 'cory-env[quantize]'"
        )


def quantized_options(device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """How the library loads a model in 4 bits: NF4, and the scales quantised once more.

    Args:
        device: where the weights go while they are read.
        dtype: of what is not quantised, and of the products.

    Source: Dettmers et al. 2023, section 3.
    """
    from transformers import BitsAndBytesConfig

    return {
        "quantization_config": BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=dtype,
        ),
        "device_map": {"": device},
        "dtype": dtype,
    }


def multiply_alike(model: nn.Module) -> None:
    """Let every layer in 4 bits compute the same, with and without a gradient."""
    from bitsandbytes.nn import Linear4bit

    for module in model.modules():
        if isinstance(module, Linear4bit):
            module.forward = partial(_forward, module)


def _forward(layer: Any, x: Tensor) -> Tensor:
    multiply: Any = _Product.apply
    product: Tensor = multiply(x.to(layer.compute_dtype or x.dtype), layer.weight)
    if layer.bias is not None:
        product = product + layer.bias.to(product.dtype)
    return product.to(x.dtype)


class _Product(torch.autograd.Function):
    """x times the transposed weight; the weight is unpacked again for the gradient, not kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Any) -> Tensor:
        ctx.weight, ctx.dtype = weight, x.dtype
        return nn.functional.linear(x, _unpacked(weight, x.dtype))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        gradient = gradients[0]
        return (gradient @ _unpacked(ctx.weight, gradient.dtype)).to(ctx.dtype), None


def _unpacked(weight: Any, dtype: torch.dtype) -> Tensor:
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(weight.data, weight.quant_state).to(dtype)  # type: ignore[no-any-return]
