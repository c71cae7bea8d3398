"""Small data sets for the tasks that have none of their own, written when first asked for."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from cory_env.tasks.reviews import FOLDER

WORDS = ["film", "plot", "cast", "scene", "music", "camera", "story", "ending", "humour", "silence"]
N = 80


def review(i: int) -> str:
    """A review of more than 200 characters; its first words name its number."""
    start = f"Review {i} of the {WORDS[i % 10]} says much<br /><br />"
    return (
        start + " ".join(f"the {WORDS[(i + j) % 10]} was fine and" for j in range(12)) + " so on."
    )


def problem(i: int) -> tuple[str, str]:
    """A question, and its solution in the published form."""
    a, b = i + 2, 3 * i + 1
    text = f"Tom has {a} pens and buys {b} more. How many pens has he now?"
    return text, f"He has {a} + {b} = <<{a}+{b}={a + b}>>{a + b} pens.\n#### {a + b:,}"


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    """A file of JSON objects, one a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def review_rows(numbers: range = range(N)) -> list[dict[str, Any]]:
    """Rows of the CSV form of IMDB."""
    return [{"review": review(i), "sentiment": ("positive", "negative")[i % 2]} for i in numbers]


def problem_rows(numbers: range = range(N)) -> list[dict[str, Any]]:
    """Rows of GSM8K."""
    return [dict(zip(("question", "answer"), problem(i), strict=True)) for i in numbers]


@cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="cory-env-tests-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def settings(task: str) -> dict[str, Any]:
    """What an environment of a task needs besides its name: data, reward, tokenizer."""
    tokenizer = {"tokenizer": FOLDER / "tokenizer"}  # byte-level: it spells everything
    if task == "imdb":
        return {"data": write_jsonl(_folder() / "imdb.jsonl", review_rows()), "reward": "vader"}
    if task == "gsm8k":
        return {"data": write_jsonl(_folder() / "gsm8k.jsonl", problem_rows()), **tokenizer}
    if task == "gsm_symbolic":
        return tokenizer
    if task == "custom":
        rows = [{"query": q, "answer": a.rpartition(" ")[2]} for q, a in map(problem, range(N))]
        path = write_jsonl(_folder() / "custom.jsonl", rows)
        return {"data": path, "reward": "exact_number", **tokenizer}
    return {}


def task_keywords(task: str) -> dict[str, Any]:
    """The part of them that `make_task` takes."""
    return {name: value for name, value in settings(task).items() if name != "tokenizer"}
