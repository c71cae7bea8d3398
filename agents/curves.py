"""`curves.png`: score, KL and response length of each agent over the iterations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PANELS = (
    ("score", "score"),
    ("kl", "KL to the reference (nats)"),
    ("response_tokens", "response length (tokens)"),
)


def draw_curves(metrics: Sequence[Mapping[str, Any]], agents: Sequence[str], folder: Path) -> Path:
    """Draw the sampled responses of training as lines and the held-out evaluations as dots.

    Args:
        metrics: rows of metrics.jsonl.
        agents: ids.
        folder: where `curves.png` goes.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * len(PANELS), 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    for place, (name, label) in enumerate(PANELS, start=1):
        axes = figure.add_subplot(1, len(PANELS), place)
        for number, agent in enumerate(agents):
            xs = [row["iteration"] for row in metrics]
            axes.plot(
                xs,
                [row[f"{agent}/{name}"] for row in metrics],
                color=f"C{number}",
                label=f"{agent}, in training",
            )
            held_out = [r for r in metrics if f"eval/{agent}/{name}" in r]
            axes.plot(
                [r["iteration"] for r in held_out],
                [r[f"eval/{agent}/{name}"] for r in held_out],
                "o",
                color=f"C{number}",
                label=f"{agent}, held out",
            )
        axes.set_xlabel("iteration")
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
        if name != "score":  # a length drawn on a narrow range looks like a collapse
            axes.set_ylim(bottom=0)
    figure.axes[0].legend(fontsize=8)
    path = folder / "curves.png"
    figure.savefig(path, dpi=120)
    return path
