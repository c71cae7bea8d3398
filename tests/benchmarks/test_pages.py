from __future__ import annotations

import math
from pathlib import Path

import pytest

from benchmarks.pages import T_975, between_marks, check_parts, interval, markdown, write_part

PAGE = "# A\n\n<!-- made by me: begin -->\nold\n<!-- end -->\nrest\n"


def test_an_interval_by_hand() -> None:
    # Mean 2, standard deviation 1, and t of two degrees of freedom is 4.303.
    found = interval([1.0, 2.0, 3.0])
    assert found.mean == 2.0 and found.n == 3
    assert found.half == pytest.approx(4.303 / math.sqrt(3))
    assert str(found) == "2.00 ± 2.48"
    assert str(interval([-0.001, -0.001])) == "0.00 ± 0.00"


def test_one_seed_says_nothing_about_the_spread_and_none_is_refused() -> None:
    assert math.isinf(interval([0.5]).half)
    assert str(interval([0.5])) == "0.50 ± ?"
    with pytest.raises(ValueError, match="values must hold at least one number"):
        interval([])


def test_equal_values_have_no_spread() -> None:
    assert interval([0.25] * 40).half == 0.0  # more degrees of freedom than the table has


def test_the_points_of_t_are_the_known_ones() -> None:
    assert len(T_975) == 30
    assert list(T_975) == sorted(T_975, reverse=True)
    assert (T_975[3], T_975[9], T_975[29]) == (2.776, 2.228, 2.042)


def test_a_table_has_a_rule_and_whole_rows() -> None:
    assert markdown(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"
    with pytest.raises(ValueError, match="rows must have 2 cells, got 1"):
        markdown(["a", "b"], [["1"]])


def test_only_what_is_between_the_marks_is_replaced() -> None:
    new = between_marks(PAGE, "me", "new\n")
    assert new == "# A\n\n<!-- made by me: begin -->\n\nnew\n\n<!-- end -->\nrest\n"
    assert between_marks(new, "me", "new") == new


def test_parts_of_several_commands_stand_on_one_page() -> None:
    page = PAGE + PAGE.replace("by me", "by you")
    assert between_marks(page, "you", "new") == PAGE + between_marks(
        PAGE.replace("by me", "by you"), "you", "new"
    )


@pytest.mark.parametrize(
    "page",
    [
        "nothing",
        "<!-- made by me: begin -->\n",
        "<!-- end -->\n<!-- made by me: begin -->\n",
        PAGE + PAGE,
        "<!-- made by me: begin -->\n" + PAGE,
    ],
)
def test_a_page_without_its_marks_is_refused_and_left(page: str, tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    file.write_text(page)
    with pytest.raises(ValueError, match=r"page\.md: the page must hold .* once"):
        write_part(file, "me", "new")
    assert file.read_text() == page


def test_a_page_is_written(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(PAGE)
    write_part(tmp_path / "page.md", "me", "new")
    assert "\n\nnew\n\n" in (tmp_path / "page.md").read_text()
    with pytest.raises(ValueError, match="cannot be read"):
        write_part(tmp_path / "other.md", "me", "new")


def test_pages_are_looked_at_before_the_work(tmp_path: Path) -> None:
    whole, other = tmp_path / "whole.md", tmp_path / "other.md"
    whole.write_text(PAGE)
    other.write_text("no marks")
    check_parts([whole], "me")
    for pages in ([whole, other], [whole, tmp_path / "none.md"]):
        with pytest.raises(ValueError, match=r"other\.md|none\.md"):
            check_parts(pages, "me")
    assert whole.read_text() == PAGE
