"""The arithmetic that the processes of a run share out: responses, scores and gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from agents.distributed import PeerError, Processes
from agents.sampling import Measured, Sampled
from cory_env.records import Query
from cory_env.rewards.base import (
    Reward,
    RewardError,
    WeightedReward,
    checked_scores,
    reward_name,
)

if TYPE_CHECKING:
    from agents.bridge.learner import Learner

Record = TypeVar("Record", Sampled, Measured)


def check_beginning(
    processes: Processes, identity: Mapping[str, Any], learners: Mapping[str, Learner], done: int
) -> None:
    """Refuse processes that would train different things.

    Args:
        processes: of the run.
        identity: of the run, as checkpoints have it.
        learners: as they will go on.
        done: iterations that were done before.

    Raises:
        ValueError: in every process, naming what differs.
    """
    if processes.size > 1:
        begun = {"the last finished iteration": done, **identity, **_weight_sums(learners)}
        processes.check_alike(begun, "the processes do not begin alike")


def check_in_step(
    processes: Processes, row: Mapping[str, Any], learners: Mapping[str, Learner], iteration: int
) -> None:
    """Refuse to go on with processes that have computed different things.

    Args:
        processes: of the run.
        row: what will be logged.
        learners: after the iteration.
        iteration: that has just ended.

    Raises:
        ValueError: in every process, naming what differs.
    """
    if processes.size > 1:
        ended = {name: value for name, value in row.items() if name != "seconds"}
        processes.check_alike(
            {**ended, **_weight_sums(learners)},
            f"the processes came apart in iteration {iteration}",
        )


def _weight_sums(learners: Mapping[str, Learner]) -> dict[str, int]:
    return {
        f"the sum over the weights of {agent}": bit_sum(learner.actor.state_dict().values())
        for agent, learner in learners.items()
    }


def bit_sum(tensors: Iterable[Tensor]) -> int:
    """A number over the bits of tensors that is quick on any device; equal ones have equal sums."""
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    total = 0
    for place, tensor in enumerate(tensors, start=1):
        bits = tensor.detach().contiguous().view(whole[tensor.element_size()])
        total += place * int(bits.sum(dtype=torch.int64))
    return total


def respond_together(
    processes: Processes,
    respond: Callable[[NDArray[np.int64], NDArray[np.float64]], tuple[Sampled, Measured]],
    prompts: NDArray[np.int64],
    uniforms: NDArray[np.float64],
) -> tuple[Sampled, Measured]:
    """Let every process answer its share of the prompts, and give each all the answers.

    Args:
        processes: that share the work.
        respond: draws and measures responses, a row each.
        prompts: [B, L].
        uniforms: [B, T].

    Returns:
        As `respond`, without what serves a single process only: `hidden` has width 0.
    """
    n = len(prompts)
    own = processes.share(n)
    count = own.stop - own.start
    # A process without a row answers one that is not its own, and drops it: models and gathering
    # need a shape.
    rows = own if count else slice(0, 1)
    with processes.section():
        sampled, measured = respond(prompts[rows], uniforms[rows])
        sampled = replace(sampled, hidden=sampled.hidden[..., :0], log_probs=None)
        measured = replace(measured, ref_log_probs=None)
    return _gathered(processes, sampled, count, n), _gathered(processes, measured, count, n)


def _gathered(processes: Processes, record: Record, count: int, n: int) -> Record:
    """Every row of a record of tensors; of the own ones the first `count` are meant."""
    changes = {
        f.name: processes.gather(value[:count], n)
        for f in fields(record)
        if isinstance(value := getattr(record, f.name), Tensor)
    }
    return replace(record, **changes)


def add_gradients(
    processes: Processes,
    parameters: Sequence[nn.Parameter],
    sums: Mapping[str, Tensor],
    *,
    counts: bool,
) -> dict[str, Tensor]:
    """Add up the gradients of all processes' shares, in place, and what they log.

    Args:
        processes: that share the work.
        parameters: whose gradients; the same in every process.
        sums: scalars by name; the names are the same in every process.
        counts: whether the gradients and sums of this process are a part of the whole.

    Returns:
        The added scalars, float64.
    """
    names = sorted(sums)
    logged = torch.stack([sums[name].detach().double() for name in names])
    # Which parameters have a gradient may depend on the rows, as in a mixture of experts.
    reached = torch.tensor([p.grad is not None for p in parameters]).to(logged)
    said = torch.cat([logged, reached])
    processes.add([said if counts else said.zero_()])
    gradients = []
    for parameter, somewhere in zip(parameters, said[len(names) :].tolist(), strict=True):
        if not (counts and somewhere):
            parameter.grad = None
        if somewhere:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradients.append(parameter.grad)
    processes.add(gradients)
    return dict(zip(names, said, strict=False))


def shared_reward(reward: Reward, processes: Processes) -> Reward:
    """A reward of which every process scores its share; of a weighted sum each part."""
    if processes.size == 1:
        return reward
    if isinstance(reward, WeightedReward):
        parts = tuple((weight, shared_reward(part, processes)) for weight, part in reward.parts)
        return replace(reward, parts=parts)
    return _SharedReward(reward, processes)


class _SharedReward:
    """Scores do not depend on their batch, so a batch may be cut."""

    def __init__(self, reward: Reward, processes: Processes) -> None:
        self._reward = reward
        self._processes = processes
        self.__qualname__ = reward_name(reward)

    @property
    def fingerprint(self) -> str | None:
        """What the reward itself says of its contents."""
        found = getattr(self._reward, "fingerprint", None)
        return found if isinstance(found, str) else None

    def __call__(self, queries: Sequence[Query], responses: Sequence[str]) -> NDArray[np.float64]:
        """Return the scores, [B].

        Raises:
            RewardError: in every process, if the reward fails in one.
        """
        own = self._processes.share(len(responses))
        try:
            with self._processes.section():
                scores = checked_scores(self._reward, queries[own], responses[own])
        except PeerError as error:
            # Nothing else: whoever asks for scores would try again row by row.
            raise RewardError(str(error)) from error
        return self._processes.gather(torch.as_tensor(scores), len(responses)).numpy()
