"""Tests of agents/memory_advice.py."""

from __future__ import annotations

from typing import Any

import pytest

from agents.config import TrainConfig
from agents.cost import Held, Kept, Load, Memory, ModelShape
from agents.memory_advice import Foreseen, advice

GB = 1e9


def test_what_is_enough_is_named_and_what_helps_most_comes_first() -> None:
    options = [
        [("dtype bfloat16", 5 * GB)],
        [("batch_size 64", 9 * GB), ("batch_size 32", 5.5 * GB), ("batch_size 16", 3 * GB)],
        [("eval_queries 8", 10 * GB)],
        [],
    ]
    # The mildest value that fits; ordered by what the strongest would leave: 3 GB and 5 GB.
    assert advice(options, 10 * GB, 6 * GB) == "enough would be batch_size 32 or dtype bfloat16"
    assert advice(options, 10 * GB, 4 * GB) == "enough would be batch_size 16"


def test_where_nothing_alone_is_enough_all_that_helps_is_named_by_how_much() -> None:
    options = [
        [("lora_rank", 8 * GB)],
        [("batch_size 64", 9 * GB), ("batch_size 32", 5.5 * GB)],
        [("eval_queries 8", 9.5 * GB)],  # not even a tenth
    ]
    assert advice(options, 10 * GB, 1 * GB) == (
        "no single setting is enough: try together batch_size 32 (alone 5.5 GB), lora_rank (alone "
        "8.0 GB), or a smaller model"
    )
    assert advice(options[2:], 10 * GB, 1 * GB) == (
        "no setting changes that, it takes a smaller model or more memory"
    )


SHAPE = ModelShape(
    parameters=1000,
    trunk=500,
    layers=1,
    hidden=10,
    widest=10,
    heads=1,
    kv_heads=1,
    head_width=10,
    vocabulary=20,
)
HELD = Held(weights=8000, references=4000, trained=(4000, 4000), own=8000, state=8000)
LOAD = Load(
    rows=24,
    evaluated=3,
    minibatch=24,
    micro=6,
    prompt_tokens=6,
    response_tokens=4,
    weight_bytes=4,
    compute_bytes=4,
    measured_rows=8,
    logits_bytes=10**9,
    waste=0.0,
)
KEPT = Kept(constant=40, per_token=8, per_pair=0.0)


def foreseen(processes: int = 1, held: Held = HELD, **settings: Any) -> Foreseen:
    return Foreseen(TrainConfig(**settings), SHAPE, held, LOAD, KEPT, processes)


def words(found: Foreseen) -> list[list[str]]:
    return [[step for step, _ in steps] for steps in found.options(lambda memory: 0.0)]


def test_settings_are_halved_down_to_one() -> None:
    assert words(foreseen()) == [
        # rows of each of two agents: 12, 6, 3, 1
        ["batch_size 24", "batch_size 12", "batch_size 6", "batch_size 2"],
        ["eval_queries 1"],
        ["micro_batch_size 3", "micro_batch_size 1"],
        ["max_response_tokens 2", "max_response_tokens 1"],
        ["gradient_checkpointing"],
        ["lora_rank (adapters on one frozen model)"],
        ["dtype bfloat16"],
    ]


def test_a_lower_batch_is_one_that_the_run_would_take() -> None:
    # 3 processes: 36, 18, 9 and 3 episodes; fewer than 3 would leave a process without one.
    assert words(foreseen(processes=3))[0] == [f"batch_size {n}" for n in (72, 36, 18, 6)]
    # Groups of 4 answers: 12, 4 (of 6), and no group fits into 3.
    assert words(foreseen(group_size=4, algorithm="rloo"))[0] == ["batch_size 24", "batch_size 8"]


def test_what_is_set_already_is_no_advice() -> None:
    found = words(foreseen(dtype="bfloat16", lora_rank=2))
    assert found[4:] == [["gradient_checkpointing"], [], []]


def of_option(place: int, found: Foreseen) -> list[dict[str, float]]:
    """What the steps of an option leave on the device, at the worst moment."""
    seen: list[dict[str, float]] = []

    def look(memory: Memory) -> float:
        seen.append(dict(memory.device))
        return memory.on_device

    taken = [len(steps) for steps in found.options(look)]
    start = sum(taken[:place])
    return seen[start : start + taken[place]]


def test_estimates_with_another_setting_by_hand() -> None:
    now = foreseen().memory.device
    assert (now["weights"], now["references"], now["moments"]) == (8000, 4000, 16000)
    # A rollout holds 3 * 2 agents * rows * 4 tokens * 10 numbers of 4 bytes.
    assert [step["rollout"] for step in of_option(0, foreseen())] == [
        960.0 * rows for rows in (12, 6, 3, 1)
    ]
    adapters = of_option(5, foreseen())[0]
    # One base of 4000 bytes, and a hundredth of it for each of two agents.
    assert (adapters["weights"], adapters["references"]) == (4080, 0)
    assert adapters["moments"] == 2 * 2 * 40
    halved = of_option(6, foreseen())[0]
    assert (halved["weights"], halved["references"], halved["moments"]) == (4000, 2000, 8000)
    assert halved["rollout"] == now["rollout"] / 2


@pytest.mark.parametrize(
    ("held", "first"),
    [
        (HELD, "batch_size"),  # a rollout of 24 kB and its cache beside weights of 8
        (Held(8_000_000, 4_000_000, (4_000_000,) * 2, 8_000_000, 8_000_000), "lora_rank"),
    ],
)
def test_the_cause_is_named_first(held: Held, first: str) -> None:
    found = foreseen(held=held)
    options = found.options(lambda memory: memory.on_device)
    needed = found.memory.on_device
    assert first in advice(options, needed, 0.95 * needed).split(" or ")[0]
