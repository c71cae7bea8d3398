"""What would make a run fit: its memory is estimated again with one setting changed at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from agents.config import TrainConfig
from agents.cost import Held, Kept, Load, Memory, ModelShape, peak_memory

ADAPTER_SHARE = 0.01
"""What an agent's adapter is taken to hold, as a share of its base."""
ADAPTERS = "lora_rank (adapters on one frozen model)"
HELPS = 0.9
"""A change is named if it leaves at most this share of what is needed."""

Steps = Sequence[tuple[str, float]]
"""A setting with values from the mildest to the strongest, in words, and the bytes needed then."""


def advice(options: Iterable[Steps], needed: float, room: float) -> str:
    """Name the settings that are enough, else those that help; what helps most comes first.

    Args:
        options: settings that may be changed.
        needed: bytes, without a change.
        room: bytes that there are.
    """
    ordered = sorted((steps for steps in options if steps), key=lambda steps: steps[-1][1])
    enough = [next((words for words, left in steps if left <= room), None) for steps in ordered]
    if any(enough):
        return f"enough would be {' or '.join(filter(None, enough))}"
    most = [steps[-1] for steps in ordered if steps[-1][1] <= HELPS * needed]
    if not most:
        return "no setting changes that, it takes a smaller model or more memory"
    together = ", ".join(f"{words} (alone {gigabytes(left)})" for words, left in most)
    return f"no single setting is enough: try together {together}, or a smaller model"


def gigabytes(number: float) -> str:
    """Bytes for people; a GB is 10^9."""
    return f"{number / 1e9:.1f} GB" if number < 1e11 else f"{number / 1e9:.0f} GB"


@dataclass(frozen=True)
class Foreseen:
    """All that the estimate of a run follows from."""

    config: TrainConfig
    shape: ModelShape
    held: Held
    load: Load
    kept: Kept
    processes: int = 1
    """That share the responses."""

    @property
    def memory(self) -> Memory:
        """The estimate."""
        return peak_memory(self.shape, self.held, self.load, self.kept)

    def options(self, needed: Callable[[Memory], float]) -> list[Steps]:
        """Settings that could be lower, each with the bytes that it would leave.

        Args:
            needed: what of an estimate has to fit.
        """
        ways = [
            self._batches(),
            self._evaluations(),
            self._pieces(),
            self._lengths(),
            self._checkpointing(),
            self._adapters(),
            self._precision(),
        ]
        return [[(words, needed(other.memory)) for words, other in way] for way in ways]

    def _with(self, load: Load) -> Foreseen:
        return replace(self, load=load)

    def _batches(self) -> Iterator[tuple[str, Foreseen]]:
        group, agents = self.config.groups.episodes, self.config.agents_in_game
        for rows in _halves(self.load.rows):
            whole = rows * self.processes // group * group
            if whole < max(group, self.processes):
                return
            own = -(-whole // self.processes)
            load = replace(
                self.load,
                rows=own,
                minibatch=min(self.load.minibatch, own),
                micro=min(self.load.micro, own),
            )
            yield f"batch_size {whole * agents}", self._with(load)

    def _evaluations(self) -> Iterator[tuple[str, Foreseen]]:
        for rows in _halves(self.load.evaluated):
            load = replace(self.load, evaluated=rows)
            yield f"eval_queries {rows * self.processes}", self._with(load)

    def _pieces(self) -> Iterator[tuple[str, Foreseen]]:
        for rows in _halves(min(self.load.micro, self.load.minibatch)):
            yield f"micro_batch_size {rows}", self._with(replace(self.load, micro=rows))

    def _lengths(self) -> Iterator[tuple[str, Foreseen]]:
        for tokens in _halves(self.load.response_tokens):
            load = replace(self.load, response_tokens=tokens)
            yield f"max_response_tokens {tokens}", self._with(load)

    def _checkpointing(self) -> Iterator[tuple[str, Foreseen]]:
        if not self.load.checkpointing:
            yield "gradient_checkpointing", self._with(replace(self.load, checkpointing=True))

    def _adapters(self) -> Iterator[tuple[str, Foreseen]]:
        if self.config.lora_rank or not any(self.held.trained):
            return
        base = self.held.weights / len(self.held.trained)
        own = int(ADAPTER_SHARE * base)
        n = len(self.held.trained)
        held = Held(
            weights=int(base) + n * own,
            references=0,
            trained=(own,) * n,
            own=n * own,
            state=n * own,
        )
        yield ADAPTERS, replace(self, held=held)

    def _precision(self) -> Iterator[tuple[str, Foreseen]]:
        if self.config.dtype == "bfloat16":
            return
        share = 2 / self.load.weight_bytes
        held = self.held
        held = Held(
            weights=int(held.weights * share),
            references=int(held.references * share),
            trained=tuple(int(own * share) for own in held.trained),
            own=int(held.own * share),
            state=int(held.state * share),
        )
        kept = self.kept
        if self.load.compute_bytes > 2:  # else activations have it already
            kept = Kept(*(share * part for part in (kept.constant, kept.per_token, kept.per_pair)))
        load = replace(self.load, weight_bytes=2, compute_bytes=2)
        yield "dtype bfloat16", replace(self, held=held, load=load, kept=kept)


def _halves(number: int) -> Iterator[int]:
    """Half of a number, half of that, ... down to 1."""
    while number > 1:
        number //= 2
        yield number
