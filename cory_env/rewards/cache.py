"""Scores on disk, so that nobody pays twice for one of a slow or remote reward.

A cache is one SQLite file: a digest of everything a score follows from, and the score. Writing is
one transaction, so a killed process leaves the file whole, and two processes may share it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import math
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cory_env.records import Query
from cory_env.rewards.base import Reward, RewardError, reward_name

APPLICATION = int.from_bytes(b"CORY", "big")
"""Marks the file as ours: another program's database is not written into."""
FORMAT = 1
WAIT_SECONDS = 60.0
"""How long to wait for another process that writes."""


def reward_identity(reward: Reward) -> str:
    """Name a reward with everything that its scores are known to follow from.

    That is its text attribute `fingerprint` where it has one; else the function or class, the
    settings of the object, and the file in which it is defined.

    Raises:
        ValueError: if that cannot be told, as for a function made inside another one: its scores
            could be taken for those of another reward.
    """
    kind: Any = reward if inspect.isfunction(reward) else type(reward)
    name = f"{kind.__module__}:{kind.__qualname__}"
    fingerprint = getattr(reward, "fingerprint", None)
    if isinstance(fingerprint, str):
        return json.dumps([name, fingerprint])
    # <locals>, <lambda>: a closure hides what it depends on. So do functools.partial and its like.
    called = kind if kind is reward else kind.__call__
    if "<" in kind.__qualname__ or not inspect.isfunction(called):
        raise _unnamed(reward)
    try:
        state = {} if kind is reward else _state(reward)
        return json.dumps([name, state, _source_sum(kind)], sort_keys=True)
    except (OSError, TypeError, ValueError) as error:
        raise _unnamed(reward) from error


def _source_sum(kind: Any) -> str:
    """SHA-256 of the files that define a function, or a class and those it is made of."""
    digest = hashlib.sha256()
    for part in [kind] if inspect.isfunction(kind) else kind.__mro__[:-1]:
        digest.update(Path(inspect.getsourcefile(part) or "").read_bytes())
    return digest.hexdigest()


def _state(reward: Any) -> dict[str, Any]:
    """The settings of an object; TypeError where JSON cannot hold one."""
    if dataclasses.is_dataclass(reward):
        found = {f.name: getattr(reward, f.name) for f in dataclasses.fields(reward) if f.compare}
    else:
        found = dict(vars(reward))
    return {k: str(v) if isinstance(v, Path) else v for k, v in found.items()}


def _unnamed(reward: Reward) -> ValueError:
    return ValueError(
        f"reward_cache cannot tell what the scores of {reward_name(reward)} depend on: it must be "
        f"a function of a module, an object whose settings are text and numbers, or have a text "
        f"attribute `fingerprint`"
    )


def score_key(identity: str, query: Query, response: str) -> str:
    """SHA-256 of a reward, a query with answer and metadata, and a response.

    Raises:
        RewardError: if JSON cannot hold the metadata.
    """
    values = [identity, query.text, query.answer, dict(query.metadata), response]
    try:
        text = json.dumps(values, sort_keys=True)
    except (TypeError, ValueError) as error:
        raise RewardError(
            f"reward_cache needs queries whose metadata JSON can hold ({error}), "
            f"got query {query.text[:200]!r}"
        ) from error
    return hashlib.sha256(text.encode("ascii")).hexdigest()


class ScoreCache:
    """Scores by key in one file; it is opened for each use, by any thread or process."""

    def __init__(self, path: Path, *, wait: float = WAIT_SECONDS) -> None:
        """Open or begin a cache.

        Args:
            path: the file; its folder must exist.
            wait: seconds to wait for another process that writes.

        Raises:
            ValueError: if it is no cache, is damaged, or cannot be written.
        """
        self.path = path
        self._wait = wait
        if path.is_dir() or not path.parent.is_dir():
            raise ValueError(f"reward_cache must be a file in a folder that exists, got {path}")
        with self._opened(write=True) as db:
            self._begin(db)

    def get(self, keys: Iterable[str]) -> dict[str, float]:
        """Return the scores that are there.

        Raises:
            RewardError: if the file is damaged.
        """
        found: dict[str, float] = {}
        wanted = list(dict.fromkeys(keys))
        with self._opened() as db:
            for start in range(0, len(wanted), 500):  # SQLite takes a limited number of marks
                some = wanted[start : start + 500]
                marks = ",".join("?" * len(some))
                rows = db.execute(f"SELECT key, score FROM scores WHERE key IN ({marks})", some)
                found.update(rows.fetchall())
        for key, score in found.items():
            if not isinstance(score, float) or not math.isfinite(score):
                raise self._unusable(f"the score of {key} is {score!r}")
        return found

    def put(self, scores: Mapping[str, float]) -> None:
        """Add scores in one step; what is there already stays.

        Raises:
            RewardError: if the file cannot be written.
        """
        with self._opened(write=True) as db:
            db.executemany("INSERT OR IGNORE INTO scores VALUES (?, ?)", list(scores.items()))

    def _begin(self, db: sqlite3.Connection) -> None:
        application = db.execute("PRAGMA application_id").fetchone()[0]
        version = db.execute("PRAGMA user_version").fetchone()[0]
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master")]
        if application == 0 and not tables:
            db.execute("CREATE TABLE scores (key TEXT PRIMARY KEY, score REAL) WITHOUT ROWID")
            db.execute(f"PRAGMA application_id = {APPLICATION}")
            db.execute(f"PRAGMA user_version = {FORMAT}")
        elif application != APPLICATION:
            raise self._unusable("it is the database of another program")
        elif version != FORMAT or tables != ["scores"]:
            raise self._unusable(f"it has format {version}, expected {FORMAT}")
        else:
            # A file that was cut opens, finds less than it held, and is ruined by the next write.
            found = db.execute("PRAGMA quick_check(1)").fetchone()[0]
            if found != "ok":
                raise self._unusable(f"it is damaged: {' '.join(found.split())}")

    @contextmanager
    def _opened(self, *, write: bool = False) -> Iterator[sqlite3.Connection]:
        """A connection, in a transaction of its own if it writes."""
        try:
            db = sqlite3.connect(self.path, timeout=self._wait, isolation_level=None)
            try:
                db.execute("PRAGMA trusted_schema = OFF")
                db.execute("PRAGMA synchronous = NORMAL")
                if write:
                    db.execute("BEGIN IMMEDIATE")
                yield db
                if write:
                    db.execute("COMMIT")
            finally:
                db.close()  # takes back a transaction that did not get to its end
        except sqlite3.Error as error:
            if "locked" in str(error):
                raise RewardError(
                    f"reward_cache {self.path} is being written by another process for more than "
                    f"{self._wait:g} seconds"
                ) from error
            raise self._unusable(str(error)) from error

    def _unusable(self, why: str) -> RewardError:
        return RewardError(
            f"reward_cache {self.path} cannot be used: {why}; move the file away to begin a new one"
        )
