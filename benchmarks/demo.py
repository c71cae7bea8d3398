"""`make demo`: PPO alone and CORY on film reviews, at an equal budget of responses.

Ends with what happened, whichever method is ahead, and fails when what it is meant to show does
not: scores that rise for every agent, and answers that do not shrink.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from agents.config import TrainConfig
from agents.report import evaluation_of, evaluation_table, run_rows
from agents.run_folder import RunFolder, next_numbered
from agents.train import TrainResult, train

METHODS = ("solo", "cory")
LEAST_GAIN = 0.1
"""Points of held-out score that every agent must gain."""
LEAST_LENGTH = 0.8
"""Share of its first length that an agent's answers must keep."""


def run_demo(task: str, out: Path, **settings: Any) -> int:
    """Train both methods and report.

    Args:
        task: its default model and settings are used.
        out: folder that gets one run folder a method.
        settings: other fields of TrainConfig, for both methods.

    Returns:
        0 if every agent learned without shrinking its answers, else 1.
    """
    start = time.perf_counter()
    results = {
        method: train(TrainConfig(task=task, method=method, out=out / method, **settings))
        for method in METHODS
    }
    if not all(result.finished for result in results.values()):
        print("The demo was interrupted before it had something to show.")
        return 1
    print(_report(results, time.perf_counter() - start))
    failures = [line for method, r in results.items() for line in _failures(method, r)]
    for line in failures:
        print(f"FAILED: {line}")
    return 1 if failures else 0


def _report(results: dict[str, TrainResult], seconds: float) -> str:
    first = next(iter(results.values()))
    rows = [
        (f"{METHOD_NAMES[method]} {label}", values)
        for method, result in results.items()
        for label, values in run_rows(result)
    ]
    queries = first.config.eval_queries
    title = f"{queries} held-out queries, query-only prompt, temperature 1"
    parts = [
        "",
        evaluation_table(rows, title),
        "",
        _budget(results),
        _verdict(results),
        "",
        _answers(results),
        "",
        _where(results, seconds),
    ]
    return "\n".join(parts)


METHOD_NAMES = {"solo": "PPO alone", "cory": "CORY"}


def _budget(results: dict[str, TrainResult]) -> str:
    counts = {
        METHOD_NAMES[method]: (
            r.metrics[-1]["scored_responses"],
            r.metrics[-1]["generated_tokens"],
            r.metrics[-1]["optimizer_steps"],
        )
        for method, r in results.items()
    }
    shown = "; ".join(
        f"{name} {responses} scored responses, {tokens} generated tokens, {steps} optimizer steps"
        for name, (responses, tokens, steps) in counts.items()
    )
    return f"Budgets: {shown}."


def _final(result: TrainResult) -> dict[str, dict[str, Any]]:
    agents = [f"agent_{i}" for i in range(result.config.agents_in_game)]
    return {agent: evaluation_of(result.metrics[-1], agent) for agent in agents}


def _verdict(results: dict[str, TrainResult]) -> str:
    """Who is ahead by the mean of its agents, in plain words and without a claim."""
    means = {}
    for method, result in results.items():
        finals = _final(result)
        means[method] = (
            sum(e["score"] for e in finals.values()) / len(finals),
            sum(e["kl"] for e in finals.values()) / len(finals),
        )
    ahead, behind = sorted(means, key=lambda m: -means[m][0])
    (score_a, kl_a), (score_b, kl_b) = means[ahead], means[behind]
    return (
        f"In this run {METHOD_NAMES[ahead]} is ahead by {score_a - score_b:.3f} in score "
        f"({score_a:.3f} at KL {kl_a:.2f} against {METHOD_NAMES[behind]}'s {score_b:.3f} at KL "
        f"{kl_b:.2f}; means over the agents). {_by_objective(results, means)}\n"
        f"One seed of a tiny model shows that both learn; it does not say which method is better."
    )


def _by_objective(results: dict[str, TrainResult], means: dict[str, tuple[float, float]]) -> str:
    """Who is ahead when the KL is paid for, as in training."""
    coef = next(iter(results.values())).config.kl_coef
    assert coef is not None
    worth = {method: score - coef * kl for method, (score, kl) in means.items()}
    ahead, behind = sorted(worth, key=lambda m: -worth[m])
    return (
        f"By score - {coef:g} * KL, which both are trained for, {METHOD_NAMES[ahead]} is ahead by "
        f"{worth[ahead] - worth[behind]:.3f}."
    )


def _answers(results: dict[str, TrainResult], n: int = 3) -> str:
    lines = []
    first = next(iter(results.values()))
    before = RunFolder(first.out).answers("answers_initial.json")["agent_0"]
    after = {
        METHOD_NAMES[method] + (f" {agent}" if r.config.agents_in_game > 1 else ""): answers
        for method, r in results.items()
        for agent, answers in RunFolder(r.out).answers("answers_final.json").items()
    }
    for i in range(n):
        row = before[i]
        lines.append(f"Query {row['query']!r}")
        lines.append(f"  before          {row['score']:+.2f}  {row['response']!r}")
        lines += [
            f"  {name:<15} {rows[i]['score']:+.2f}  {rows[i]['response']!r}"
            for name, rows in after.items()
        ]
    return "\n".join(lines)


def _where(results: dict[str, TrainResult], seconds: float) -> str:
    cory = results["cory"].out
    return "\n".join(
        [
            f"Done in {seconds:.0f} s.",
            *(
                f"  {METHOD_NAMES[m]}: {r.out}/curves.png, models in {r.out}/final/"
                for m, r in results.items()
            ),
            "Next:",
            f"  .venv/bin/cory-play --run {cory} --random 3     watch the agents play",
            f"  .venv/bin/cory-eval --run {cory}     judge them on the test split",
            "  .venv/bin/cory-train --help     every setting",
            f"  .venv/bin/tensorboard --logdir {cory.parent}     all the curves",
        ]
    )


def _failures(method: str, result: TrainResult) -> list[str]:
    failures = []
    for agent, after in _final(result).items():
        before = evaluation_of(result.initial, agent)
        gain = after["score"] - before["score"]
        if gain < LEAST_GAIN:
            failures.append(f"{method} {agent} gained {gain:.3f}, expected {LEAST_GAIN}")
        if after["response_tokens"] < LEAST_LENGTH * before["response_tokens"]:
            failures.append(
                f"{method} {agent} shrank from {before['response_tokens']:.1f} to "
                f"{after['response_tokens']:.1f} tokens"
            )
    return failures


def main() -> None:
    """Command line: `python -m benchmarks.demo [--task reviews] [--out DIR]`."""
    parser = argparse.ArgumentParser(description="PPO alone and CORY at an equal budget.")
    parser.add_argument("--task", default="reviews", help="task to show (default: reviews)")
    parser.add_argument("--out", type=Path, help="folder (default: a new one under runs/)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    out = arguments.out or next_numbered(Path("runs"), "demo")
    raise SystemExit(run_demo(arguments.task, out, seed=arguments.seed))


if __name__ == "__main__":
    main()
