from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import influence, target_runs
from benchmarks.influence import (
    COMMAND,
    FIGURE,
    KAPPAS,
    Influence,
    draw,
    gain_table,
    gains,
    report,
    run,
    score_table,
    verdict,
    wanted,
    without_words,
)
from benchmarks.pages import DOCS, begin_mark, between_marks
from tests.agents.runs import SMALL
from tests.benchmarks.test_target_runs import RUNS, runs_of
from tests.markdown import table_rows


def test_all_cells_of_a_seed_come_before_the_next_seed() -> None:
    names = list(wanted(5))
    assert len(names) == 5 * 5 * 4
    assert [name.rpartition("seed")[2] for name in names] == [
        str(i) for i in range(5) for _ in range(20)
    ]
    assert len({name.rpartition("-")[0] for name in names[:20]}) == 20


def test_the_table_of_scores_by_hand() -> None:
    rows = {tuple(row[:2]): row[2:] for row in table_rows(score_table(RUNS, "eval/A", 2), "kappa")}
    assert len(rows) == 20
    # Alone they score half: 0.1 and 0.3, 0.2 and 0.4; pairs 0.15 and 0.35. t s / sqrt(2) is
    # 12.706 times half the distance.
    assert rows["0.5", "`cory`"] == ["0.20 ± 1.27", "0.30 ± 1.27", "0.25 ± 1.27"]
    assert rows["0.25", "`cory`"] == ["0.45 ± ? (n = 1)"] * 3
    assert rows["1", "`placebo_sum`"] == ["–"] * 3


def test_gains_are_taken_seed_by_seed() -> None:
    assert gains({0: 0.5, 1: 0.7, 3: 1.0}, {1: 0.4, 0: 0.4, 2: 0.0}) == pytest.approx([0.1, 0.3])
    rows = {row[0]: row[1:] for row in table_rows(gain_table(RUNS, "observer_eval/A", 2), "kappa")}
    # Pairs 0.3 and 0.7 against 0.1 and 0.3: ahead by 0.2 and 0.4.
    assert rows["0.5"] == ["–", "0.30 ± 1.27", "–", "–"]
    assert rows["0.25"] == ["–", "–", "–", "–"]  # nothing to compare with
    runs = runs_of(
        {(1.0, "cory"): [(0.5, 0.7), (0.6, 0.6)], (1.0, "placebo_sum"): [(0.2, 0.2)] * 2}
    )
    rows = {row[0]: row[1:] for row in table_rows(gain_table(runs, "observer_eval/A", 2), "kappa")}
    assert rows["1"] == ["–", "–", "–", "0.40 ± 0.00"]  # the last: cory over placebo_sum


def test_where_a_difference_is_larger_than_its_interval_is_said() -> None:
    base = [(0.2, 0.2), (0.3, 0.3)]
    runs = runs_of(
        {
            **{(k, "independent"): base for k in KAPPAS},
            (0.75, "cory"): [(0.6, 0.6), (0.7, 0.7)],  # 0.4 each time, no spread
            (1.0, "cory"): [(0.9, 0.9), (1.0, 1.0)],
            (0.5, "cory"): [(0.9, 0.9), (0.2, 0.2)],  # 0.7 and -0.1: 0.3 ± 5.1
            (0.0, "placebo_sum"): [(0.1, 0.1), (0.2, 0.2)],
            (0.25, "cory_exact"): [(0.9, 0.9)],  # one seed says nothing
        }
    )
    assert verdict(runs, "observer_eval/A") == (
        "Intervals without 0, ahead: `cory` at 0.75, 1. Behind: `placebo_sum` at 0."
    )
    assert verdict({}, "eval/A") == "Intervals without 0, ahead: nowhere. Behind: nowhere."


@pytest.mark.parametrize(("kappa", "most"), [(0.0, 1.0), (0.5, 7 / 12), (1.0, 1 / 6)])
def test_what_an_observer_can_score_without_words(kappa: float, most: float) -> None:
    # It sees 1 - kappa of the queries and guesses one letter of six at the others.
    assert without_words(kappa) == pytest.approx(most)


def test_the_report_has_both_seats_and_the_figure() -> None:
    text = report(RUNS, 2)
    assert f"]({FIGURE})" in text
    assert text.index("Score as observer") < text.index("Score alone")
    assert text.count("\n| --- |") == 4


def test_the_figure_is_small_and_can_be_drawn_of_part_of_the_runs(tmp_path: Path) -> None:
    whole = runs_of({(k, m): [(k, 1.0), (0.0, k)] for k in KAPPAS for m in influence.METHODS})
    for name, runs in (("part.png", RUNS), ("whole.png", whole)):
        draw(runs, tmp_path / "figures" / name)
        content = (tmp_path / "figures" / name).read_bytes()
        assert content.startswith(b"\x89PNG") and len(content) < 100_000
    # The same numbers are the same file: a commit changes only where they did.
    draw(whole, tmp_path / "again.png")
    assert (tmp_path / "again.png").read_bytes() == content


def test_the_page_has_the_marks() -> None:
    assert between_marks((DOCS / "influence.md").read_text(), COMMAND, "x")


def test_the_command_trains_writes_and_reads_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(influence, "KAPPAS", (0.5,))
    monkeypatch.setattr(influence, "METHODS", ("independent", "cory"))
    small = {k: v for k, v in SMALL.items() if k not in ("progress", "tensorboard")}
    monkeypatch.setattr(target_runs, "BUDGET", small)
    page = tmp_path / "docs" / "influence.md"
    page.parent.mkdir()
    page.write_text(empty := f"# Page\n\n{begin_mark(COMMAND)}\n<!-- end -->\n")
    flags = {"store": tmp_path / "store", "workers": 1, "iterations": 1, "docs": page.parent}

    assert run(Influence(**flags, seeds=2, report=True, write=True)) == 1
    assert "0 of 4 runs are finished, nothing is written" in capsys.readouterr().out
    assert page.read_text() == empty and not (tmp_path / "store").exists()

    assert run(Influence(**flags, seeds=2, write=True)) == 0
    assert "4 runs, 0 of them done" in capsys.readouterr().out
    text = page.read_text()
    assert [row[:2] for row in table_rows(text, "kappa")] == [
        ["0.5", "`independent`"],
        ["0.5", "`cory`"],
    ]
    assert (page.parent / FIGURE).is_file()

    # With a seed that is not there yet, what there is is shown and nothing is written.
    page.write_text(empty)
    assert run(Influence(**flags, seeds=3, report=True, write=True)) == 1
    out = capsys.readouterr().out
    assert "4 of 6 runs are finished" in out and "(n = 2)" in out
    assert page.read_text() == empty

    assert run(Influence(**flags, seeds=2, report=True, write=True)) == 0
    assert page.read_text() == text
