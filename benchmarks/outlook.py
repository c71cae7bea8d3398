"""What the paper's GSM8K run would cost with a model.

On this machine from rates that were measured here, and on a GPU from its data sheet. This is the
arithmetic in words; `agents/cost.py` has the formulas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agents.cost import (
    A100,
    Accelerator,
    Flops,
    ModelShape,
    Work,
    iteration_flops,
    seconds_at,
    seconds_on,
)

STAGES = ("generate", "reference", "update")

ITERATIONS = 100
QUERIES = 32
NEW_TOKENS = 256
EPOCHS = 4
"""Of the paper's GSM8K runs (its table 2; epochs as in its code).

Source: Ma et al. 2024, table 2.
"""
QUESTION_TOKENS = 65
"""Of a question, which has about 47 words; an assumption, since the data set is not at hand."""
FRAME_TOKENS = 115
"""Of the worked example before it and the words around it, in a byte-level vocabulary."""

LLAMA_2_7B = ModelShape(
    parameters=6_738_415_616,
    trunk=6_476_005_376,
    layers=32,
    hidden=4096,
    widest=11_008,
    heads=32,
    kv_heads=32,
    head_width=128,
    vocabulary=32_000,
)
"""The paper's model for this task, which it trained in 4 bits with adapters."""
FOUR_BITS = 0.55
"""Bytes of a parameter in 4 bits with its share of the scales."""


def gsm8k_work(*, frozen_base: bool = False) -> Work:
    """An iteration of the paper's GSM8K run."""
    alone = FRAME_TOKENS + QUESTION_TOKENS
    return Work(
        episodes=QUERIES,
        prompt_tokens=(alone, alone + NEW_TOKENS),
        response_tokens=NEW_TOKENS,
        update_epochs=EPOCHS,
        frozen_base=frozen_base,
    )


@dataclass(frozen=True)
class Measured:
    """One iteration of a run that was timed."""

    seconds: Mapping[str, float]
    """By stage: generate, reward, reference, update, other."""
    work: Work


def measured_rates(shape: ModelShape, iterations: Sequence[Measured]) -> dict[str, float]:
    """Floating-point operations a second, by stage, over some timed iterations.

    Args:
        shape: of the model.
        iterations: at least one.
    """
    flops = [iteration_flops(shape, one.work) for one in iterations]
    return {
        stage: sum(getattr(f, stage) for f in flops) / sum(one.seconds[stage] for one in iterations)
        for stage in STAGES
    }


def outlook(shape: ModelShape, rates: Mapping[str, float], device: Accelerator = A100) -> str:
    """The paragraph that `make demo-real` ends with.

    Args:
        shape: of the model that was trained.
        rates: from `measured_rates`.
        device: to estimate for.
    """
    work = gsm8k_work()
    flops = iteration_flops(shape, work)
    here = seconds_at(flops, rates)
    there = seconds_on(device, shape, work)
    paper = seconds_on(device, LLAMA_2_7B, gsm8k_work(frozen_base=True), weight_bytes=FOUR_BITS)
    alone, after = work.prompt_tokens
    return "\n".join(
        [
            f"What gsm8k at the paper's length would cost with this model: {ITERATIONS} iterations "
            f"x {QUERIES} queries x 2 agents,",
            f"{NEW_TOKENS} new tokens, {EPOCHS} passes, prompts of about {alone:.0f} and "
            f"{after:.0f} tokens; {_tera(flops)} an iteration.",
            f"  this machine    {duration(here.total)} an iteration ({_stages(here)}), "
            f"{duration(ITERATIONS * here.total)} in all;",
            f"                  from the rates measured above: {_rates(rates)}. Longer sequences "
            f"and larger batches",
            "                  may run at other rates, and evaluations come on top.",
            f"  {device.name}  {duration(there.total)} an iteration ({_stages(there)}), "
            f"{duration(ITERATIONS * there.total)} in all;",
            f"                  an ESTIMATE, nothing was run there: passes at "
            f"{device.utilisation:.0%} of {device.flops / 1e12:.0f} TFLOP/s, each token drawn at",
            f"                  {device.bandwidth_share:.0%} of {device.bandwidth / 1e12:.2f} TB/s "
            f"but no faster than {1000 * device.seconds_per_layer:g} ms a layer.",
            "  for comparison  Llama-2-7B, the paper's model, in 4 bits with adapters on that GPU:",
            f"                  {duration(ITERATIONS * paper.total)} in all by the same estimate "
            f"(the paper says less than 4 h on four RTX A6000).",
        ]
    )


def duration(seconds: float) -> str:
    """Seconds for people."""
    for unit, length in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


def _tera(flops: Flops) -> str:
    return f"{flops.total / 1e12:.0f} TFLOP"


def _stages(seconds: object) -> str:
    return ", ".join(f"{stage} {duration(getattr(seconds, stage))}" for stage in STAGES)


def _rates(rates: Mapping[str, float]) -> str:
    return ", ".join(f"{stage} {rates[stage] / 1e9:.0f} GFLOP/s" for stage in STAGES)
