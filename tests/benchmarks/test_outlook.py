from __future__ import annotations

import re

import pytest

from agents.cost import Accelerator, ModelShape, Work
from agents.memory import shape_from_config
from benchmarks.outlook import (
    LLAMA_2_7B,
    Measured,
    duration,
    gsm8k_work,
    measured_rates,
    outlook,
)

# 100 numbers in matrices, no attention to speak of: everything by hand.
FLAT = ModelShape(
    parameters=300,
    trunk=100,
    layers=0,
    hidden=10,
    widest=10,
    heads=1,
    kv_heads=1,
    head_width=10,
    vocabulary=20,
)


def test_rates_are_operations_over_seconds_of_all_iterations() -> None:
    # One episode, prompt 3, response 2: 4 tokens of 200 and two logits of 400: generate 1600,
    # reference 800 + 1600 = 2400, update 3 * 800 + 4 * 800 = 5600. The second has two episodes.
    iterations = [
        Measured({"generate": 3.0, "reference": 2.0, "update": 1.0}, Work(1, (3,), 2, 1)),
        Measured({"generate": 1.0, "reference": 1.0, "update": 1.0}, Work(2, (3,), 2, 1)),
    ]
    rates = measured_rates(FLAT, iterations)
    assert rates == {"generate": 3 * 1600 / 4, "reference": 3 * 2400 / 3, "update": 3 * 5600 / 2}


def test_the_papers_run_is_the_one_of_its_table() -> None:
    work = gsm8k_work()
    assert (work.episodes, work.response_tokens, work.update_epochs) == (32, 256, 4)
    # The observer also reads the pioneer's 256 tokens.
    assert work.prompt_tokens[1] == work.prompt_tokens[0] + 256


def test_the_papers_model_is_the_librarys_own_default() -> None:
    from transformers import LlamaConfig

    assert shape_from_config(LlamaConfig()) == LLAMA_2_7B


def test_the_paragraph_says_what_the_arithmetic_says() -> None:
    device = Accelerator(
        "Toy 9",
        flops=1e12,
        bandwidth=1e12,
        memory=1e9,
        utilisation=0.5,
        bandwidth_share=0.5,
        seconds_per_layer=0.0,
    )
    # Prompts of 180 and 436 tokens, 255 more are fed: 435 + 691 = 1126 tokens * 32 * 200 are
    # 7,206,400 in matrices; logits 2 * 32 * 256 * 400 = 6,553,600. generate 13.76e6, reference
    # 20.3136e6, update 4 * (3 * 7.2064e6 + 4 * 6.5536e6) = 191.3344e6.
    rates = {"generate": 13.76e6 / 60, "reference": 20.3136e6 / 30, "update": 191.3344e6 / 1000}
    text = outlook(FLAT, rates, device)
    assert "100 iterations x 32 queries x 2 agents" in text
    assert "prompts of about 180 and 436 tokens" in text
    # 60 + 30 + 1000 seconds; a hundred times that is 109,000 s = 30.3 h.
    assert "generate 60.0 s, reference 30.0 s, update 16.7 min" in text
    assert re.search(r"this machine +18\.2 min an iteration .*, 30\.3 h in all", text)
    assert re.search(r"Toy 9 .*ESTIMATE, nothing was run there", text, re.DOTALL)
    assert "50% of 1 TFLOP/s" in text


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.04, "0.0 s"),
        (89.0, "89.0 s"),
        (90.0, "1.5 min"),
        (5399.0, "90.0 min"),
        (5400.0, "1.5 h"),
        (129_599.0, "36.0 h"),
        (200_000.0, "2.3 days"),
    ],
)
def test_durations_are_for_people(seconds: float, words: str) -> None:
    assert duration(seconds) == words
