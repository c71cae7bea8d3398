"""One training in several processes, on one machine or on several.

    accelerate launch --multi_gpu --num_processes 2 -m agents.train --task target

Every process runs the same loop over the same episodes and holds the same weights. What takes time
is shared out by rows: drawing and measuring responses, scoring them, forward and backward passes.
What the processes found is exchanged at once, so all go on with the same numbers, and whitening, KL
control, credit, metrics and evaluation know nothing of the others. Only the main process writes.

All processes must take part in every exchange, or the others wait for ever. So what one of them
does alone stands in a `section`: an error in it becomes an error of all.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import timedelta
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

BUCKET_BYTES = 2**26
"""Gradients are copied together into pieces of at most this size and added a piece at a time."""
PATIENCE = timedelta(hours=1)
"""How long processes wait for each other: a share of slow, remote rewards may take a while."""
LAST_WORDS = timedelta(seconds=10)
"""How long a process that fails waits for the main one to say what happened."""


class PeerError(ValueError):
    """Another process of the run failed; its sentence is the message."""

    def __init__(self, message: str, kind: str = "") -> None:
        """Pass on an error.

        Args:
            message: one sentence.
            kind: name of the class of the other process's error; empty: it ended without a word.
        """
        super().__init__(message)
        self.kind = kind


class Processes:
    """A run in one process: nothing is shared out, copied or waited for."""

    rank = 0
    """Number of this process, from 0."""
    size = 1
    """How many there are."""

    @property
    def main(self) -> bool:
        """Whether this process writes files and talks to people."""
        return self.rank == 0

    def device(self, name: str) -> str:
        """The device of this process: each takes a GPU of its own."""
        return name

    def share(self, n: int) -> slice:
        """Which of n rows are this process's; shares differ by at most one row."""
        return slice(0, n)

    def gather(self, own: Tensor, n: int) -> Tensor:
        """Put n rows together again from the shares, in order; [share, ...] -> [n, ...]."""
        return own

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over the processes."""

    def highest(self, value: int) -> int:
        """The largest of the processes' values."""
        return value

    def texts(self, text: str) -> list[str]:
        """The text of every process, by rank."""
        return [text]

    def section(self) -> AbstractContextManager[None]:
        """What a process does alone: no exchange is allowed inside.

        At the end all wait for all. An error of one is then raised in every process: the own one
        where there is one, else a `PeerError` with the sentence of the other.
        """
        return nullcontext()

    def by_main(self, write: Callable[[], object]) -> None:
        """Let the main process do something, for which the others wait."""
        with self.section():
            if self.main:
                write()

    def from_main(self, text: str) -> str:
        """The main process's text."""
        return self.texts(text)[0]

    def check_alike(self, values: Mapping[str, Any], sentence: str) -> None:
        """Compare plain values over the processes.

        Args:
            values: by name.
            sentence: how the error begins.

        Raises:
            ValueError: in every process, naming the first value that differs.
        """
        texts = self.texts(json.dumps(values, default=str))
        for rank, text in enumerate(texts):
            if text == texts[0]:
                continue
            first, other = json.loads(texts[0]), json.loads(text)
            name = next(n for n in [*first, *other] if str(first.get(n)) != str(other.get(n)))
            raise ValueError(
                f"{sentence}: {name} is {first.get(name)!r} in process 0 and {other.get(name)!r} "
                f"in process {rank}; all need the same files, settings, versions and kind of device"
            )

    def close(self) -> None:
        """Part in peace."""


ALONE = Processes()


class Group(Processes):
    """Several processes, joined by torch's process group."""

    def __init__(self, rank: int, size: int, device: torch.device) -> None:
        """Describe a process group that has been set up.

        Args:
            rank: of this process.
            size: how many there are.
            device: over which tensors are exchanged: the process's GPU, or the CPU.
        """
        self.rank, self.size = rank, size
        self._device = device
        self._alone = False

    def device(self, name: str) -> str:
        """See `Processes.device`."""
        return str(self._device) if name == "cuda" else name

    def share(self, n: int) -> slice:
        """See `Processes.share`."""
        return slice(n * self.rank // self.size, n * (self.rank + 1) // self.size)

    def gather(self, own: Tensor, n: int) -> Tensor:
        """See `Processes.gather`; bits are copied, whatever the type."""
        bounds = [n * rank // self.size for rank in range(self.size + 1)]
        counts = [end - start for start, end in pairwise(bounds)]
        row = own.shape[1:]
        padded = own.new_zeros((max(counts), *row))
        padded[: len(own)] = own
        if not padded.numel():
            return padded.new_zeros((n, *row))
        found = self._all_gather(padded.reshape(-1).view(torch.uint8).to(self._device))
        parts = [
            part.to(own.device).view(own.dtype).reshape(padded.shape)[:count]
            for part, count in zip(found, counts, strict=True)
        ]
        return torch.cat(parts)

    def add(self, tensors: Sequence[Tensor]) -> None:
        """See `Processes.add`; half precision is added in single."""
        for bucket in _buckets(tensors):
            exact = bucket[0].dtype == torch.float64
            wide = torch.float64 if exact else torch.float32
            # A large tensor stands alone, and is not copied.
            flat = torch.cat([tensor.reshape(-1) for tensor in bucket]) if bucket[1:] else bucket[0]
            moved = flat.to(self._device, wide).contiguous()
            with self._meeting():
                torch.distributed.all_reduce(moved)
            if moved is bucket[0]:
                continue
            pieces = moved.reshape(-1).split([tensor.numel() for tensor in bucket])
            for tensor, piece in zip(bucket, pieces, strict=True):
                tensor.copy_(piece.reshape(tensor.shape))

    def highest(self, value: int) -> int:
        """See `Processes.highest`."""
        return max(self._integers(value))

    def texts(self, text: str) -> list[str]:
        """See `Processes.texts`."""
        data = text.encode()
        lengths = self._integers(len(data))
        if not max(lengths):
            return [""] * self.size
        padded = torch.zeros(max(lengths), dtype=torch.uint8)
        padded[: len(data)] = torch.tensor(list(data), dtype=torch.uint8)
        found = self._all_gather(padded.to(self._device))
        return [
            bytes(part[:length].tolist()).decode()
            for part, length in zip(found, lengths, strict=True)
        ]

    @contextmanager
    def section(self) -> Iterator[None]:
        """See `Processes.section`."""
        assert not self._alone, "a section has none inside"
        failure: Exception | None = None
        self._alone = True
        try:
            yield
        except Exception as error:
            failure = error
        finally:
            self._alone = False
        said = {} if failure is None else {"kind": type(failure).__name__, "text": told(failure)}
        try:
            texts = self.texts(json.dumps(said) if said else "")
        except PeerError:
            if failure is None:
                raise
            texts = []
        if failure is not None:
            raise failure
        for text in texts:
            if text:
                other = json.loads(text)
                raise PeerError(other["text"], other["kind"])

    def close(self) -> None:
        """See `Processes.close`."""
        torch.distributed.destroy_process_group()

    def _integers(self, value: int) -> list[int]:
        found = self._all_gather(torch.tensor([value], device=self._device))
        return [int(number) for number in torch.cat(found).tolist()]

    def _all_gather(self, tensor: Tensor) -> list[Tensor]:
        found = [torch.empty_like(tensor) for _ in range(self.size)]
        with self._meeting():
            torch.distributed.all_gather(found, tensor)
        return found

    @contextmanager
    def _meeting(self) -> Iterator[None]:
        assert not self._alone, "nothing may be exchanged inside a section"
        try:
            yield
        except RuntimeError as error:
            reason = str(error).strip().split("\n", maxsplit=1)[0]
            raise PeerError(
                f"another process of the run has ended without a word: killed, or out of memory? "
                f"({reason})"
            ) from error


def told(error: Exception) -> str:
    """What an error says, with its kind where that was not foreseen."""
    if isinstance(error, ValueError | OSError):
        return str(error)
    return f"{type(error).__name__}: {error}"


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors that are added together: of one device and precision, and not too many."""
    bucket: list[Tensor] = []
    held = 0
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        alike = bucket and (tensor.dtype, tensor.device) == (bucket[0].dtype, bucket[0].device)
        if bucket and (not alike or held + size > BUCKET_BYTES):
            yield bucket
            bucket, held = [], 0
        bucket.append(tensor)
        held += size
    if bucket:
        yield bucket


# Setting up.


def processes_of(device: str) -> Processes:
    """The processes that a launcher started; a run in one process where there was none.

    Args:
        device: of the settings, "cpu" or "cuda".

    Raises:
        ValueError: one sentence saying what is missing.
    """
    size = _launched()
    if size == 1:
        return ALONE
    if find_spec("accelerate") is None:
        raise ValueError(
            "several processes need the package accelerate, which is not installed; install the "
            "extra distributed: pip install 'cory-env[distributed]'"
        )
    from accelerate import PartialState

    cpu = device == "cpu"
    if not cpu:
        _check_gpus(device)
    try:
        state = PartialState(cpu=cpu, timeout=PATIENCE)
    except (RuntimeError, ValueError) as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        reason = str(error).strip().split("\n", maxsplit=1)[0]
        raise ValueError(f"the {size} processes could not meet at {where} ({reason})") from error
    return Group(state.process_index, state.num_processes, state.device)


def _launched() -> int:
    """How many processes there are, by the environment.

    Raises:
        ValueError: if it is incomplete.
    """
    if "WORLD_SIZE" not in os.environ:
        if "ACCELERATE_USE_CPU" in os.environ and "MASTER_PORT" in os.environ:
            # It expects MPI to multiply the process; without, the run would be one process's.
            raise ValueError(
                "accelerate launch --cpu starts a single process, whatever --num_processes says: "
                "start several on the CPU with accelerate launch --multi_gpu, and leave device cpu"
            )
        return 1
    names = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    for name in names:
        given = os.environ.get(name)
        if given is None or (name != "MASTER_ADDR" and not given.isdecimal()):
            raise ValueError(
                f"{', '.join(names)} must all be set for several processes, as accelerate launch "
                f"does, got {name}={given}"
            )
    return max(int(os.environ["WORLD_SIZE"]), 1)


def _check_gpus(device: str) -> None:
    if device != "cuda":
        raise ValueError(
            f"device must be cpu or cuda in a run of several processes, each of which takes a GPU "
            f"of its own, got {device!r}"
        )
    here = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found < here:
        raise ValueError(
            f"device cuda needs a GPU for each of the {here} processes of this machine, and torch "
            f"sees {found}"
        )


def is_main() -> bool:
    """Whether the environment makes this the main process; before the processes have met."""
    return os.environ.get("WORLD_SIZE", "1") == "1" or os.environ.get("RANK", "0") == "0"


def speaks() -> bool:
    """Whether it is this process that tells the error which ends the run: one of them does.

    The main one if it fails as well, soon; else the first.
    """
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return True
    try:
        store = torch.distributed.TCPStore(  # type: ignore[attr-defined]
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=False,
            timeout=LAST_WORDS,
        )
        key = f"cory/said/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        if not is_main():
            with suppress(RuntimeError):
                store.wait([key], LAST_WORDS)
        return int(store.add(key, 1)) == 1
    except (KeyError, RuntimeError, ValueError):  # where they meet is gone, or never was
        return is_main()


@contextmanager
def only_main_talks() -> Iterator[None]:
    """Keep what every process would print alike from being printed more than once."""
    if is_main():
        yield
        return
    kept = sys.stdout, sys.stderr
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        sys.stdout = sys.stderr = nowhere
        try:
            yield
        finally:
            sys.stdout, sys.stderr = kept
