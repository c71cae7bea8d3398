"""Which estimates have the gradient of their objective, and how far off the others are.

`python -m tools.gradient_table` writes `docs/gradients.md`; with `--check` it fails when the page
is out of date. The figures come from the code of `tests/agents/gradients`: every episode of a toy
goes through the learner's own `prepare` and `loss`, weighted with its probability. Nothing is
drawn at random, so the page is the same every time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agents.methods import METHODS
from tests.agents.gradients.batches import expected_batch_gradient
from tests.agents.gradients.compare import gradients
from tests.agents.gradients.oracle import Oracle, oracle_of
from tests.agents.gradients.placebos import placebo_sum, placebo_transfer
from tests.agents.gradients.planting import kl_placed
from tests.agents.gradients.toy_game import (
    Game,
    every_episode,
    expected_gradient,
    make_game,
    nudge,
    score_tables,
    zero_tables,
)

PAGE = Path(__file__).resolve().parent.parent / "docs" / "gradients.md"
ZERO = 1e-10
"""Largest relative difference that counts as none; what is found is around 1e-15."""

HEAD = """\
# Which estimates are gradients

Made by `python -m tools.gradient_table`; a test fails when the page is out of date.

Agent i maximises E[sum_j W_ij score_j] - kl_coef E[its own KL on its own prompts]
([methods.md](methods.md), [kl.md](kl.md)). In a toy game with three tokens, whose last one ends a
response, all episodes can be listed. Each is played by the real game, goes through the learner's
own `prepare` and `loss`, and weighs as much as it is probable. The sum is the expected update, with
no sampling error. Beside it stands automatic differentiation of the enumerated objective, which
calls none of that code. Everything is in float64.

An estimate can only equal the gradient where `--gamma` is 1, `--gae-lambda` is 1 (or the critic is
right), `--whiten` is none, the policy has not moved since it drew the episodes, and the losses of
the tokens are summed, or divided by a constant. The tables below keep to that except where a row
says otherwise. The sum over tokens is the learner's loss on a minibatch of one response, times its
length.

- **error**: norm of the difference from the gradient, as a share of the gradient's norm. "0" is a
  difference below 1e-10.
- **factor**: the multiple of the gradient that comes nearest to the update.
- **direction**: norm of the difference from that multiple, as a share of it: what a learning rate
  cannot mend.

The size of an error belongs to this toy; whether there is one does not. That the biased estimates
are what their formulas say is tested as well, to 1e-10, in `tests/agents/gradients`.
"""


@dataclass(frozen=True)
class Error:
    """How an update compares with a gradient."""

    relative: float
    factor: float
    direction: float

    @classmethod
    def of(cls, got: Tensor, true: Tensor) -> Error:
        """Compare two vectors; the gradient must not be zero."""
        factor = float(got @ true / (true @ true))
        nearest = factor * true
        off = float((got - nearest).norm() / nearest.norm()) if abs(factor) > ZERO else float("inf")
        return cls(float((got - true).norm() / true.norm()), factor, off)

    @property
    def verdict(self) -> str:
        """In words."""
        if self.relative < ZERO:
            return "exact"
        return "exact up to the factor" if self.direction < ZERO else "biased"

    def cells(self) -> list[str]:
        """Error, factor, direction and verdict."""
        return [number(self.relative), f"{self.factor:.2f}", number(self.direction), self.verdict]


def number(value: float) -> str:
    """Two digits, so that another machine's rounding does not show."""
    if value == float("inf"):
        return "–"
    return "0" if value < ZERO else f"{value:.2g}" if value >= 0.01 else f"{value:.4f}"


def table(head: Sequence[str], rows: Iterator[list[str]]) -> str:
    """A Markdown table."""
    lines = [list(head), ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


# The KL alone.

PLACES: list[tuple[str, str | None, str | None, str]] = [
    ("`exact`", "full", "full", "the KL"),
    ("`k1`", "k1", None, "the KL"),
    ("`k3`", None, "k3", "reversed KL of the current token"),
    ("`reference`", "full", None, "the KL of later tokens"),
    ("", None, "full", "the KL of the current token"),
    ("", None, "k1", "nothing"),
    ("", "k2", None, "no name"),
    ("", None, "k2", "the KL of the current token"),
    ("", "k3", None, "the KL minus the reversed KL of the current token"),
]
"""Setting, its form in the rewards and in the loss, and whose gradient that is."""


def kl_error(name: str, in_reward: str | None, in_loss: str | None, near: float | None) -> Error:
    """Of the KL part alone; a setting by its name runs as configured, the others are planted."""
    setting: dict[str, Any] = {"kl_estimator": name.strip("`")} if name else {}
    game = make_game(longest=3, tables=zero_tables(1, 15), near=near, **setting)
    oracle = oracle_of(longest=3, near=near)
    objective = oracle.objective_gradient(0, torch.zeros(15, dtype=torch.float64))
    if name:
        return Error.of(gradients(game, oracle)[0], objective)
    with kl_placed(in_reward, in_loss):
        return Error.of(gradients(game, oracle)[0], objective)


def kl_rows() -> Iterator[list[str]]:
    for name, in_reward, in_loss, target in PLACES:
        far, close = (kl_error(name, in_reward, in_loss, near) for near in (None, 0.05))
        places = [name or "–", in_reward or "–", in_loss or "–", target]
        yield [*places, number(far.relative), number(close.relative), far.verdict]


# The methods.


def method_oracle(method: str, n: int, longest: int) -> Oracle:
    return oracle_of(n, longest=longest, transfer=METHODS[method].knowledge_transfer)


def method_errors(method: str, n: int, longest: int) -> list[Error]:
    """Of each seat against its own objective."""
    tables = score_tables(n, {1: 3, 2: 7}[longest])
    game = make_game(method, n_agents=n, longest=longest, tables=tables)
    oracle = method_oracle(method, n, longest)
    if method.startswith("placebo"):
        layout = (placebo_sum if method == "placebo_sum" else placebo_transfer)(oracle, tables)
        pairs = zip(layout.gradients(game), layout.expected, strict=True)
        return [Error.of(got, true) for got, true in pairs]
    scores = oracle.scores(tables)
    payoffs = [payoff(game, scores, seat) for seat in range(n)]
    true = [oracle.objective_gradient(seat, payoffs[seat]) for seat in range(n)]
    return [Error.of(g, t) for g, t in zip(gradients(game, oracle), true, strict=True)]


def payoff(game: Game, scores: Tensor, seat: int) -> Tensor:
    """What a seat is paid in every episode, by the matrix of the method."""
    weights = torch.as_tensor(matrix_of(game))[seat]
    return (scores * weights).sum(-1)


def matrix_of(game: Game) -> Any:
    return game.rules.mixing.matrix  # type: ignore[attr-defined]


def share_of_others(method: str) -> str:
    """Of the pioneer's gradient from scores, the part that comes from the observer's score."""
    if METHODS[method].single_agent or method.startswith("placebo"):
        return "–" if METHODS[method].single_agent else "0"
    tables = score_tables(2, 7, own_only=True)
    oracle = method_oracle(method, 2, 2)
    scores = oracle.scores(tables)
    weight = float(matrix_of(make_game(method, n_agents=2))[0, 1])
    other = oracle.reward_gradient(0, weight * scores[..., 1])
    return number(float(other.norm() / oracle.reward_gradient(0, scores[..., 0]).norm()))


def method_rows() -> Iterator[list[str]]:
    for method, setting in METHODS.items():
        sizes = {1: 2} if setting.single_agent else {2: 2, 3: 1}
        if method.startswith("placebo"):
            sizes = {2: 1}  # every episode beside every other one
        errors = [e for n, longest in sizes.items() for e in method_errors(method, n, longest)]
        worst = max(errors, key=lambda e: e.relative)
        agents = ", ".join(str(n) for n in sizes)
        yield [
            f"`{method}`",
            agents,
            number(worst.relative),
            worst.verdict,
            share_of_others(method),
        ]


# Settings that make a difference.


def game_and_oracle(
    n: int = 1, longest: int = 3, *, critic: bool = False, **settings: Any
) -> tuple[Game, Oracle, Tensor]:
    """A game, all its episodes, and the sum of the scores of each; a critic of 0, or any."""
    oracle = oracle_of(n, longest=longest, temperature=settings.get("temperature", 1.0))
    tables = score_tables(n, len(oracle.responses))
    method = "solo" if n == 1 else "cory"
    game = make_game(method, n_agents=n, longest=longest, tables=tables, **settings)
    if not critic:
        for learner in game.learners.values():
            torch.nn.init.zeros_(learner.actor.value_head.weight)
            torch.nn.init.zeros_(learner.actor.value_head.bias)
    return game, oracle, oracle.scores(tables).sum(-1)


def setting(**settings: Any) -> Error:
    """A learner of one agent against the gradient of its objective."""
    game, oracle, payoffs = game_and_oracle(**settings)
    return Error.of(gradients(game, oracle)[0], oracle.objective_gradient(0, payoffs))


def right_critic(lam: float) -> Error:
    """A critic that says the true value."""
    game, oracle, payoffs = game_and_oracle(gae_lambda=lam)
    values = oracle.true_values(0, payoffs)
    game.play(every_episode(1, len(oracle.responses)))
    learner, rollout = game.learners["agent_0"], game.team.rollouts["agent_0"]
    batch = learner.prepare(replace(rollout, values=values))
    got = -expected_gradient(learner, batch, oracle.probability().detach())
    return Error.of(got, oracle.objective_gradient(0, payoffs))


def batches(size: int, longest: int = 2, **settings: Any) -> Error:
    """All batches of a size, each one minibatch, with the learner's own mean over its tokens."""
    game, oracle, payoffs = game_and_oracle(longest=longest, **settings)
    got = expected_batch_gradient(game, oracle, size)
    return Error.of(got, oracle.objective_gradient(0, payoffs))


def later_step(clip: float) -> Error:
    """After the policy has moved, against the gradient where it is now."""
    game, oracle, payoffs = game_and_oracle(clip_coef=clip)
    learner = game.learners["agent_0"]
    batch = game.play(every_episode(1, len(oracle.responses)))["agent_0"]
    nudge(learner.actor.model, 0.1)
    got = -expected_gradient(learner, batch, oracle.probability().detach())
    return Error.of(got, oracle_of(longest=3, moved=0.1).objective_gradient(0, payoffs))


def entropy_bonus() -> Error:
    """What the bonus adds, against the gradient of the entropy of the whole response."""
    (plain, oracle, _), (bonus, _, _) = game_and_oracle(), game_and_oracle(ent_coef=1.0)
    whole = (oracle.probability() * oracle.says[0].entropy.sum(-1)).sum()
    added = gradients(bonus, oracle)[0] - gradients(plain, oracle)[0]
    return Error.of(added, oracle.gradient(0, whole))


def pioneer(scope: str) -> Error:
    """Of two agents, against E[payoff] minus everyone's KL."""
    game, oracle, payoffs = game_and_oracle(2, 2, kl_scope=scope)
    true = oracle.objective_gradient(0, payoffs, scope="team")
    return Error.of(gradients(game, oracle)[0], true)


def setting_rows() -> Iterator[list[str]]:
    cases = [
        ("first step", setting()),
        ("first step, a critic that says anything", setting(critic=True)),
        ("`--temperature 0.6`", setting(temperature=0.6)),
        ("`--gae-lambda 0.95`", setting(gae_lambda=0.95)),
        ("`--gae-lambda 0.5`", setting(gae_lambda=0.5)),
        ("`--gae-lambda 0.5`, a critic that is right", right_critic(0.5)),
        ("`--gamma 0.95`", setting(gamma=0.95)),
        ("mean over the tokens of each response (minibatches of 1)", batches(1)),
        ("mean over the tokens of minibatches of 2", batches(2)),
        ("mean over the tokens of minibatches of 3", batches(3)),
        ("the same, all responses of one length", batches(3, longest=1)),
        ("`--whiten batch`, 2 responses", batches(2, whiten="batch")),
        ("`--whiten batch`, 3 responses", batches(3, whiten="batch")),
        ("a later step of PPO, not clipped", later_step(1e6)),
        ("a later step of PPO, `--clip-coef 0.2`", later_step(0.2)),
        ("`--ent-coef`, against the entropy of a response", entropy_bonus()),
        ("`--kl-scope own`, pioneer, against the KL of both", pioneer("own")),
        ("`--kl-scope team`, pioneer, against the KL of both", pioneer("team")),
    ]
    for name, error in cases:
        yield [name, *error.cells()]


KL_TEXT = """\
## The KL term

All scores are 0 here, which leaves the KL alone. A dash for the setting is a place that cannot be
chosen: it was planted to see what it does. "Error nearby" is that of a policy close to the
reference, a twentieth of the way.
"""

METHODS_TEXT = """\
## The methods

Each agent against its own objective, in every seat: the largest error. In the placebos the other
episode is held fixed, as it is another agent's business. The last column is what the observer's
score adds to the pioneer's gradient, beside that from its own score, where a score depends on
nothing but its own response.
"""

SETTINGS_TEXT = """\
## Settings

One agent, the `exact` KL, and a critic that says 0 as in the first iteration of a run, unless a row
says otherwise. A mean over tokens shrinks long responses beside short ones; its error falls with
the size of the minibatch. It and whitening make the critic matter, so those figures depend on it.
"""


def page() -> str:
    """The text of the page."""
    kl_head = ["`--kl-estimator`", "in the rewards", "in the loss", "gradient of", "error"]
    method_head = ["method", "agents", "error", "verdict", "r2 in the pioneer's gradient"]
    setting_head = ["setting", "error", "factor", "direction", "verdict"]
    tables = [
        (KL_TEXT, table([*kl_head, "error nearby", "verdict"], kl_rows())),
        (METHODS_TEXT, table(method_head, method_rows())),
        (SETTINGS_TEXT, table(setting_head, setting_rows())),
    ]
    return "\n".join([HEAD, *(part for pair in tables for part in pair)])


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page, or say whether it is up to date; 1 if it is not."""
    parser = argparse.ArgumentParser(prog="python -m tools.gradient_table")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if out of date")
    check = parser.parse_args(arguments).check
    text = page()
    if not check:
        part = PAGE.with_suffix(".part")
        part.write_text(text, encoding="utf-8")
        part.replace(PAGE)
        return 0
    if not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text:
        print(f"{PAGE.name} is out of date: run python -m tools.gradient_table", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
