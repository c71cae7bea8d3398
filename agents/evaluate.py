"""`cory-eval`: judge the agents of a run, or any model, on held-out queries."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from agents.command_line import ChatFlags
from agents.config import TrainConfig
from agents.evaluation import evaluate_alone, evaluate_as_observer, evaluation_queries
from agents.files import write_json
from agents.report import evaluation_table
from agents.session import alone_rules, game_runner
from agents.trained import Opened, open_agents
from cory_env.runner import LockStepRunner


@dataclass(frozen=True, kw_only=True)
class EvalCommand(ChatFlags):
    """Evaluate trained agents, or a model from elsewhere, at temperature 1 on a fixed stream.

    Prints a table and writes the same numbers as JSON.
    """

    run: Path | None = None
    """Folder of a finished run: all its agents, alone and in the observer's seat."""
    model: str | None = None
    """builtin:NAME, a model folder or a hub name, instead of a run."""
    which: str = "final"
    """Of a run: its final agents, or its best one."""
    task: str = "reviews"
    """Task to judge a model on; a run has its own."""
    task_args: str | None = None
    """Keywords of that task as name=value, joined by commas."""
    reference: str | None = None
    """Model that KL is measured against. None: what the run started from; for a model, no KL."""
    split: str = "test"
    """Queries: train, validation or test."""
    queries: int = 512
    """How many of them; all if there are fewer."""
    out: Path | None = None
    """JSON file. None: eval_SPLIT.json in the run folder, or none for a model."""
    data: Path | None = None
    """Your own queries for a model; a run has its own."""
    reward: str | None = None
    """Reward for a model; a run has its own."""
    device: str = "cpu"
    """cpu, or cuda[:n]."""
    trust_remote_code: bool = False
    """Run the code that comes with a model. Leave off unless you trust its author."""


def evaluate(command: EvalCommand) -> dict[str, Any]:
    """Evaluate, print the table, write the JSON.

    Returns:
        Values by row: `agent_0`, `agent_0 as observer`, ...

    Raises:
        ValueError: if something named in the command does not fit.
    """
    if command.out is not None and not command.out.parent.is_dir():
        raise ValueError(f"out must lie in a folder that exists, got {command.out}")
    if command.queries < 1:
        raise ValueError(f"queries must be at least 1, got {command.queries}")
    config = TrainConfig(
        task=command.task,
        task_args=command.task_args,
        method="solo",
        data=command.data,
        reward=command.reward,
        device=command.device,
        trust_remote_code=command.trust_remote_code,
        **command.chat,
    )
    opened = open_agents(
        run=command.run,
        model=command.model,
        config=config,
        reference=command.reference,
        which=command.which,
    )
    rows = _rows(opened, command)
    where = command.run or command.model
    title = f"{opened.task.name}, {command.split} queries, temperature 1"
    print(f"{where}:")
    print(evaluation_table(list(rows.items()), title))
    out = command.out
    if out is None and command.run is not None:
        out = command.run / f"eval_{command.split}.json"
    if out is not None:
        write_json(out, {"split": command.split, "which": command.which, "agents": rows})
        print(f"Written to {out}")
    return rows


def _rows(opened: Opened, command: EvalCommand) -> dict[str, Any]:
    queries = evaluation_queries(opened.task, command.split, command.queries)
    agents = list(opened.responders)
    if command.which == "best":
        agents = agents[:1]  # every seat holds the same model
    together = len(opened.rules.agents) > 1 and command.which != "best"
    alone = LockStepRunner(alone_rules(opened.rules))
    rows: dict[str, Any] = {}
    for agent in tqdm(agents, desc="evaluating", unit="agent", leave=False):
        judged = evaluate_alone(alone, opened.responders[agent], queries)
        rows[agent] = judged.evaluation.to_json()
        if together:
            runner = game_runner(opened.config, opened.rules)
            judged = evaluate_as_observer(runner, opened.responders, agent, queries)
            rows[f"{agent} as observer"] = judged.evaluation.to_json()
    if not opened.has_reference:  # a model measured against itself would show a KL of 0
        rows = {name: {**values, "kl": None} for name, values in rows.items()}
    if command.which == "best":
        rows = {"best": rows[agents[0]]}
    return rows


def main() -> None:
    """Command line of `cory-eval`."""
    import tyro

    from agents.command_line import run_command

    run_command(
        lambda arguments: _ignore(evaluate(tyro.cli(EvalCommand, args=arguments, prog="cory-eval")))
    )


def _ignore(_: object) -> None:
    """The table was printed already."""


if __name__ == "__main__":
    main()
