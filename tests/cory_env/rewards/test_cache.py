"""Tests of cory_env/rewards/cache.py."""

from __future__ import annotations

import functools
import json
import multiprocessing
import re
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cory_env.records import Query
from cory_env.rewards import RewardError, make_reward
from cory_env.rewards.cache import ScoreCache, reward_identity, score_key


@dataclass(frozen=True)
class Scaled:
    factor: float
    file: Path = Path("a")
    _words: list[str] = field(default_factory=list, compare=False)

    def __call__(self, queries: Sequence[Query], responses: Sequence[str]) -> list[float]:
        return [self.factor] * len(responses)


class Plain:
    def __init__(self, setting: Any) -> None:
        self.setting = setting

    def __call__(self, queries: Sequence[Query], responses: Sequence[str]) -> list[float]:
        return [0.0] * len(responses)


def score(queries: Sequence[Query], responses: Sequence[str]) -> list[float]:
    return [0.0] * len(responses)


def other(queries: Sequence[Query], responses: Sequence[str]) -> list[float]:
    return [0.0] * len(responses)


def made_inside() -> Callable[..., Any]:
    def inner(queries: Sequence[Query], responses: Sequence[str]) -> list[float]:
        return [0.0]

    return inner


def test_known_scores_come_back_exactly(tmp_path: Path) -> None:
    cache = ScoreCache(tmp_path / "scores")
    assert cache.get(["a", "b"]) == {}
    cache.put({"a": 0.1, "b": 3.0, "c": 5e-324})
    assert cache.get(["c", "a", "a", "x"]) == {"a": 0.1, "c": 5e-324}
    assert ScoreCache(tmp_path / "scores").get(["b"]) == {"b": 3.0}


def test_what_is_there_stays(tmp_path: Path) -> None:
    cache = ScoreCache(tmp_path / "scores")
    cache.put({"a": 1.0})
    cache.put({"a": 2.0, "b": 3.0})
    assert cache.get(["a", "b"]) == {"a": 1.0, "b": 3.0}


def test_many_keys_at_once(tmp_path: Path) -> None:
    cache = ScoreCache(tmp_path / "scores")
    scores = {f"k{i}": i / 7 for i in range(1234)}
    cache.put(scores)
    assert cache.get(scores) == scores


def test_a_key_follows_from_all_that_a_score_does() -> None:
    query = Query("q", "85", {"a": 1, "b": [2]})
    same = Query("q", "85", {"b": [2], "a": 1})  # another order of the same metadata
    keys = {
        score_key(*values)
        for values in [
            ("r", query, "x"),
            ("s", query, "x"),
            ("r", query, "y"),
            ("r", Query("qq", "85", query.metadata), "x"),
            ("r", Query("q", "86", query.metadata), "x"),
            ("r", Query("q", None, query.metadata), "x"),
            ("r", Query("q", "85", {}), "x"),
            ("r", Query("q\ud800", "85", {}), "x"),  # half of a surrogate pair
        ]
    }
    assert len(keys) == 8
    assert score_key("r", same, "x") == score_key("r", query, "x")


def test_metadata_that_json_cannot_hold_is_named() -> None:
    with pytest.raises(RewardError, match=r"metadata JSON can hold .*got query 'q'"):
        score_key("r", Query("q", metadata={"a": {1, 2}}), "x")


def test_rewards_that_may_differ_have_different_identities() -> None:
    rewards: list[Any] = [
        score,
        other,
        Scaled(1.0),
        Scaled(2.0),
        Scaled(1.0, Path("b")),
        Plain(1),
        Plain("1"),
        Plain(None),
        make_reward("vader"),
        make_reward("target"),
    ]
    assert len({reward_identity(reward) for reward in rewards}) == len(rewards)
    assert reward_identity(Scaled(1.0, _words=["x"])) == reward_identity(Scaled(1.0))
    assert reward_identity(make_reward("vader")) == reward_identity(make_reward("vader()"))


def test_a_changed_source_file_is_another_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "judge_of_mine.py"
    module.write_text("def score(queries, responses):\n    return [0.0] * len(responses)\n")
    reward = make_reward("judge_of_mine:score")
    before = reward_identity(reward)
    module.write_text(module.read_text().replace("0.0", "1.0"))
    assert reward_identity(reward) != before


def test_a_fingerprint_speaks_for_a_reward_that_says_nothing_else() -> None:
    one, two, three = made_inside(), made_inside(), Plain(object())
    one.fingerprint = three.fingerprint = "model 7"  # type: ignore[attr-defined]
    two.fingerprint = "model 8"  # type: ignore[attr-defined]
    assert len({reward_identity(reward) for reward in (one, two, three)}) == 3


@pytest.mark.parametrize(
    "reward",
    [
        made_inside(),
        lambda queries, responses: [0.0],
        functools.partial(score),
        Scaled(1.0).__call__,
        Plain(object()),
        Plain({1, 2}),
        max,
    ],
    ids=["closure", "lambda", "partial", "method", "object inside", "set inside", "built-in"],
)
def test_a_reward_whose_scores_may_follow_from_something_hidden_is_refused(reward: Any) -> None:
    with pytest.raises(ValueError, match="reward_cache cannot tell what the scores of"):
        reward_identity(reward)


# Files.


def test_a_file_that_is_no_cache_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "scores"
    path.write_text("certainly no database, but long enough to be looked at as one" * 20)
    with pytest.raises(ValueError, match=rf"{re.escape(str(path))} cannot be used: file is not a"):
        ScoreCache(path)
    assert path.read_text().startswith("certainly")


def test_the_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "history"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE visits (url TEXT)")
    db.close()
    before = path.read_bytes()
    with pytest.raises(ValueError, match="it is the database of another program"):
        ScoreCache(path)
    assert path.read_bytes() == before


def test_a_later_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "scores"
    ScoreCache(path)
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 2")
    db.close()
    with pytest.raises(ValueError, match="it has format 2, expected 1; move the file away"):
        ScoreCache(path)


@pytest.mark.parametrize("share", [0.4, 0.6, 0.999])
def test_a_cache_that_was_cut_is_refused_and_left_as_it_is(share: float, tmp_path: Path) -> None:
    path = tmp_path / "scores"
    ScoreCache(path).put({f"k{i}": 1.0 for i in range(2000)})
    cut = path.read_bytes()[: int(path.stat().st_size * share)]
    path.write_bytes(cut)
    with pytest.raises(ValueError, match=rf"{re.escape(str(path))} cannot be used: .*; move the"):
        ScoreCache(path)
    assert path.read_bytes() == cut


def test_a_cache_that_is_damaged_later_is_named(tmp_path: Path) -> None:
    path = tmp_path / "scores"
    cache = ScoreCache(path)
    cache.put({f"k{i}": 1.0 for i in range(2000)})
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)  # all pages but the first
    path.write_bytes(data)
    with pytest.raises(RewardError, match="cannot be used: database disk image is malformed; move"):
        cache.get(["k7"])


@pytest.mark.parametrize("value", ["'0.5'", "NULL", "9e999", "x'00'"])
def test_a_score_that_is_no_finite_number_is_named(value: str, tmp_path: Path) -> None:
    cache = ScoreCache(tmp_path / "scores")
    with sqlite3.connect(tmp_path / "scores") as db:
        db.execute(f"INSERT INTO scores VALUES ('k', {value})")
    db.close()
    if value == "'0.5'":  # SQLite itself makes a number of it
        assert cache.get(["k"]) == {"k": 0.5}
        return
    with pytest.raises(RewardError, match="the score of k is"):
        cache.get(["k"])


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "no" / "scores"):
        with pytest.raises(ValueError, match="reward_cache must be a file in a folder that exists"):
            ScoreCache(path)


def test_another_writer_is_waited_for_and_then_named(tmp_path: Path) -> None:
    path = tmp_path / "scores"
    cache = ScoreCache(path, wait=0.01)
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    assert cache.get(["a"]) == {}  # reading goes on
    with pytest.raises(RewardError, match=r"being written by another process for more than 0[.]01"):
        cache.put({"a": 1.0})
    writer.execute("COMMIT")
    writer.close()
    cache.put({"a": 1.0})
    assert cache.get(["a"]) == {"a": 1.0}


def test_an_interrupted_write_leaves_nothing(tmp_path: Path) -> None:
    cache = ScoreCache(tmp_path / "scores")
    with pytest.raises(RewardError, match="cannot be used"):
        cache.put({"a": 1.0, "b": object()})  # type: ignore[dict-item]
    assert cache.get(["a"]) == {}


def _write(path: str, first: int) -> None:
    cache = ScoreCache(Path(path))
    for i in range(first, first + 40):
        cache.put({f"k{i}": float(i)})


def test_two_processes_may_share_a_file(tmp_path: Path) -> None:
    path = str(tmp_path / "scores")
    context = multiprocessing.get_context("fork")
    # keys 20..39 are written by both
    writers = [context.Process(target=_write, args=(path, first)) for first in (0, 20)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    cache = ScoreCache(Path(path))
    assert cache.get(f"k{i}" for i in range(70)) == {f"k{i}": float(i) for i in range(60)}


def test_the_file_holds_no_pickle_and_no_text_of_the_run(tmp_path: Path) -> None:
    cache = ScoreCache(tmp_path / "scores")
    cache.put({score_key("r", Query("a secret question"), "a secret answer"): 1.0})
    assert b"secret" not in (tmp_path / "scores").read_bytes()
    with sqlite3.connect(tmp_path / "scores") as db:
        assert json.dumps(db.execute("SELECT score FROM scores").fetchall()) == "[[1.0]]"
    db.close()
