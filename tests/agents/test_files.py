"""Tests of agents/files.py."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from agents.files import (
    append_line,
    mend_folder,
    read_lines,
    write_folder,
    write_json,
    write_text,
)


def names(path: Path) -> list[str]:
    return sorted(p.name for p in path.iterdir())


def test_a_text_replaces_the_one_before(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "one")
    write_text(tmp_path / "a.txt", "zwölf")
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "zwölf"
    assert names(tmp_path) == ["a.txt"]
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == 0o644


def test_a_failed_write_leaves_the_old_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_text(tmp_path / "a.txt", "one")

    def full_disk(handle: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="no space"):
        write_text(tmp_path / "a.txt", "two")
    assert (tmp_path / "a.txt").read_text() == "one"
    assert names(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_json_has_no_nan_and_no_infinity(value: float, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", {"x": value})
    with pytest.raises(ValueError, match="JSON"):
        append_line(tmp_path / "a.jsonl", {"x": value})
    assert names(tmp_path) in ([], ["a.jsonl"])


def test_a_folder_replaces_the_one_before_as_a_whole(tmp_path: Path) -> None:
    write_folder(tmp_path / "f", lambda p: (p / "old").write_text("1"))
    write_folder(tmp_path / "f", lambda p: (p / "new").write_text("2"))
    assert names(tmp_path) == ["f"]
    assert names(tmp_path / "f") == ["new"]


def test_a_folder_that_fails_leaves_the_old_one(tmp_path: Path) -> None:
    write_folder(tmp_path / "f", lambda p: (p / "old").write_text("1"))

    def fail(path: Path) -> None:
        (path / "half").write_text("2")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_folder(tmp_path / "f", fail)
    assert names(tmp_path) == ["f"]
    assert names(tmp_path / "f") == ["old"]


def test_half_a_line_at_the_end_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    assert read_lines(file) == []
    append_line(file, {"a": 1})
    append_line(file, {"a": "ü\nx"})
    with file.open("a") as opened:
        opened.write('{"a": 3')
    assert read_lines(file) == [{"a": 1}, {"a": "ü\nx"}]


def test_unicode_line_separators_do_not_cut_a_row(tmp_path: Path) -> None:
    # Texts of a language model hold anything, also U+2028, at which str.splitlines breaks.
    append_line(tmp_path / "a.jsonl", {"a": "x\u2028y\x85z"})
    append_line(tmp_path / "a.jsonl", {"a": 2})
    assert read_lines(tmp_path / "a.jsonl") == [{"a": "x\u2028y\x85z"}, {"a": 2}]


def test_a_kill_between_the_two_moves_of_a_replacement_is_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_folder(tmp_path / "f", lambda p: (p / "old").write_text("1"))
    replace, moves = Path.replace, []

    class KilledError(BaseException):
        pass

    def killed(self: Path, target: Path) -> Path:
        moves.append(self.name)
        if len(moves) > 1:  # a killed process moves nothing any more, not even back
            raise KilledError
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        with pytest.raises(KilledError):
            write_folder(tmp_path / "f", lambda p: (p / "new").write_text("2"))
    assert "f" not in names(tmp_path)
    mend_folder(tmp_path)
    assert names(tmp_path) == ["f"] and names(tmp_path / "f") == ["old"]


def test_a_replacement_that_fails_is_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_folder(tmp_path / "f", lambda p: (p / "old").write_text("1"))
    replace, moves = Path.replace, []

    def failing(self: Path, target: Path) -> Path:
        moves.append(self.name)
        if len(moves) == 2:
            raise OSError("no space left")
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", failing)
        with pytest.raises(OSError, match="no space"):
            write_folder(tmp_path / "f", lambda p: (p / "new").write_text("2"))
    assert names(tmp_path) == ["f"] and names(tmp_path / "f") == ["old"]


def test_mending_touches_only_what_this_module_leaves(tmp_path: Path) -> None:
    mend_folder(tmp_path / "nowhere")
    for name in (".a.json.0a_9zzzz.tmp", ".hidden", ".git", "a.tmp", ".a.toolongname.tmp"):
        (tmp_path / name).write_text("x")
    (tmp_path / "f").mkdir()
    (tmp_path / ".f.abcdefgh.old").mkdir()
    (tmp_path / ".f.abcdefgh.old/was").mkdir()  # the replacement had happened: not put back
    mend_folder(tmp_path)
    assert names(tmp_path) == [".a.toolongname.tmp", ".git", ".hidden", "a.tmp", "f"]


def test_the_error_of_a_library_in_rust_is_an_oserror(tmp_path: Path) -> None:
    def full(path: Path) -> None:
        raise Exception("I/O error: No space left on device (os error 28)")

    with pytest.raises(OSError, match="No space left on device") as caught:
        write_folder(tmp_path / "f", full)
    assert caught.value.errno == 28
    assert names(tmp_path) == []
    with pytest.raises(KeyError):
        write_folder(tmp_path / "f", lambda path: {}["x"])
