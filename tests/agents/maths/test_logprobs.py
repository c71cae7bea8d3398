"""Tests of agents/maths/logprobs.py."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agents.maths.logprobs import draw, gather_logprobs, log_softmax


def test_temperature_against_a_softmax_by_hand() -> None:
    # Logits log 1, log 4, log 9 at temperature 2 are weights 1, 2, 3 of a sum of 6.
    logits = torch.log(torch.tensor([1.0, 4.0, 9.0], dtype=torch.float64))
    expected = [math.log(1 / 6), math.log(2 / 6), math.log(3 / 6)]
    assert log_softmax(logits, 2.0).tolist() == pytest.approx(expected, abs=1e-12)
    # At temperature 0.5 they are squared: 1, 16, 81 of 98.
    expected = [math.log(1 / 98), math.log(16 / 98), math.log(81 / 98)]
    assert log_softmax(logits, 0.5).tolist() == pytest.approx(expected, abs=1e-12)


def test_half_precision_is_raised_and_double_is_kept() -> None:
    for given_dtype, expected in (
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ):
        assert log_softmax(torch.zeros(3, dtype=given_dtype), 1.0).dtype == expected


def test_gather_reads_the_drawn_token_and_zero_outside_the_mask() -> None:
    log_probs = torch.tensor([[[-1.0, -2.0], [-3.0, -4.0], [-5.0, -6.0]]])
    ids = torch.tensor([[1, 0, -1]])
    assert gather_logprobs(log_probs, ids, ids >= 0).tolist() == [[-2.0, -3.0, 0.0]]


@pytest.mark.case(14)
def test_no_gradient_flows_from_padding() -> None:
    log_probs = torch.zeros(1, 2, 3, requires_grad=True)
    ids = torch.tensor([[2, -1]])
    gather_logprobs(log_probs, ids, ids >= 0).sum().backward()
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == [[[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]]


@pytest.mark.parametrize(
    ("uniform", "token"),
    [(0.0, 0), (0.24, 0), (0.26, 1), (0.74, 1), (0.76, 2), (0.99, 2), (1 - 2**-53, 2)],
)
def test_draw_inverts_the_cumulative_distribution(uniform: float, token: int) -> None:
    # Probabilities 1/4, 1/2, 1/4: token 0 up to .25, token 1 up to .75, then token 2.
    log_probs = torch.tensor([[0.25, 0.5, 0.25]]).log()
    assert draw(log_probs, torch.tensor([uniform], dtype=torch.float64)).item() == token


def test_a_number_on_a_boundary_belongs_to_the_next_token() -> None:
    log_probs = torch.tensor([[0.5, 0.5]], dtype=torch.float64).log()
    assert draw(log_probs, torch.tensor([0.5], dtype=torch.float64)).item() == 1


def test_a_token_of_probability_zero_is_never_drawn() -> None:
    # Token 0 and 2 are impossible: even u = 0 gives token 1, and u -> 1 token 3.
    log_probs = torch.tensor([[0.0, 0.5, 0.0, 0.5]]).log()
    uniforms = torch.tensor([0.0, 0.4999, 0.5, 1 - 2**-53], dtype=torch.float64)
    assert draw(log_probs.expand(4, -1), uniforms).tolist() == [1, 1, 3, 3]


@pytest.mark.case(12)
@given(seed=st.integers(0, 10**6), batch=st.integers(1, 7), vocabulary=st.integers(1, 40))
def test_a_row_does_not_depend_on_its_batch(seed: int, batch: int, vocabulary: int) -> None:
    rng = np.random.default_rng(seed)
    log_probs = torch.log_softmax(torch.as_tensor(rng.normal(size=(batch, vocabulary))) * 3, -1)
    uniforms = torch.as_tensor(rng.random(batch))
    together = draw(log_probs, uniforms)
    alone = [draw(log_probs[i : i + 1], uniforms[i : i + 1]).item() for i in range(batch)]
    assert together.tolist() == alone
    assert together.dtype == torch.int64


def test_frequencies_are_the_probabilities() -> None:
    # 10,000 evenly spread numbers: each token gets its share to within one number.
    probabilities = torch.tensor([0.1, 0.2, 0.3, 0.4])
    uniforms = torch.arange(10_000, dtype=torch.float64) / 10_000
    drawn = draw(probabilities.log().expand(10_000, -1), uniforms)
    counts = torch.bincount(drawn, minlength=4)
    assert (counts - torch.tensor([1000, 2000, 3000, 4000])).abs().max() <= 1
