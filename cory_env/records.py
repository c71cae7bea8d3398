"""Frozen records of the game: a query, one finished turn, one finished episode."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Query:
    """One input of a task; `str(query)` is its text.

    Attributes:
        text: what is asked, before any template.
        answer: what a reward compares with, or None where the task has no such thing.
        metadata: anything else a task wants to remember; values that JSON can hold.
    """

    text: str
    answer: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        return self.text

    @property
    def shown(self) -> str:
        """The beginning of its text in quotes, and where it stands in the user's data, if there."""
        known = [name for name in ("file", "split", "line", "row") if name in self.metadata]
        words = [f"{'' if name == 'file' else f'{name} '}{self.metadata[name]}" for name in known]
        return f"{self.text[:200]!r}" + (f" ({', '.join(words)})" if words else "")


@dataclass(frozen=True)
class Turn:
    """One finished turn of one agent.

    Attributes:
        agent: who wrote.
        role: its role in this episode.
        prompt: the text it was conditioned on, after any cut.
        prompt_tokens: length of that prompt in tokens.
        dropped_tokens: reference tokens cut from the left so that the prompt fits.
        response: its text, without special tokens.
        response_ids: its tokens, with the end token if it wrote one.
        truncated: True if the length limit cut the response.
        score: what the reward says of this response; None until the episode is settled.
        payoff: what the agent was paid; None until the episode is settled.
        parts: where the reward is a weighted sum, by name what each part says of this response,
            unweighted; else None.
    """

    agent: str
    role: str
    prompt: str
    prompt_tokens: int
    dropped_tokens: int
    response: str
    response_ids: tuple[int, ...]
    truncated: bool
    score: float | None
    payoff: float | None
    parts: Mapping[str, float] | None = field(default=None, hash=False)


@dataclass(frozen=True)
class EpisodeRecord:
    """An episode as it was played; the turns stand in the order of the seats."""

    query: Query
    turns: tuple[Turn, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts, lists and numbers, ready for `json.dumps`."""
        query = {"text": self.query.text, "answer": self.query.answer}
        turns = [{**asdict(turn), "response_ids": list(turn.response_ids)} for turn in self.turns]
        return {"query": {**query, "metadata": dict(self.query.metadata)}, "turns": turns}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> EpisodeRecord:
        """Rebuild a record from what `to_dict` gave.

        Raises:
            ValueError: if it is something else.
        """
        try:
            turns = [
                # Records of before there were parts have none.
                Turn(
                    **{
                        **turn,
                        "response_ids": tuple(turn["response_ids"]),
                        "parts": _parts(turn.get("parts")),
                    }
                )
                for turn in data["turns"]
            ]
            return cls(query=Query(**data["query"]), turns=tuple(turns))
        except (KeyError, TypeError) as error:
            raise ValueError(f"this is no record of an episode: {error}") from error

    def to_json(self) -> str:
        """Return the record as one line of JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    @classmethod
    def from_json(cls, line: str) -> EpisodeRecord:
        """Rebuild a record from a line that `to_json` wrote.

        Raises:
            ValueError: if the line is something else.
        """
        try:
            data = json.loads(line)
        except RecursionError as error:
            raise ValueError("this is no record of an episode: it is nested too deeply") from error
        return cls.from_dict(data)


def _parts(given: Any) -> dict[str, float] | None:
    if given is None:
        return None
    if not isinstance(given, dict) or not all(type(v) in (int, float) for v in given.values()):
        raise TypeError(f"parts must be numbers by name, got {given!r:.200}")
    return {name: float(score) for name, score in given.items()}
