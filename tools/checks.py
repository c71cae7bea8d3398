"""The table of known faults, `docs/checks.md`, made from the marks of the tests.

A test that answers a fault is marked `@pytest.mark.case(7)`; `tools/checks.toml` says what the
fault is, where it was reported and what holds here. `python -m tools.checks` writes the page;
with `--check` it only says what is wrong with it.
"""

from __future__ import annotations

import argparse
import ast
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "checks.md"
DATA = ROOT / "tools" / "checks.toml"
TESTS = ROOT / "tests"

HEAD = """\
# Known faults, and the tests that answer them

Made by `python -m tools.checks` from the marks of the tests; `make lint` fails when it is out of
date. Each row is a fault that users reported of another library, or one of the platform this one
stands on. Numbers have gaps.

- **answered**: the tests named in the row fail if the fault appears here.
- **refused**: what would cause it is not accepted; the tests pin the sentence.
- **in part**: the tests cover what there is; the row says what is still to come.
- **open**: the feature that could have the fault is not there yet.

Rows: {answered} answered, {refused} refused, {partly} in part, {open} open.
"""


@dataclass(frozen=True)
class Check:
    """One fault.

    Attributes:
        id: number or name, as the tests' marks say it.
        fault: what goes wrong.
        where: repository and number of the report.
        holds: what is true here.
        refused: whether it is answered by not accepting what would cause it.
        open: why it is not answered, or not wholly; None if it is.
    """

    id: str
    fault: str
    where: str
    holds: str
    refused: bool = False
    open: str | None = None

    def status(self, tests: Sequence[MarkedTest]) -> str:
        """The word of the page's first paragraph."""
        if self.open is not None:
            return "in part" if tests else "open"
        return "refused" if self.refused else "answered"


@dataclass(frozen=True)
class MarkedTest:
    """A test function and the file it is in, relative to the repository."""

    file: str
    name: str


def read_checks(path: Path = DATA) -> dict[str, list[Check]]:
    """The faults by group.

    Raises:
        ValueError: if a row is not whole, or two have one id.
    """
    groups: dict[str, list[Check]] = {}
    seen: set[str] = set()
    for group in tomllib.loads(path.read_text(encoding="utf-8"))["group"]:
        rows = []
        for row in group["check"]:
            try:
                check = Check(**{**row, "id": str(row["id"])})
            except (KeyError, TypeError) as error:
                raise ValueError(f"{path.name}: row {row} is not whole ({error})") from error
            if check.id in seen:
                raise ValueError(f"{path.name}: two rows have the id {check.id!r}")
            seen.add(check.id)
            rows.append(check)
        groups[group["name"]] = rows
    return groups


def read_marks(folder: Path = TESTS, root: Path = ROOT) -> dict[str, list[MarkedTest]]:
    """The marked tests by id, in the order of files and lines."""
    found: dict[str, list[MarkedTest]] = {}
    for file in sorted(folder.rglob("test_*.py")):
        text = file.read_text(encoding="utf-8")
        if "mark.case(" not in text:
            continue
        for name, ids in _marked(ast.parse(text)):
            for key in ids:
                test = MarkedTest(file.relative_to(root).as_posix(), name)
                if test not in found.setdefault(key, []):
                    found[key].append(test)
    return found


def _marked(tree: ast.Module) -> Iterator[tuple[str, list[str]]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            ids = [key for decorator in node.decorator_list for key in _ids(decorator)]
            if ids:
                yield node.name, ids


def _ids(decorator: ast.expr) -> list[str]:
    if not isinstance(decorator, ast.Call) or not ast.unparse(decorator.func).endswith("mark.case"):
        return []
    return [str(ast.literal_eval(argument)) for argument in decorator.args]


def page(groups: Mapping[str, Sequence[Check]], marks: Mapping[str, Sequence[MarkedTest]]) -> str:
    """The Markdown page."""
    words = [c.status(marks.get(c.id, [])) for checks in groups.values() for c in checks]
    lines = [
        HEAD.format(
            answered=words.count("answered"),
            refused=words.count("refused"),
            partly=words.count("in part"),
            open=words.count("open"),
        )
    ]
    for name, checks in groups.items():
        lines += [f"## {name}", ""]
        lines += ["| no. | fault | reported | here | what holds here | tests |"]
        lines += ["| --- | --- | --- | --- | --- | --- |"]
        lines += [_row(check, marks.get(check.id, [])) for check in checks]
        lines += [""]
    return "\n".join(lines)


def _row(check: Check, tests: Sequence[MarkedTest]) -> str:
    links = ", ".join(f"[{test.name.removeprefix('test_')}](../{test.file})" for test in tests)
    holds = check.holds if check.open is None else f"{check.holds} *Open:* {check.open}".strip()
    cells = [check.id, check.fault, check.where, check.status(tests), holds, links or "–"]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def problems(
    groups: Mapping[str, Sequence[Check]], marks: Mapping[str, Sequence[MarkedTest]]
) -> list[str]:
    """What is wrong with the rows and the marks, a sentence each."""
    checks = {check.id: check for rows in groups.values() for check in rows}
    wrong = [
        f"row {check.id} has neither a test nor a reason why it is open"
        for check in checks.values()
        if not marks.get(check.id) and not check.open
    ]
    for key in marks:
        if key not in checks:
            test = marks[key][0]
            wrong.append(f"{test.file}: {test.name} is marked with the unknown case {key}")
    return wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page, or with --check compare it; 0 where all is well."""
    parser = argparse.ArgumentParser(prog="python -m tools.checks", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail if out of date")
    options = parser.parse_args(arguments)
    groups, marks = read_checks(), read_marks()
    wrong = problems(groups, marks)
    text = page(groups, marks)
    if not options.check:
        PAGE.write_text(text, encoding="utf-8")
    elif not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text:
        wrong.append("docs/checks.md is out of date: run python -m tools.checks")
    for sentence in wrong:
        print(f"error: {sentence}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
