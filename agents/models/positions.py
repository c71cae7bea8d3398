"""Rotary positions whose frequencies depend on the longest text of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

CHANGING = frozenset({"dynamic", "longrope", "su"})
"""Kinds of scaling that take other frequencies once a text is longer than those trained on."""


def constant_positions(config: Any) -> int | None:
    """Tokens up to which a model's positions are the same in every batch; None: always.

    Beyond them the score of a response would depend on the rows beside it, and a response that
    grows past them would have been drawn with other frequencies than it is scored with.
    """
    limits = [
        int(
            scaling.get("original_max_position_embeddings")
            or getattr(config, "original_max_position_embeddings", None)
            or config.max_position_embeddings
        )
        for scaling in _scalings(config)
        if (scaling.get("rope_type") or scaling.get("type")) in CHANGING
    ]
    return min(limits, default=None)


def _scalings(config: Any) -> Iterator[Mapping[str, Any]]:
    """The settings of rotary positions: one for all layers, or one for each kind of layer."""
    for name in ("rope_parameters", "rope_scaling"):
        found = getattr(config, name, None)
        if isinstance(found, Mapping):
            yield found
            yield from (inner for inner in found.values() if isinstance(inner, Mapping))
