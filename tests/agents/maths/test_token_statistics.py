"""Tests of agents/maths/token_statistics.py."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from agents.maths.token_statistics import statistics_of, token_statistics

P = torch.tensor([[0.5, 0.25, 0.25], [0.125, 0.125, 0.75]], dtype=torch.float64)
Q = torch.tensor([[0.25, 0.25, 0.5], [0.125, 0.125, 0.75]], dtype=torch.float64)


def test_by_hand() -> None:
    # Logits need not be normalised: a constant is added to each row.
    found = token_statistics(
        P.log() + 3.0, torch.tensor([1, 2]), 1.0, ref_log_probs=Q.log(), with_entropy=True
    )
    assert found.logprobs.tolist() == pytest.approx([math.log(0.25), math.log(0.75)])
    assert found.ref_logprobs.tolist() == pytest.approx([math.log(0.25), math.log(0.75)])
    # KL of the first row: .5 log 2 + .25 log 1 + .25 log 1/2 = .25 log 2; the second is equal.
    assert found.kl.tolist() == pytest.approx([0.25 * math.log(2), 0.0])
    entropy = 0.25 * math.log(8) + 0.75 * math.log(4 / 3)
    assert found.entropy.tolist() == pytest.approx([1.5 * math.log(2), entropy])


def test_what_was_not_asked_for_is_zero() -> None:
    found = token_statistics(P.log(), torch.tensor([1, 2]), 1.0, with_entropy=False)
    assert found.entropy.tolist() == found.kl.tolist() == found.ref_logprobs.tolist() == [0.0, 0.0]


def test_temperature_divides_the_logits() -> None:
    # sqrt of (4, 1) over its sum at temperature 2.
    found = token_statistics(torch.tensor([[4.0, 1.0]]).log(), torch.tensor([0]), 2.0)
    assert found.logprobs.item() == pytest.approx(math.log(2 / 3))


def plain(logits: Tensor, ids: Tensor, temperature: float, ref: Tensor) -> list[Tensor]:
    """The definitions, through autograd."""
    log_probs = torch.log_softmax(logits / temperature, -1)
    probs = log_probs.exp()
    return [
        log_probs.gather(-1, ids.unsqueeze(-1)).squeeze(-1),
        -(probs * log_probs).sum(-1),
        (probs * (log_probs - ref)).sum(-1),
    ]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 6),
    vocabulary=st.integers(2, 9),
    temperature=st.sampled_from([0.5, 1.0, 1.7]),
    weights=st.tuples(*[st.sampled_from([0.0, 1.0, -0.7])] * 3),
)
def test_values_and_gradients_are_those_of_autograd(
    seed: int, n: int, vocabulary: int, temperature: float, weights: tuple[float, ...]
) -> None:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64) * 3

    logits = draw(n, vocabulary).requires_grad_()
    ids = torch.randint(0, vocabulary, (n,), generator=generator)
    ref = torch.log_softmax(draw(n, vocabulary), -1)
    upstream = [w * draw(n) for w in weights]

    def gradient(values: list[Tensor]) -> Tensor:
        total = sum(
            ((u * v).sum() for u, v in zip(upstream, values, strict=True)), logits.sum() * 0
        )
        return torch.autograd.grad(total, logits)[0]

    own = list(token_statistics(logits, ids, temperature, ref_log_probs=ref)[:3])
    expected = plain(logits, ids, temperature, ref)
    for a, b in zip(own, expected, strict=True):
        assert torch.allclose(a, b, atol=1e-12)
    assert torch.allclose(gradient(own), gradient(expected), atol=1e-12)


def test_the_same_comes_from_distributions_at_hand() -> None:
    ids = torch.tensor([1, 2])
    found = statistics_of(P.log(), ids, Q.log())
    assert found.entropy[0].item() == pytest.approx(1.5 * math.log(2))
    assert found.kl.tolist() == pytest.approx([0.25 * math.log(2), 0.0])
    expected = token_statistics(P.log(), ids, 1.0, ref_log_probs=Q.log())
    for a, b in zip(found, expected, strict=True):
        assert torch.allclose(a, b, atol=1e-12, rtol=0)
    same = statistics_of(P.log(), ids, P.log())
    assert torch.equal(same.kl, torch.zeros(2, dtype=P.dtype))


def test_extreme_logits_stay_finite() -> None:
    logits = torch.tensor([[1e4, -1e4, 0.0], [0.0, 0.0, -1e30]], requires_grad=True)
    ref = torch.log_softmax(torch.zeros(2, 3), -1)
    found = token_statistics(logits, torch.tensor([0, 1]), 1.0, ref_log_probs=ref)
    (found.logprobs + found.entropy + found.kl).sum().backward()
    assert logits.grad is not None and torch.isfinite(logits.grad).all()
    assert found.kl.tolist() == pytest.approx([math.log(3), math.log(1.5)])


def test_a_divergence_is_never_negative() -> None:
    logits = torch.randn(200, 50, generator=torch.Generator().manual_seed(0))
    found = token_statistics(
        logits,
        torch.zeros(200, dtype=torch.int64),
        1.0,
        ref_log_probs=torch.log_softmax(logits, -1),
    )
    assert found.kl.max() == 0.0 == found.kl.min()


def test_half_precision_logits_are_raised_and_their_gradient_comes_back_in_half() -> None:
    logits = P.log().to(torch.bfloat16).requires_grad_()
    found = token_statistics(logits, torch.tensor([1, 2]), 1.0)
    assert found.logprobs.dtype == torch.float32
    found.logprobs.sum().backward()
    assert logits.grad is not None and logits.grad.dtype == torch.bfloat16
