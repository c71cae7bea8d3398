"""Tests of cory_env/data_files/acl_imdb.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from cory_env.data_files.acl_imdb import acl_imdb_parts, is_acl_imdb


def archive(folder: Path, *files: str) -> Path:
    for name in files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"review {name}", encoding="utf-8")
    return folder


def test_reviews_and_ratings_without_the_unrated_ones(tmp_path: Path) -> None:
    archive(
        tmp_path,
        *("train/pos/1_9.txt", "train/neg/0_2.txt", "train/unsup/5_0.txt", "train/urls_pos.txt"),
        *("test/pos/0_10.txt", "test/neg/7_1.txt", "README"),
    )
    assert is_acl_imdb(tmp_path)
    parts = {split: list(rows) for split, rows in acl_imdb_parts(tmp_path).items()}
    assert [row.values for row in parts["train"]] == [
        {"review": "review train/pos/1_9.txt", "sentiment": "positive"},
        {"review": "review train/neg/0_2.txt", "sentiment": "negative"},
    ]
    assert [row.place for row in parts["test"]] == [
        {"file": "test/pos/0_10.txt"},
        {"file": "test/neg/7_1.txt"},
    ]


def test_one_part_is_enough_but_not_half_of_it(tmp_path: Path) -> None:
    archive(tmp_path, "train/pos/0_9.txt", "train/neg/0_1.txt")
    assert list(acl_imdb_parts(tmp_path)) == ["train"]
    archive(tmp_path, "test/pos/0_9.txt")
    with pytest.raises(ValueError, match="test: no folder 'neg' beside the other one"):
        acl_imdb_parts(tmp_path)


def test_another_folder_is_none(tmp_path: Path) -> None:
    assert not is_acl_imdb(archive(tmp_path, "train.txt", "pos/0_9.txt"))


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    archive(tmp_path, "train/pos/0_9.txt", "train/neg/0_1.txt")
    (tmp_path / "train/neg/0_1.txt").write_bytes(b"na\xefve")
    with pytest.raises(ValueError, match=r"neg/0_1\.txt: not UTF-8 text"):
        list(acl_imdb_parts(tmp_path)["train"])
