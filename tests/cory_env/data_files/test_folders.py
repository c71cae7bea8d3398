"""Tests of cory_env/data_files/folders.py, and of folders through load_data."""

from __future__ import annotations

from pathlib import Path

import pytest

from cory_env.data_files import READERS, load_queries
from cory_env.data_files.folders import split_files, usual_names
from cory_env.data_files.splits import split_of


def touch(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def names(folder: Path, subset: str | None = None) -> dict[str, list[str]]:
    found = split_files(folder, READERS, subset)
    return {split: [path.name for path in files] for split, files in found.items()}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["train.jsonl", "test.jsonl"], {"train": ["train.jsonl"], "test": ["test.jsonl"]}),
        (["Train.CSV", "dev.csv"], {"train": ["Train.CSV"], "validation": ["dev.csv"]}),
        (
            ["train-00000-of-00002.parquet", "train-00001-of-00002.parquet"],
            {"train": ["train-00000-of-00002.parquet", "train-00001-of-00002.parquet"]},
        ),
        (
            ["test-00000-of-00001-f1e2d3.parquet", "unsupervised-00000-of-00001.parquet"],
            {"test": ["test-00000-of-00001-f1e2d3.parquet"]},
        ),
        # The other form of the problems that stands beside GSM8K is no split of it.
        (["train.jsonl", "train_socratic.jsonl", "README.md"], {"train": ["train.jsonl"]}),
        (["data/valid.txt"], {"validation": ["valid.txt"]}),
    ],
)
def test_files_are_found_by_their_names(
    tmp_path: Path, files: list[str], expected: dict[str, list[str]]
) -> None:
    assert names(touch(tmp_path, *files)) == expected


def test_a_copy_of_a_hubs_data_set_is_looked_into(tmp_path: Path) -> None:
    touch(tmp_path, "main/train-00000-of-00001.parquet", "socratic/train-00000-of-00001.parquet")
    assert names(tmp_path, "main") == {"train": ["train-00000-of-00001.parquet"]}
    with pytest.raises(ValueError, match="no data files that name their split"):
        names(tmp_path)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "no data files that name their split, such as train.jsonl"),
        (["all.jsonl", "training.csv"], "no data files that name their split"),
        (["train.csv", "train.jsonl"], "several formats for split 'train': train.csv, train.jsonl"),
        (["dev.csv", "valid.csv"], "files of split 'validation' that are no one set"),
        (["test.csv", "test-00000-of-00001.csv"], "files of split 'test' that are no one set"),
        (
            ["train-00000-of-00003.parquet", "train-00002-of-00003.parquet"],
            "part 1 of the 3 of split 'train' is missing",
        ),
        (["train-00000-of-99999999999999.csv"], "part 1 of the 99999999999999 of split 'train'"),
        (
            ["train-00000-of-00001.csv", "train-00001-of-00002.csv"],
            "files of split 'train' that are no one set",
        ),
    ],
)
def test_a_folder_that_is_not_clear_is_refused(
    tmp_path: Path, files: list[str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        names(touch(tmp_path, *files))


def test_usual_names() -> None:
    assert usual_names(["train", "Dev", "unsupervised"]) == {
        "train": "train",
        "Dev": "validation",
        "unsupervised": "unsupervised",
    }


def test_published_splits_stay_and_their_queries_know_their_file(tmp_path: Path) -> None:
    assert split_of("11") == "validation"  # of a tenth of train
    (tmp_path / "train.txt").write_text("0\n11\nshared\n")
    (tmp_path / "test.txt").write_text("shared\n6\n")
    assert [q.text for q in load_queries(tmp_path, "train")] == ["0"]
    assert [q.text for q in load_queries(tmp_path, "validation")] == ["11"]
    assert [q.text for q in load_queries(tmp_path, "test")] == ["shared", "6"]
    assert load_queries(tmp_path, "test")[1].metadata == {"file": "test.txt", "line": 2}


def test_a_folder_without_a_test_split_says_so_when_it_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("0\n11\n")
    assert len(load_queries(tmp_path, "train")) == 1
    with pytest.raises(ValueError, match="there is no test split, only train; add one, or give"):
        load_queries(tmp_path, "test")


def test_a_split_whose_texts_are_all_in_the_test_is_said(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("a\n")
    (tmp_path / "test.txt").write_text("a\n")
    with pytest.raises(ValueError, match=r"none of its 1 queries falls into split 'train' \(valid"):
        load_queries(tmp_path, "train")


def test_an_empty_or_broken_file_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"query": "a"}\n')
    (tmp_path / "test.jsonl").write_text("\n")
    with pytest.raises(ValueError, match="the data file has no queries in split 'test'"):
        load_queries(tmp_path, "train")
    (tmp_path / "test.jsonl").write_text('{"query": "b"}\n{"query"\n')
    with pytest.raises(ValueError, match=r"test\.jsonl, line 2: broken JSON"):
        load_queries(tmp_path, "train")
