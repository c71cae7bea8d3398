"""The dialogue of an episode as text: who said what, who was paid what."""

from __future__ import annotations

from cory_env.episode import Episode
from cory_env.records import Turn


def opening(episode: Episode) -> str:
    """Return the line that begins an episode."""
    return f"Query: {episode.query.text}"


def turn_line(turn: Turn) -> str:
    """Return what an agent wrote, with a note if the length limit cut it."""
    cut = " [cut]" if turn.truncated else ""
    return f"{turn.agent} ({turn.role}): {turn.response!r}{cut}"


def payment_lines(episode: Episode) -> list[str]:
    """Return what each agent scored and was paid, by seat; nothing before it is settled."""
    if not episode.settled:
        return []
    return [
        f"{turn.agent} ({turn.role}) scored {turn.score:.3f} and is paid {turn.payoff:.3f}"
        for turn in episode.turns
    ]


def dialogue(episode: Episode) -> str:
    """Return the whole dialogue so far."""
    lines = [opening(episode), *map(turn_line, episode.turns)]
    if episode.partial_response:
        lines.append(f"{episode.agent} ({episode.role}): {episode.partial_response!r} ...")
    return "\n".join([*lines, *payment_lines(episode)])
