"""Every block of code in the README and the documentation does what it says: it is run.

The blocks of a page run in order, in one new folder and one namespace, as a reader would run them.
Training is cut to an iteration of a few responses, and what needs a hub or a GPU is only parsed.
"""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import tyro

from agents.command_line import train_config
from agents.evaluate import EvalCommand, evaluate
from agents.influence import InfluenceCommand, influence
from agents.play import PlayCommand, play
from agents.train import train
from tests.markdown import PAGES, Block, blocks, page_id

SHORT = {
    "--iterations": "1",
    "--batch-size": "8",
    "--update-epochs": "1",
    "--eval-queries": "8",
}
QUIET = ["--no-progress", "--no-tensorboard"]
FILE_NAME = re.compile(r"# ([\w-]+\.(?:py|yaml))\n")


def run_train(words: list[str]) -> None:
    asked = train_config(words)
    hub = asked.model is not None and not asked.model.startswith(("builtin:", "./"))
    if hub or asked.device != "cpu":
        return
    # What is given twice takes the last value; a resumed run keeps its own.
    short = {"--iterations": "2"} if asked.resume else SHORT
    result = train(train_config([*words, *chain.from_iterable(short.items()), *QUIET]))
    assert result.finished


def run_eval(words: list[str]) -> None:
    command = tyro.cli(EvalCommand, args=[*words, "--queries", "8"])
    assert evaluate(command)


def run_play(words: list[str]) -> None:
    command = tyro.cli(PlayCommand, args=words)
    assert play(command) == max(len(command.query), command.random)


def run_copy(words: list[str]) -> None:
    option, source, target = words
    assert option == "-r"
    shutil.copytree(source, target)


def run_module(words: list[str]) -> None:
    option, name, *flags = words
    assert option == "-m"
    if name == "agents.influence":
        small = ["--queries", "2", "--first", "2", "--second", "2"]
        assert influence(tyro.cli(InfluenceCommand, args=[*flags, *small]))
        return
    assert not flags
    sys.argv = [name, "1"]  # the examples take the number of iterations
    sys.modules.pop(name, None)  # else runpy warns that it was imported before
    runpy.run_module(name, run_name="__main__")


def run_launch(words: list[str]) -> None:
    """What each process does, in one; tests/agents/test_distributed.py starts several."""
    start = words.index("agents.train")
    assert words[:3] == ["launch", "--multi-gpu", "--num-processes"]
    assert (int(words[3]), words[4:start]) == (max(int(words[3]), 2), ["-m"])
    run_train(words[start + 1 :])


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "cory-train": run_train,
    "cory-eval": run_eval,
    "cory-play": run_play,
    "accelerate": run_launch,
    "cp": run_copy,
    "python": run_module,
}


def run_shell(block: Block) -> None:
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words:
            COMMANDS[words[0]](words[1:])


def run_block(block: Block, page: Path, namespace: dict[str, Any]) -> None:
    name = FILE_NAME.match(block.text)
    if name is not None:
        Path(name[1]).write_text(block.text[name.end() :], encoding="utf-8")
    elif block.language == "python":
        code = "\n" * (block.line - 1) + block.text  # so that a traceback names the page's line
        exec(compile(code, str(page), "exec"), namespace)
    elif block.language in ("sh", "bash"):
        run_shell(block)
    else:
        assert block.language == "text", f"{page}:{block.line}: what is {block.language!r}?"


@pytest.fixture
def _as_a_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A new folder, in which modules can be imported, and nothing of it left behind."""
    known = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    yield
    for name in set(sys.modules) - known:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.mark.case(63, 68)
@pytest.mark.slow
@pytest.mark.usefixtures("_as_a_reader")
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=page_id)
def test_every_block_runs(page: Path) -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page):
        run_block(block, page, namespace)


def test_the_reward_of_the_readme_is_the_example() -> None:
    page = PAGES[0]
    shown = next(b.text for b in blocks(page) if b.text.startswith("# my_reward.py\n"))
    example = (page.parent / "examples" / "my_reward.py").read_text(encoding="utf-8")
    assert shown.partition("\n")[2] == example
