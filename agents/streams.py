"""Named random streams: one per (component, iteration, episode), and no global generator.

A number depends on its name alone, so nothing that is added, chunked, resumed or reordered
elsewhere can move it, and a checkpoint has no generator state to keep.
"""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray


def stream(seed: int, component: str, iteration: int = 0, episode: int = 0) -> np.random.Generator:
    """The generator that belongs to a name.

    Args:
        seed: of the run.
        component: who draws, e.g. "response/0".
        iteration: of training, from 1; 0 outside training.
        episode: within the iteration.
    """
    name = zlib.crc32(component.encode())  # stable across processes, unlike hash()
    return np.random.default_rng(np.random.SeedSequence([seed, name, iteration, episode]))


def response_uniforms(
    seed: int, component: str, iteration: int, episodes: list[int], width: int
) -> NDArray[np.float64]:
    """The numbers in [0, 1) that decide the tokens of some episodes' responses, [B, width]."""
    return np.stack([stream(seed, component, iteration, e).random(width) for e in episodes])
