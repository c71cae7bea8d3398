"""Tests of benchmarks/memory.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import memory
from benchmarks.memory import CASES, GIB, Used, kept_bytes, main, ratios, table
from tests.agents.runs import session_of
from tests.agents.test_lora_runs import played

# Of builtin:target: two layers with four matrices of 64 by 64 and three of 64 by 128, five norms,
# 12 tokens in and out.
MODEL = 4 * (2 * (4 * 64 * 64 + 3 * 64 * 128) + 5 * 64 + 2 * 12 * 64)
HEAD = 4 * 65
ADAPTER = 4 * 2 * 2 * (4 * 128 + 3 * 192)  # rank 2


def test_whole_models_are_counted_each_once() -> None:
    for method, agents in (("solo", 1), ("cory", 2)):
        session = session_of(method=method, iterations=1)
        kept = kept_bytes(session)
        assert kept["weights"] == (agents + 1) * MODEL + agents * HEAD  # and the reference
        assert kept["adapters"] == kept["moments"] == kept["gradients"] == 0
        played(session, 1)
        kept = kept_bytes(session)
        assert kept["gradients"] == agents * (MODEL + HEAD)
        steps = agents * 4 * len(list(session.learners["agent_0"].actor.parameters()))
        assert kept["moments"] == 2 * agents * (MODEL + HEAD) + steps


@pytest.mark.case(33)
def test_adapters_share_one_base_and_the_reference_costs_nothing() -> None:
    for method, agents in (("solo", 1), ("cory", 2)):
        session = session_of(method=method, lora_rank=2, iterations=1)
        played(session, 1)
        kept = kept_bytes(session)
        assert kept["adapters"] == agents * (ADAPTER + HEAD)
        assert kept["weights"] == MODEL + kept["adapters"]
        assert kept["gradients"] == kept["adapters"]


def used(process: int) -> Used:
    return Used(process, process - 1, process - 2, 0, 1, 1)


def test_too_much_for_two_agents_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    sizes = {CASES[0]: 100, CASES[1]: 180, CASES[2]: 100, CASES[3]: 115}
    found = {case.name: used(size) for case, size in sizes.items()}
    assert ratios(found)["adapters, process"] == 1.15
    assert ratios(found)["all weights, kept"] == 1.8
    for limit, passes in ((1.16, True), (1.15, False)):  # without the process it is 114 / 99
        monkeypatch.setattr(memory, "compare", lambda _: found)
        monkeypatch.setattr(memory, "LIMIT", limit)
        monkeypatch.setattr("sys.argv", ["memory", "--json", str(tmp_path / "m.json")])
        if passes:
            main()
        else:
            with pytest.raises(SystemExit, match=r"take 1\.15 times one, above 1\.15"):
                main()
    assert "two agents to one, adapters, process: 1.15" in capsys.readouterr().out
    assert (tmp_path / "m.json").is_file()


def test_the_table_is_in_gib() -> None:
    rows = list(table({"case": used(2 * GIB)}, 8).columns[1].cells)
    assert rows == ["2.00"]
