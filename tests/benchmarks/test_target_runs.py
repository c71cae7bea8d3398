from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agents.config import TrainConfig
from benchmarks.influence import Influence
from benchmarks.sweep import Run
from benchmarks.target_runs import by_seed, cell, pair, settings_line, target_name, target_run


def run_of(name: str, seed: int, scores: tuple[float, float], seconds: float = 60.0) -> Run:
    """A finished run of 120 iterations: the scores as observer, and halves of them alone."""
    last = {
        f"{seat}/agent_{i}/{key}": value * part
        for seat, part in (("observer_eval", 1.0), ("eval", 0.5))
        for i, score in enumerate(scores)
        for key, value in (("score", score), ("kl", 10 * score))
    }
    config = {
        "seed": seed,
        "iterations": 120,
        "batch_size": 128,
        "learning_rate": 0.003,
        "learning_rate_schedule": "linear",
        "kl_coef": 0.01,
    }
    counts = {"scored_responses": 15360, "generated_tokens": 40000, "optimizer_steps": 960}
    initial = {
        f"{seat}/agent_{i}/score": v
        for seat, v in (("observer_eval", 0.1), ("eval", 0.2))
        for i in (0, 1)
    }
    return Run(name, config, initial, {**last, **counts, "iteration": 120, "seconds": seconds})


def runs_of(
    scores: dict[tuple[float, str], list[tuple[float, float]]], algorithm: str = "ppo"
) -> dict[str, Run]:
    """Runs by name: (kappa, method) -> scores of both agents by seed."""
    found = {}
    for (kappa, method), pairs in scores.items():
        for seed, values in enumerate(pairs):
            name = target_name(kappa, method, algorithm, seed)
            found[name] = run_of(name, seed, values)
    return found


RUNS = runs_of(
    {
        (0.5, "cory"): [(0.2, 0.4), (0.6, 0.8)],
        (0.5, "independent"): [(0.1, 0.1), (0.2, 0.4)],
        (0.25, "cory"): [(0.9, 0.9)],
    }
)


def test_a_run_has_a_readable_name_and_the_budget() -> None:
    name, config = target_run(0.25, "cory_exact", "ppo", 3, iterations=7)
    assert name == "kappa0.25-cory_exact-ppo-seed3"
    assert (config.task, config.task_args, config.seed) == ("target", "kappa=0.25", 3)
    assert (config.method, config.algorithm) == ("cory_exact", "ppo")
    assert (config.iterations, config.learning_rate_schedule) == (7, "linear")
    # The rest is the task's own.
    assert config.learning_rate is config.kl_coef is config.batch_size is None
    assert target_run(1.0, "cory", "ppo", 0)[0] == "kappa1-cory-ppo-seed0"


def test_values_are_found_by_seed_and_cell() -> None:
    assert by_seed(RUNS, "observer_eval/A/score", 0.5, "cory") == {0: (0.2, 0.4), 1: (0.6, 0.8)}
    assert by_seed(RUNS, "eval/A/kl", 0.5, "independent") == {0: (0.5, 0.5), 1: (1.0, 2.0)}
    assert by_seed(RUNS, "eval/A/score", 0.5, "cory", "grpo") == {}
    assert by_seed(RUNS, "eval/A/score", 0.75, "cory") == {}


def test_a_pair_is_the_mean_of_its_agents() -> None:
    assert pair({0: (0.2, 0.4), 1: (0.6, 0.8)}) == pytest.approx({0: 0.3, 1: 0.7})


def test_a_cell_says_how_many_seeds_it_has_where_some_are_missing() -> None:
    # Mean 0.5, standard deviation sqrt(0.08) = 0.2828; t of one degree 12.706: 12.706 * 0.2.
    assert cell([0.3, 0.7], 2) == "0.50 ± 2.54"
    assert cell([0.3, 0.7], 5) == "0.50 ± 2.54 (n = 2)"
    assert cell([], 5) == "–"


def test_the_budget_is_that_of_the_runs() -> None:
    text = settings_line(RUNS)
    assert text.startswith("5 runs with `iterations` 120, `batch_size` 128, `learning_rate` 0.003,")
    assert text.endswith(
        "15,360 scored responses each; 5 minutes of one thread in all. Before training the agents "
        "score 0.10 as observer, 0.20 alone."
    )


def test_flags_are_checked_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="seeds must be at least 2, for an interval, got 1"):
        Influence(seeds=1)
    with pytest.raises(ValueError, match="docs must be the folder of the documentation"):
        Influence(write=True, docs=tmp_path / "none")
    assert TrainConfig(iterations=Influence().iterations)


@pytest.mark.parametrize("value", [None, "1"])
def test_a_number_that_a_folder_does_not_hold_is_named(value: object) -> None:
    run = run_of(target_name(0.5, "cory", "ppo", 0), 0, (0.1, 0.2))
    broken = replace(run, last={**run.last, "eval/agent_1/score": value})
    with pytest.raises(ValueError, match="seed0 must hold a number eval/agent_1/score"):
        by_seed({run.name: broken}, "eval/A/score", 0.5, "cory")


def test_a_store_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="store must be a folder, got the file"):
        Influence(store=tmp_path / "file")
