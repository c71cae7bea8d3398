from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from agents.cost import (
    LIBRARIES,
    LIVE_LOGITS,
    Accelerator,
    Flops,
    Held,
    Kept,
    Load,
    Memory,
    ModelShape,
    Work,
    forward_flops,
    iteration_flops,
    peak_memory,
    phases,
    seconds_at,
    seconds_on,
)
from agents.memory import shape_of
from agents.sampling import measure, sample
from tests.agents.tiny import tiny_actor, tiny_reference

SMALL = ModelShape(
    parameters=500,
    trunk=100,
    layers=1,
    hidden=10,
    widest=10,
    heads=1,
    kv_heads=1,
    head_width=10,
    vocabulary=20,
)


# Floating-point operations.


def test_a_forward_pass_worked_out_by_hand() -> None:
    # 4 tokens: 2 * 100 * 4 = 800 in matrices. Attention: the tokens see 1 + 2 + 3 + 4 = 10, each at
    # 4 * 1 layer * width 10 = 40: 400.
    assert forward_flops(SMALL, 4) == 1200


def test_an_iteration_worked_out_by_hand() -> None:
    # One episode, prompt 3, response 2: 3 + 2 - 1 = 4 tokens are fed, 1200 as above. Logits at 2
    # positions: 2 * 2 * 10 * 20 = 800.
    flops = iteration_flops(SMALL, Work(1, (3,), 2, update_epochs=1))
    assert flops.generate == 1200 + 800
    assert flops.reference == 1200 + 2 * 800  # both models' logits
    assert flops.update == 3 * 1200 + 3 * 800 + 800  # and the reference's logits once more
    assert flops.total == 2000 + 2800 + 6800


def test_seats_episodes_and_passes_add_up() -> None:
    one = iteration_flops(SMALL, Work(1, (3,), 2, update_epochs=1))
    other = iteration_flops(SMALL, Work(1, (7,), 2, update_epochs=1))
    both = iteration_flops(SMALL, Work(5, (3, 7), 2, update_epochs=4))
    assert both.generate == 5 * (one.generate + other.generate)
    assert both.update == 4 * 5 * (one.update + other.update)


@pytest.mark.parametrize(
    ("setting", "update"),
    [
        ({"exact_kl": False}, 3 * 1200 + 3 * 800),
        ({"checkpointing": True}, 4 * 1200 + 4 * 800),
        ({"frozen_base": True}, 2 * 1200 + 3 * 800),
    ],
)
def test_settings_change_the_update_only(setting: dict[str, Any], update: int) -> None:
    plain = iteration_flops(SMALL, Work(1, (3,), 2, update_epochs=1))
    flops = iteration_flops(SMALL, Work(1, (3,), 2, update_epochs=1, **setting))
    assert flops.update == update
    assert (flops.generate, flops.reference) == (plain.generate, plain.reference)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_what_is_counted_is_what_the_code_multiplies(family: str) -> None:
    """Torch's own counter sees the matrices of sampling, measuring and an update."""
    actor, reference = tiny_actor(family), tiny_reference(family)
    prompts = torch.randint(0, 11, (5, 7))
    uniforms = torch.rand((5, 6), dtype=torch.float64)
    counted: dict[str, int] = {}

    def count(stage: str, run: Any) -> Any:
        with FlopCounterMode(display=False) as counter:
            result = run()
        numbers = counter.get_flop_counts()["Global"]
        counted[stage] = sum(n for name, n in numbers.items() if "attention" not in str(name))
        return result

    never = [99]  # no token ends a response, so all have 6
    drawn = count(
        "generate",
        lambda: sample(actor, prompts, uniforms, end_ids=never, temperature=1.0),
    )
    drawn = dataclasses.replace(drawn, log_probs=None)  # as where they are too large to be kept
    count(
        "reference",
        lambda: measure(actor, reference, prompts, drawn, temperature=1.0),
    )
    count(
        "update",
        lambda: actor.score(prompts, drawn.response_ids, 1.0).logprobs.sum().backward(),
    )
    # Attention is left out: torch's counter does not know the kernel of the CPU. The value head,
    # which ours leaves out, is 1 in 400 of a model this narrow.
    shape = dataclasses.replace(shape_of(actor.model), layers=0)
    flops = iteration_flops(shape, Work(5, (7,), 6, update_epochs=1, exact_kl=False))
    for stage, number in counted.items():
        assert getattr(flops, stage) == pytest.approx(number, rel=0.003), stage


# Time.


def test_time_from_rates_worked_out_by_hand() -> None:
    seconds = seconds_at(
        Flops(generate=100.0, reference=60.0, update=300.0),
        {"generate": 10.0, "reference": 20.0, "update": 50.0},
    )
    assert (seconds.generate, seconds.reference, seconds.update) == (10.0, 3.0, 6.0)
    assert seconds.total == 19.0


def test_time_on_a_device_worked_out_by_hand() -> None:
    device = Accelerator(
        "toy",
        flops=1000.0,
        bandwidth=2000.0,
        memory=1e9,
        utilisation=0.5,
        bandwidth_share=0.5,
        seconds_per_layer=0.01,
    )
    # Passes: reference 2800 and update 6800 at 500 a second. Drawing 2 tokens: each step reads 500
    # parameters of 2 bytes and the cache, 2 bytes * 20 numbers * 4 tokens = 160: 1160 at 1000 a
    # second, longer than launching one layer. The prompt of 3: 600 + 40 * 6 = 840 at 500 a second.
    seconds = seconds_on(device, SMALL, Work(1, (3,), 2, update_epochs=1))
    assert seconds.reference == pytest.approx(5.6)
    assert seconds.update == pytest.approx(13.6)
    assert seconds.generate == pytest.approx(2 * 1.16 + 1.68)


def test_a_small_model_is_drawn_from_no_faster_than_its_layers_are_launched() -> None:
    slow = Accelerator("toy", flops=1e12, bandwidth=1e12, memory=1e9, seconds_per_layer=0.25)
    seconds = seconds_on(slow, SMALL, Work(1, (3,), 8))
    assert seconds.generate == pytest.approx(8 * 0.25)


# Memory.

HELD = Held(weights=4000, references=2000, trained=(2000, 2000), own=4000, state=4400)
LOAD = Load(
    rows=4,
    evaluated=2,
    minibatch=4,
    micro=2,
    prompt_tokens=6,
    response_tokens=5,
    weight_bytes=4,
    compute_bytes=4,
    measured_rows=3,
    logits_bytes=10**9,
    waste=0.0,
)
KEPT = Kept(constant=50, per_token=7, per_pair=0.5)


def by_phase(held: Held = HELD, load: Load = LOAD) -> dict[str, Memory]:
    return {memory.phase: memory for memory in phases(SMALL, held, load, KEPT)}


def test_what_a_forward_pass_keeps_by_hand() -> None:
    # 50 + 2 rows * (7 * 10 tokens + 0.5 * 100 pairs) = 50 + 2 * 120
    assert KEPT.of(2, 10) == 290


def test_what_lies_there_all_the_time() -> None:
    for memory in by_phase().values():
        assert memory.device["weights"] == 4000
        assert memory.device["references"] == 2000
        assert memory.device["moments"] == 2 * 4000
        # 3 places * 2 agents * 4 rows * 5 tokens * 10 wide * 4 bytes
        assert memory.device["rollout"] == 4800
        assert memory.host["libraries"] == LIBRARIES


def test_an_update_in_pieces_holds_all_gradients_and_the_activations_of_a_piece() -> None:
    update = by_phase()["update"].device
    assert update["gradients"] == 4000
    # 2 rows of 6 + 5 - 1 tokens, as above; logits 4 bytes * 2 rows * 5 tokens * 20.
    assert update["activations"] == 290
    assert update["logits"] == LIVE_LOGITS * 800


def test_gradients_of_a_single_piece_come_while_activations_go() -> None:
    # All 4 rows at once: 530 of activations and 5 * 1600 of logits against the agent's 2000 of
    # gradients. At the beginning there is only that of the output layer, 20 * 10 * 4 = 800.
    update = by_phase(load=dataclasses.replace(LOAD, micro=4))["update"].device
    assert update["gradients"] == 2000 + 800
    assert update["activations"] == 530
    # Where activations are few, the end is what counts: both agents' gradients, and the
    # embedding's in a tensor of its own.
    few = dataclasses.replace(LOAD, micro=4, logits_bytes=10)
    small = [
        m
        for m in phases(SMALL, HELD, few, Kept(constant=1, per_token=0, per_pair=0))
        if m.phase == "update"
    ]
    assert small[0].device["gradients"] == 4000 + 800
    assert "activations" not in small[0].device


def test_checkpointing_keeps_what_enters_the_layers_and_one_layer() -> None:
    shape = dataclasses.replace(SMALL, layers=4)
    load = dataclasses.replace(LOAD, checkpointing=True)
    update = next(m for m in phases(shape, HELD, load, KEPT) if m.phase == "update")
    # 50, and 2 rows * 10 tokens * 4 layers * 10 wide * 4 bytes, and a quarter of the other 240.
    assert update.device["activations"] == 50 + 3200 + 60


def test_drawing_holds_the_cache_of_all_rows() -> None:
    drawing = by_phase()["generate"].device
    # 4 rows * 11 tokens * (keys and values of 10) * 4 bytes, and the hidden states twice.
    assert drawing["cache"] == 4 * 11 * 20 * 4 + 2 * 4 * 5 * 10 * 4
    assert by_phase()["evaluate"].device["cache"] == drawing["cache"] / 2


def test_a_copy_of_the_agents_lies_there_all_the_time_only_where_it_is_small() -> None:
    copy = 4400 + 8000
    small, large = by_phase(), by_phase(load=dataclasses.replace(LOAD, snapshot_bytes=11_999))
    assert small["update"].host["snapshot"] == small["save"].host["snapshot"] == copy
    assert large["update"].host["snapshot"] == 0
    assert large["save"].host["snapshot"] == 400  # tied weights are written twice


def test_models_on_another_device_are_copied_to_be_saved() -> None:
    load = dataclasses.replace(LOAD, snapshot_bytes=11_999, elsewhere=True)
    assert by_phase(load=load)["save"].host["snapshot"] == 4400 + 8000


def test_the_peak_is_the_largest_phase() -> None:
    found = by_phase()
    peak = peak_memory(SMALL, HELD, LOAD, KEPT)
    assert peak.total == max(memory.total for memory in found.values())
    assert peak == found[peak.phase]


def test_on_another_device_its_own_peak_counts() -> None:
    load = dataclasses.replace(LOAD, elsewhere=True, snapshot_bytes=0)
    held = dataclasses.replace(HELD, state=10_000)
    found = phases(SMALL, held, load, KEPT)
    assert max(found, key=lambda memory: memory.total).phase == "save"
    peak = peak_memory(SMALL, held, load, KEPT)
    assert peak.on_device == max(memory.on_device for memory in found)
    assert peak.phase != "save"


def test_gaps_are_a_share_of_the_largest_working_memory_and_stay() -> None:
    plain, wasteful = by_phase(), by_phase(load=dataclasses.replace(LOAD, waste=0.5))
    working = plain["update"].device["activations"] + plain["update"].device["logits"]
    drawn = plain["generate"].device["cache"] + plain["generate"].device["scratch"]
    assert wasteful["save"].device["allocator"] == 0.5 * max(working, drawn)
    assert wasteful["save"].device["allocator"] == wasteful["update"].device["allocator"]


@pytest.mark.parametrize(
    ("change", "phase"),
    [
        ({"rows": 400, "minibatch": 4}, "generate"),
        ({"evaluated": 400}, "evaluate"),
        ({"micro": 40, "minibatch": 400}, "update"),
    ],
)
def test_more_work_never_takes_less(change: dict[str, int], phase: str) -> None:
    assert by_phase(load=dataclasses.replace(LOAD, **change))[phase].total > by_phase()[phase].total
