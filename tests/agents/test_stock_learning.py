"""Every stock algorithm learns `target`, both agents; docs/tianshou.md has the numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.bridge.stock import ALGORITHMS
from agents.config import TrainConfig
from agents.train import train
from tests.markdown import ROOT, table_rows

AGENTS = ("agent_0", "agent_1")


def flags(name: str) -> dict[str, str]:
    """The settings of the page's command for an algorithm."""
    page = (ROOT / "docs" / "tianshou.md").read_text(encoding="utf-8")
    rows = {row[0].strip("`"): row for row in table_rows(page, "measured")}
    words = rows[f"tianshou:{name}"][1].strip("`").split()
    return {k.strip("-").replace("-", "_"): v for k, v in zip(words[::2], words[1::2], strict=True)}


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_both_agents_learn(tmp_path: Path, name: str) -> None:
    given = {k: float(v) if "." in v else int(v) for k, v in flags(name).items()}
    result = train(
        TrainConfig(
            task="target",
            method="cory",
            algorithm=f"tianshou:{name}",
            out=tmp_path / "run",
            progress=False,
            tensorboard=False,
            **given,  # type: ignore[arg-type]
        )
    )
    for agent in AGENTS:
        before = result.initial[f"eval/{agent}/score"]
        after = result.metrics[-1][f"eval/{agent}/score"]
        assert after >= before + 0.1, (agent, before, after)
        half = len(result.metrics) // 2
        first, last = (
            sum(row[f"{agent}/score"] for row in rows) / half
            for rows in (result.metrics[:half], result.metrics[-half:])
        )
        assert last > first, (agent, first, last)
