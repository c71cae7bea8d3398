"""Reader of the published folder of film reviews: train|test / pos|neg / *.txt.

Source: A. Maas et al., "Learning Word Vectors for Sentiment Analysis", ACL 2011, whose archive is
    called aclImdb. Its `unsup` reviews, which have no rating, are left out.
"""

from __future__ import annotations

from pathlib import Path

from cory_env.data_files.rows import Row, Rows

PARTS = ("train", "test")
RATINGS = {"pos": "positive", "neg": "negative"}


def is_acl_imdb(folder: Path) -> bool:
    """Whether a folder is laid out like the archive."""
    return any((folder / part / rating).is_dir() for part in PARTS for rating in RATINGS)


def acl_imdb_parts(folder: Path) -> dict[str, Rows]:
    """Return the rows (`review`, `sentiment`) of the parts that are there.

    Raises:
        ValueError: if a part has only one of its two folders; while reading, if a file is no text.
    """
    found = {}
    for part in PARTS:
        missing = [r for r in RATINGS if not (folder / part / r).is_dir()]
        if len(missing) == 1:
            raise ValueError(f"{folder / part}: no folder {missing[0]!r} beside the other one")
        if not missing:
            found[part] = _rows(folder, part)
    return found


def _rows(folder: Path, part: str) -> Rows:
    for rating, sentiment in RATINGS.items():
        for path in sorted((folder / part / rating).glob("*.txt")):
            try:
                text = path.read_text(encoding="utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(f"{path}: not UTF-8 text ({error.reason})") from error
            values = {"review": text, "sentiment": sentiment}
            yield Row(str(path), values, {"file": f"{part}/{rating}/{path.name}"})
