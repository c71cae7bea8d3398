"""Let agents play episodes outside training: for evaluation, for people, for measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from agents.sampling import Measured, Sampled
from agents.streams import response_uniforms, stream
from cory_env.records import EpisodeRecord, Query
from cory_env.runner import LockStepRunner


class Responder(Protocol):
    """Anything that answers prompts with responses."""

    def respond(
        self, prompts: NDArray[np.int64], uniforms: NDArray[np.float64]
    ) -> tuple[Sampled, Measured]:
        """Draw one response per prompt, [B, L] and [B, T] -> records of B rows."""
        ...


@dataclass(frozen=True)
class Played:
    """Finished episodes and, by seat, what was drawn and measured."""

    records: list[EpisodeRecord]
    sampled: list[Sampled]
    measured: list[Measured]


def play(
    runner: LockStepRunner,
    responders: Mapping[str, Responder],
    queries: Sequence[Query],
    turn_order: Sequence[str],
    *,
    seed: int,
    stream_name: str,
    first_episode: int = 0,
) -> Played:
    """Play one batch of episodes at response level.

    Args:
        runner: the game.
        responders: by agent id.
        queries: one an episode.
        turn_order: agents by seat.
        seed: of the streams.
        stream_name: prefix of the streams that decide the tokens.
        first_episode: number of the first episode in its stream, so that a batch may be cut in
            parts without changing what is drawn.
    """
    ids = list(range(len(queries)))
    episodes = [first_episode + i for i in ids]
    runner.begin(queries, turn_order, stream(seed, f"{stream_name}/permutation", 0, first_episode))
    sampled, measured = [], []
    for seat, agent in enumerate(turn_order):
        _, observations = runner.observe(ids)
        width = runner.rules.max_response_tokens
        uniforms = response_uniforms(seed, f"{stream_name}/{seat}", 0, episodes, width)
        drawn, seen = responders[agent].respond(observations, uniforms)
        runner.step(drawn.response_ids.cpu().numpy(), ids)
        sampled.append(drawn)
        measured.append(seen)
    records = [record for record in runner.finished if record is not None]
    return Played(records, sampled, measured)
