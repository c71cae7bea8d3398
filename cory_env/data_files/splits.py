"""Which query is in which split, such that no text is ever in two."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from cory_env.records import Query

SPLITS = ("train", "validation", "test")


def check_split(split: str) -> str:
    """Return the split if there is one of that name.

    Raises:
        ValueError: otherwise.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {list(SPLITS)}, got {split!r}")
    return split


def split_of(text: str) -> str:
    """Return the split that a query text belongs to where nothing else says so: 80 / 10 / 10."""
    bucket = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % 10
    return "train" if bucket < 8 else SPLITS[bucket - 7]


def split_by_hash(queries: Iterable[Query]) -> dict[str, tuple[Query, ...]]:
    """Deal one list of queries out to the three splits, each in the order of the list."""
    found: dict[str, list[Query]] = {split: [] for split in SPLITS}
    for query in queries:
        found[split_of(query.text)].append(query)
    return {split: tuple(chosen) for split, chosen in found.items()}


def split_as_published(parts: Mapping[str, Iterable[Query]]) -> dict[str, tuple[Query, ...]]:
    """Keep published splits, and cut a validation split from train where none was published.

    The tenth of train that `split_of` calls validation becomes that. What is held out for the test
    stays there: a text that is in test too leaves validation and train, and one that is in
    validation leaves train.

    Args:
        parts: queries of those of the three splits that were published.

    Returns:
        The queries of those splits, and of validation where there is train.
    """
    found: dict[str, tuple[Query, ...]] = {}
    taken: set[str] = set()
    train = tuple(parts.get("train", ()))
    validation = parts.get("validation")
    if validation is None and "train" in parts:
        validation = [query for query in train if split_of(query.text) == "validation"]
    for split, queries in (
        ("test", parts.get("test")),
        ("validation", validation),
        ("train", train if "train" in parts else None),
    ):
        if queries is not None:
            found[split] = tuple(query for query in queries if query.text not in taken)
            taken |= {query.text for query in found[split]}
    return found
