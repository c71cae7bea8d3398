"""`cory-play`: watch the game at the terminal, at given queries, typed ones, or the task's own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agents.command_line import ChatFlags
from agents.config import TrainConfig
from agents.streams import response_uniforms
from agents.trained import Opened, open_agents
from cory_env import cory_v0
from cory_env.roles import check_turn_order
from cory_env.tasks.from_data import DataTask


@dataclass(frozen=True, kw_only=True)
class PlayCommand(ChatFlags):
    """Let agents answer queries one after the other; show who said what and who was paid what."""

    run: Path | None = None
    """Folder of a finished run: its agents play the game they were trained in."""
    model: str | None = None
    """builtin:NAME, a model folder or a hub name: the same model in every seat."""
    which: str = "final"
    """Of a run: its final agents, or its best one in every seat."""
    task: str = "reviews"
    """Game for a model; a run has its own."""
    task_args: str | None = None
    """Keywords of that task as name=value, joined by commas."""
    query: tuple[str, ...] = ()
    """Queries to answer, each in quotes. None: type them, or pipe them in, one a line."""
    random: int = 0
    """Instead of queries of yours: so many of the task's test queries."""
    data: Path | None = None
    """Your own queries for a model; a run has its own."""
    reward: str | None = None
    """Reward for a model; a run has its own."""
    turn_order: str | None = None
    """Agents by seat, joined by commas, such as agent_1,agent_0."""
    n_agents: int | None = None
    """Seats for a model. None: 2."""
    seed: int = 0
    """Of what is drawn; another seed gives other answers."""
    device: str = "cpu"
    """cpu, or cuda[:n]."""
    trust_remote_code: bool = False
    """Run the code that comes with a model. Leave off unless you trust its author."""


def play(command: PlayCommand) -> int:
    """Play one episode per query and print the dialogue; returns the number of episodes.

    Raises:
        ValueError: if something named in the command does not fit.
    """
    if command.query and command.random:
        raise ValueError("give either query or random, and not both")
    opened = _open(command)
    agents = opened.rules.agents
    order = [a.strip() for a in command.turn_order.split(",")] if command.turn_order else agents
    check_turn_order(order, agents)
    env = _game(opened, typed=not command.random)
    played = 0
    for query in _queries(opened, command):
        try:
            env.reset(seed=command.seed, options={"query": query, "turn_order": list(order)})
        except ValueError as error:
            if not _interactive(command):
                raise
            print(error)  # somebody who types may type again
            continue
        _episode(env, opened, command.seed, played)
        played += 1
        print()
    return played


def _open(command: PlayCommand) -> Opened:
    config = TrainConfig(
        task=command.task,
        task_args=command.task_args,
        data=command.data,
        reward=command.reward,
        n_agents=command.n_agents if command.n_agents != 1 else None,
        method="solo" if command.n_agents == 1 else "cory",
        device=command.device,
        trust_remote_code=command.trust_remote_code,
        **command.chat,
    )
    return open_agents(
        run=command.run,
        model=command.model,
        config=config,
        reference=None,
        which=command.which,
        measure_kl=False,
    )


def _game(opened: Opened, *, typed: bool = False) -> Any:
    """The PettingZoo environment of the agents' game, which prints the dialogue.

    Typed queries need no data; where there is some, they get their answers from it.
    """
    rules = opened.rules
    no_data = isinstance(opened.task, DataTask) and opened.task.data is None
    return cory_v0.env(
        opened.task,
        tokenizer=rules.tokenizer,
        split=None if typed and no_data else "test",
        n_agents=rules.n_agents,
        knowledge_transfer=rules.knowledge_transfer,
        reward_mixing=rules.mixing,
        reward=rules.reward,
        max_response_tokens=rules.max_response_tokens,
        max_prompt_tokens=rules.max_prompt_tokens,
        chat=rules.chat,
        render_mode="human",
    )


def _episode(env: Any, opened: Opened, seed: int, number: int) -> None:
    """Let every agent answer once; `number` names the streams of the episode."""
    width = opened.rules.max_response_tokens
    for agent in env.agent_iter():
        observation, _, terminated, truncated, _ = env.last()
        if terminated or truncated:
            env.step(None)
            continue
        uniforms = response_uniforms(seed, f"play/{agent}", 0, [number], width)
        prompt = np.asarray(observation)[np.newaxis]
        sampled, _ = opened.responders[agent].respond(prompt, uniforms)
        env.step(sampled.response_ids[0].cpu().numpy())


def _interactive(command: PlayCommand) -> bool:
    return not command.query and not command.random and sys.stdin.isatty()


def _queries(opened: Opened, command: PlayCommand) -> Iterator[object]:
    if command.query:
        yield from command.query
    elif command.random:
        from agents.evaluation import evaluation_queries

        yield from evaluation_queries(opened.task, "test", command.random)
    else:
        if _interactive(command):
            print("Type a query and press return; Ctrl-D ends.")
        while True:
            if _interactive(command):
                print("query> ", end="", flush=True)
            line = sys.stdin.readline()
            if not line:
                return
            if line.strip():
                yield line.rstrip("\n")


def main() -> None:
    """Command line of `cory-play`."""
    import tyro

    from agents.command_line import run_command

    def command(arguments: list[str]) -> None:
        if play(tyro.cli(PlayCommand, args=arguments, prog="cory-play")) == 0:
            raise ValueError("no query was given: use --query, --random, or type one a line")

    run_command(command)


if __name__ == "__main__":
    main()
