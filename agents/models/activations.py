"""The same activation functions in one pass.

The library writes the tanh form of GELU as eight operations on whole tensors, as published; torch
has it as one. In a small model those passes cost as much as the matrices.
"""

from __future__ import annotations

from torch import nn
from transformers.activations import FastGELUActivation, NewGELUActivation

SPELLED_OUT = (FastGELUActivation, NewGELUActivation)
"""Classes that compute 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) step by step."""


def fuse_activations(model: nn.Module) -> None:
    """Replace spelled-out activations in a model by torch's own; the function stays the same.

    The model's configuration, and so what is saved of it, is not touched.
    """
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, SPELLED_OUT):
                setattr(module, name, nn.GELU(approximate="tanh"))
