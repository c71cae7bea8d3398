from __future__ import annotations

from pathlib import Path

import pytest

from agents.learners import LEARNERS
from benchmarks import influence
from benchmarks.learners import (
    COMMAND,
    Learners,
    costs,
    reason,
    report,
    result,
    run,
    table,
    wanted,
)
from benchmarks.pages import DOCS, begin_mark, between_marks
from benchmarks.sweep import Store
from tests.benchmarks.test_target_runs import RUNS, run_of, runs_of
from tests.markdown import table_rows

TOGETHER = {"mappo", "happo", "magrpo", "counterfactual"}


def test_every_learner_runs_where_it_is_defined() -> None:
    names = list(wanted(5))
    assert len(names) == 5 * (10 + 6)
    assert len(set(names)) == len(names)
    independent = {name.split("-")[2] for name in names if "-independent-" in name}
    assert independent == set(LEARNERS) - TOGETHER
    assert {name.split("-")[2] for name in names if "-cory-" in name} == set(LEARNERS)
    # One seed after the other.
    assert all(name.endswith("seed0") for name in names[:16])


def test_runs_that_the_influence_curve_needs_too_are_the_same() -> None:
    own, other = wanted(5), influence.wanted(5)
    shared = own.keys() & other.keys()
    assert len(shared) == 10
    assert all(own[name] == other[name] for name in shared)


def test_reasons_are_short() -> None:
    assert reason("ppo", "independent") is None
    assert reason("mappo", "independent") == "it needs one return for all agents"
    assert reason("counterfactual", "independent") == (
        "it asks what the observer would have scored without the pioneer's answer"
    )


def test_the_table_by_hand() -> None:
    rows = {row[0]: row[1:] for row in table_rows(table(RUNS, "independent", 2), "learner")}
    assert list(rows) == [f"[`{name}`]({name}.md)" for name in LEARNERS]
    # Pairs 0.1 and 0.3, alone half of that; the KL is ten times the score.
    ppo = ["0.20 ± 1.27", "2.00 ± 12.71", "0.10 ± 0.64", "1.00 ± 6.35"]
    assert rows["[`ppo`](ppo.md)"] == [*ppo, "15,360", "40,000", "960", "60"]
    assert rows["[`a2c`](a2c.md)"] == ["–"] * 8
    assert rows["[`happo`](happo.md)"] == [
        "not defined: it needs one return for all agents",
        *[""] * 7,
    ]


def test_costs_are_medians() -> None:
    runs = {}
    for seed, seconds in enumerate((10.0, 20.0, 500.0)):
        name = f"kappa0.5-cory-rloo-seed{seed}"
        runs[name] = run_of(name, seed, (0.5, 0.5), seconds)
    assert costs(runs, "rloo", "cory") == ["15,360", "40,000", "960", "20"]


def test_a_page_of_a_learner_tells_its_own_numbers() -> None:
    grpo = runs_of({(0.5, "cory"): [(0.2, 0.4), (0.6, 0.8)]}, "grpo")
    text = " ".join(result({**RUNS, **grpo}, "grpo", 2).split())
    assert (
        "Under `cory` its agents score 0.50 ± 2.54 as observer at a KL of 5.00 ± 25.41 nats, and "
        "0.25 ± 1.27 alone at 2.50 ± 12.71." in text
    )
    assert "Under `independent` its agents score – as observer" in text
    told = " ".join(result(RUNS, "magrpo", 2).split())
    assert "Under `independent` it is not defined: it needs one return for all agents." in told


def test_the_pages_have_the_marks() -> None:
    for name in ("README", *LEARNERS):
        text = (DOCS / "learners" / f"{name}.md").read_text()
        assert between_marks(text, COMMAND, "x"), name


def test_the_command_writes_every_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scores = [(0.2, 0.4), (0.6, 0.8)]
    made = {
        name: kept
        for learner in LEARNERS
        for name, kept in runs_of(
            {(0.5, "cory"): scores, (0.5, "independent"): scores}, learner
        ).items()
        if name in wanted(2)
    }
    monkeypatch.setattr(Store, "runs", lambda self: made)
    folder = tmp_path / "docs" / "learners"
    folder.mkdir(parents=True)
    empty = f"# Page\n\n{begin_mark(COMMAND)}\n<!-- end -->\n"
    for name in ("README", *LEARNERS):
        (folder / f"{name}.md").write_text(empty)
    flags = {"store": tmp_path / "store", "docs": folder.parent, "report": True}
    assert run(Learners(**flags, seeds=2)) == 0
    assert (folder / "README.md").read_text() == empty
    assert run(Learners(**flags, seeds=2, write=True)) == 0
    assert report(made, 2) in (folder / "README.md").read_text()
    assert report(made, 2) in capsys.readouterr().out
    for name in LEARNERS:
        assert result(made, name, 2) in (folder / f"{name}.md").read_text()
    made.pop("kappa0.5-cory-raft-seed1")
    assert run(Learners(**flags, seeds=2, write=True)) == 1
    assert "31 of 32 runs are finished" in capsys.readouterr().out
