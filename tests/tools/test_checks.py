"""Tests of tools/checks.py: the table of faults is whole, true and up to date."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import checks
from tools.checks import Check, MarkedTest, page, problems, read_checks, read_marks

ROW = Check(id="7", fault="a | b", where="there #1", holds="It does.")


def test_the_page_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert checks.main(["--check"]) == 0, capsys.readouterr().err


def test_every_mark_is_read(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(
        "import pytest\n"
        "@pytest.mark.case(7, 'P1')\n@pytest.mark.slow\ndef test_one(): ...\n"
        "class TestMany:\n    @pytest.mark.case(7)\n    def test_two(self): ...\n"
        "@pytest.mark.slow\ndef test_three(): ...\n"
    )
    one, two = MarkedTest("test_some.py", "test_one"), MarkedTest("test_some.py", "test_two")
    assert read_marks(tmp_path, tmp_path) == {"7": [one, two], "P1": [one]}


def test_a_row_needs_a_test_or_a_reason() -> None:
    open_row = Check(id="8", fault="c", where="d", holds="", open="not there")
    groups = {"Group": [ROW, open_row]}
    assert problems(groups, {}) == ["row 7 has neither a test nor a reason why it is open"]
    test = MarkedTest("tests/test_some.py", "test_one")
    assert problems(groups, {"7": [test]}) == []
    assert problems(groups, {"7": [test], "99": [test]}) == [
        "tests/test_some.py: test_one is marked with the unknown case 99"
    ]
    assert ROW.status([test]) == "answered"
    assert open_row.status([]) == "open" and open_row.status([test]) == "in part"


def test_a_row_of_the_page() -> None:
    text = page({"Group": [ROW]}, {"7": [MarkedTest("tests/test_some.py", "test_one")]})
    row = next(line for line in text.splitlines() if line.startswith("| 7"))
    link = "[one](../tests/test_some.py)"
    assert row == f"| 7 | a \\| b | there #1 | answered | It does. | {link} |"
    assert "1 answered, 0 refused, 0 in part, 0 open" in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[group]]\nname = "g"\n[[group.check]]\nid = 1\n', "not whole"),
        ('[[group]]\nname = "g"\n[[group.check]]\nfault = "a"\n', "not whole"),
    ],
)
def test_a_broken_data_file_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "checks.toml").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_checks(tmp_path / "checks.toml")


def test_two_rows_of_one_id_are_refused(tmp_path: Path) -> None:
    row = '[[group.check]]\nid = 1\nfault = "a"\nwhere = "b"\nholds = "c"\n'
    (tmp_path / "checks.toml").write_text(f'[[group]]\nname = "g"\n{row}{row}')
    with pytest.raises(ValueError, match="two rows have the id '1'"):
        read_checks(tmp_path / "checks.toml")
