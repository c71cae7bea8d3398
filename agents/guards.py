"""Guards: what goes wrong in training is named when it begins.

Each looks at one iteration's numbers of one agent. What counts as usual are the numbers of
iteration 1, whose responses the untouched models drew, in the same role: a pioneer and an observer
answer different prompts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from agents.maths.diversity import distinct_n

if TYPE_CHECKING:
    from torch import Tensor

    from cory_env.records import EpisodeRecord

GUARDS = {
    "zero_reward_variance": "all responses were paid the same, so there is nothing to learn from",
    "all_truncated": "the length limit cut every response",
    "short_responses": "responses are shorter than `guard_length` of the usual length",
    "kl": "the KL to the reference, nats a response, is above `guard_kl`",
    "entropy": "the entropy per token is below `guard_entropy` of the usual one",
    "repetition": "different bigrams or different responses are below `guard_repetition` of usual",
}
"""Name, as in `warnings.jsonl` and after `--stop-on`, -> when it trips."""


class NonFiniteError(ValueError):
    """A loss or a gradient is NaN or infinite; raised before the optimizer's step."""

    def __init__(self, message: str, batch: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        """Keep what is needed to look into it.

        Args:
            message: one sentence.
            batch: tensors of the minibatch by name.
            about: plain values that say where it happened.
        """
        super().__init__(message)
        self.batch = dict(batch)
        self.about = dict(about)


@dataclass(frozen=True)
class Bounds:
    """When the guards trip; the settings of the same names explain them."""

    guard_kl: float = 20.0
    guard_length: float = 0.5
    guard_entropy: float = 0.25
    guard_repetition: float = 0.5


@dataclass(frozen=True)
class Health:
    """One agent's numbers of one iteration; None where there is no such number."""

    reward_spread: float | None
    """Highest minus lowest payoff; None for a batch of one response, which never varies."""
    truncated: float
    """Share of responses that the length limit cut."""
    response_tokens: float
    """Mean length, end token included."""
    kl: float
    """Nats a response."""
    entropy: float | None
    """Nats a token."""
    distinct_2: float | None
    """Different bigrams among all, pooled over the responses."""
    unique: float
    """Different responses among all."""


class Trip(NamedTuple):
    """A guard that trips: what was seen and what is allowed."""

    value: float
    bound: float
    message: str


def health(agent: str, records: Sequence[EpisodeRecord], kl: float, entropy: Any) -> Health:
    """An agent's numbers from the episodes of an iteration.

    Args:
        agent: its id.
        records: all episodes of the iteration, each with a turn of the agent, settled.
        kl: mean over its responses of the summed KL, nats.
        entropy: mean per token, nats; None if no token was drawn.
    """
    turns = [turn for record in records for turn in record.turns if turn.agent == agent]
    paid = [float(turn.payoff) for turn in turns if turn.payoff is not None]
    return Health(
        reward_spread=max(paid) - min(paid) if len(paid) > 1 else None,
        truncated=sum(turn.truncated for turn in turns) / len(turns),
        response_tokens=sum(len(turn.response_ids) for turn in turns) / len(turns),
        kl=kl,
        entropy=entropy,
        distinct_2=distinct_n([turn.response_ids for turn in turns]),
        unique=len({turn.response_ids for turn in turns}) / len(turns),
    )


def trips(now: Health, usual: Health, bounds: Bounds) -> dict[str, Trip]:
    """The guards that trip, by name.

    Args:
        now: the iteration's numbers.
        usual: those of iteration 1 in the same role.
        bounds: from the settings.

    Source: the collapse criteria (length, entropy, variety) as shares of the untrained model's.
    """
    found: dict[str, Trip] = {}
    if now.reward_spread == 0.0:
        text = "all responses were paid the same: there is nothing to learn from"
        found["zero_reward_variance"] = Trip(0.0, 0.0, text)
    if now.truncated >= 1.0:
        found["all_truncated"] = Trip(1.0, 1.0, "the length limit cut every response")
    if now.kl > bounds.guard_kl:
        text = f"KL {now.kl:.3g} nats a response, above {bounds.guard_kl:g}"
        found["kl"] = Trip(now.kl, bounds.guard_kl, text)
    for name, words, value, before, share in (
        ("short_responses", "tokens a response", *_pair(now, usual, "response_tokens"),
         bounds.guard_length),
        ("entropy", "nats of entropy a token", *_pair(now, usual, "entropy"), bounds.guard_entropy),
        ("repetition", "different bigrams", *_pair(now, usual, "distinct_2"),
         bounds.guard_repetition),
        ("repetition", "different responses", *_pair(now, usual, "unique"),
         bounds.guard_repetition),
    ):  # fmt: skip
        if value is not None and before is not None and value < share * before:
            text = f"{value:.3g} {words}, below {share:g} of the usual {before:.3g}"
            found.setdefault(name, Trip(value, share * before, text))
    return found


def _pair(now: Health, usual: Health, name: str) -> tuple[float | None, float | None]:
    return getattr(now, name), getattr(usual, name)


@dataclass
class Watch:
    """Names an occurrence once, when it begins. Its state is part of the checkpoint."""

    bounds: Bounds = field(default_factory=Bounds)
    usual: dict[str, Health] = field(default_factory=dict)
    """By role."""
    active: set[tuple[str, str]] = field(default_factory=set)
    """(agent, guard) that tripped in the iteration before."""

    def look(
        self, iteration: int, roles: Mapping[str, str], seen: Mapping[str, Health]
    ) -> list[dict[str, Any]]:
        """Rows for `warnings.jsonl`: what trips now and did not before.

        Args:
            iteration: from 1.
            roles: by agent.
            seen: the iteration's numbers by agent.
        """
        rows = []
        active = set()
        for agent, now in seen.items():
            usual = self.usual.setdefault(roles[agent], now)
            for guard, trip in trips(now, usual, self.bounds).items():
                active.add((agent, guard))
                if (agent, guard) not in self.active:
                    row = {"iteration": iteration, "agent": agent, "guard": guard}
                    rows.append({**row, **trip._asdict()})
        self.active = active
        return rows

    def to_json(self) -> dict[str, Any]:
        """What a resumed run needs to know."""
        return {
            "usual": {role: asdict(values) for role, values in self.usual.items()},
            "active": sorted([agent, guard] for agent, guard in self.active),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `to_json` gave.

        Raises:
            KeyError, TypeError, ValueError: if it is something else.
        """
        usual = {str(role): Health(**values) for role, values in state["usual"].items()}
        for values in usual.values():
            for name in (f.name for f in fields(Health)):
                value = getattr(values, name)
                if value is not None and not math.isfinite(value):
                    raise ValueError(f"{name} is {value}")
        self.active = {(str(agent), str(guard)) for agent, guard in state["active"]}
        self.usual = usual


def check_stop_on(text: str | None) -> frozenset[str]:
    """The guards that end a run, from `stop_on`.

    Raises:
        ValueError: naming the first that does not exist.
    """
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    for name in names:
        if name != "all" and name not in GUARDS:
            raise ValueError(f"stop_on must name guards: {', '.join(GUARDS)} or all, got {name!r}")
    return frozenset(GUARDS if "all" in names else names)
