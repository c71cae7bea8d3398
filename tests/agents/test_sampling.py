"""Tests of agents/sampling.py: what is recorded is what a plain forward says."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from agents.maths.losses import ratio_statistics
from agents.maths.masking import masked_sum
from agents.models import ActorCritic
from agents.sampling import Sampled, measure, sample, trim_left
from tests.agents.tiny import END, VOCABULARY, padded, plain_scores, tiny_actor, tiny_reference

PROMPTS = [[1, 5], [1, 4, 3, 10, 6], [1], [1, END, 0, END], [1, 7, 8], [1, 9, 9, 9]]
"""Ragged, and with the end token (which is also the padding token) in the middle of one."""
WIDTH = 6
FAMILIES = pytest.mark.parametrize(
    ("family", "tied"), [("llama", False), ("llama", True), ("gpt2", True), ("gpt2", False)]
)
PRECISIONS = pytest.mark.parametrize(
    ("dtype", "atol"), [(torch.float32, 1e-5), (torch.float64, 1e-10)], ids=["float32", "float64"]
)


def uniforms(n: int = len(PROMPTS), seed: int = 3) -> Tensor:
    return torch.as_tensor(np.random.default_rng(seed).random((n, WIDTH)))


def drawn(
    actor: ActorCritic,
    prompts: list[list[int]] = PROMPTS,
    numbers: Tensor | None = None,
    *,
    temperature: float = 1.0,
    width: int = 8,
) -> Sampled:
    numbers = uniforms(len(prompts)) if numbers is None else numbers
    return sample(actor, padded(prompts, width), numbers, end_ids=(END,), temperature=temperature)


def tokens(sampled: Sampled, row: int) -> list[int]:
    return [t for t in sampled.response_ids[row].tolist() if t >= 0]


@pytest.mark.case(1, 9)
@FAMILIES
@PRECISIONS
@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_recorded_values_are_those_of_a_full_forward(
    family: str, tied: bool, dtype: torch.dtype, atol: float, temperature: float
) -> None:
    actor = tiny_actor(family, tied=tied, dtype=dtype)
    sampled = drawn(actor, temperature=temperature)
    for row, prompt in enumerate(PROMPTS):
        response = tokens(sampled, row)
        log_probs, values = plain_scores(actor, prompt, response, temperature)
        expected = log_probs[range(len(response)), response]
        got = sampled.logprobs[row, : len(response)]
        assert torch.allclose(got, expected, atol=atol, rtol=0), row
        assert torch.allclose(sampled.values[row, : len(response)], values, atol=atol, rtol=0)
        assert not sampled.logprobs[row, len(response) :].any()
        assert not sampled.values[row, len(response) :].any()
        assert not sampled.hidden[row, len(response) :].any()
        assert values.abs().max() > 1e-3  # the value head says something


@FAMILIES
def test_tokens_invert_the_distribution_of_a_full_forward(family: str, tied: bool) -> None:
    # Written again with numpy, one unpadded row at a time and without a cache.
    actor = tiny_actor(family, tied=tied, dtype=torch.float64)
    numbers = uniforms()
    sampled = drawn(actor, numbers=numbers, temperature=1.7)
    for row, prompt in enumerate(PROMPTS):
        written: list[int] = []
        while len(written) < WIDTH and END not in written:
            log_probs, _ = plain_scores(actor, prompt, [*written, 0], 1.7)
            cumulative = np.cumsum(log_probs[-1].exp().numpy())
            written.append(int((cumulative <= numbers[row, len(written)].item()).sum()))
        assert tokens(sampled, row) == written


def test_the_examples_hold_early_ends_and_cut_responses() -> None:
    lengths, ended = set(), set()
    for family in ("llama", "gpt2"):
        sampled = drawn(tiny_actor(family))
        for row in range(len(PROMPTS)):
            lengths.add(len(tokens(sampled, row)))
            ended.add(tokens(sampled, row)[-1] == END)
    assert ended == {True, False}
    assert len(lengths) >= 3 and WIDTH in lengths


@pytest.mark.case(12, 15)
@FAMILIES
@PRECISIONS
def test_a_row_alone_equals_the_same_row_in_a_ragged_batch(
    family: str, tied: bool, dtype: torch.dtype, atol: float
) -> None:
    actor, numbers = tiny_actor(family, tied=tied, dtype=dtype), uniforms()
    together = drawn(actor, numbers=numbers)
    for row, prompt in enumerate(PROMPTS):
        alone = drawn(actor, [prompt], numbers[row : row + 1], width=len(prompt))
        assert torch.equal(alone.response_ids[0], together.response_ids[row])
        for name in ("logprobs", "values", "hidden"):
            one, many = getattr(alone, name)[0], getattr(together, name)[row]
            assert torch.allclose(one, many, atol=atol, rtol=0), name


@FAMILIES
def test_tokens_are_the_same_across_chunkings_in_float64(family: str, tied: bool) -> None:
    actor = tiny_actor(family, tied=tied, dtype=torch.float64)
    prompts = [p for p in PROMPTS for _ in range(8)]
    numbers = uniforms(len(prompts), seed=11)
    whole = drawn(actor, prompts, numbers).response_ids
    for size in (1, 5, 17):
        parts = [
            drawn(actor, prompts[i : i + size], numbers[i : i + size]).response_ids
            for i in range(0, len(prompts), size)
        ]
        assert torch.equal(torch.cat(parts), whole)


def test_the_same_numbers_give_the_same_response_and_others_another() -> None:
    actor = tiny_actor()
    one, two, other = drawn(actor), drawn(actor), drawn(actor, numbers=uniforms(seed=4))
    for name in ("response_ids", "logprobs", "values", "hidden"):
        assert torch.equal(getattr(one, name), getattr(two, name))
    assert not torch.equal(one.response_ids, other.response_ids)


@pytest.mark.case(59)
def test_sampling_reads_no_global_generator() -> None:
    actor = tiny_actor()
    torch.manual_seed(0)
    one = drawn(actor).response_ids
    torch.manual_seed(1)
    before = torch.get_rng_state()
    two = drawn(actor).response_ids
    assert torch.equal(one, two)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.case(17)
def test_a_response_ends_with_the_first_of_several_end_tokens() -> None:
    # Every token ends: all responses have one token, and it is kept.
    sampled = sample(
        tiny_actor(), padded(PROMPTS, 5), uniforms(), end_ids=range(VOCABULARY), temperature=1.0
    )
    assert sampled.mask.sum(-1).tolist() == [1] * len(PROMPTS)
    assert sampled.response_ids.shape == (len(PROMPTS), WIDTH)
    assert sampled.hidden.shape == (len(PROMPTS), WIDTH, 16)


@pytest.mark.case(17)
def test_without_an_end_every_response_is_cut_at_the_limit() -> None:
    sampled = sample(tiny_actor(), padded(PROMPTS, 5), uniforms(), end_ids=(), temperature=1.0)
    assert bool(sampled.mask.all())


@pytest.mark.case(7, 9)
@FAMILIES
@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_the_ratio_is_one_before_an_update(family: str, tied: bool, temperature: float) -> None:
    actor = tiny_actor(family, tied=tied)
    prompts = padded(PROMPTS, 8)
    sampled = drawn(actor, temperature=temperature)
    scored = actor.score(prompts, sampled.response_ids, temperature)
    ratio = torch.exp(scored.logprobs - sampled.logprobs)
    assert (ratio - 1).abs().max() < 1e-5
    kl, clipped = ratio_statistics(scored.logprobs, sampled.logprobs, sampled.mask, clip_coef=1e-4)
    assert abs(kl.item()) < 1e-8 and clipped.item() == 0.0
    # Exactly the same when the same call scores twice.
    again = actor.score(prompts, sampled.response_ids, temperature)
    assert torch.equal(scored.logprobs, again.logprobs)


# measure


@pytest.mark.case(6)
@FAMILIES
@PRECISIONS
@pytest.mark.parametrize("temperature", [1.0, 1.7])
def test_measured_values_are_those_of_two_full_forwards(
    family: str, tied: bool, dtype: torch.dtype, atol: float, temperature: float
) -> None:
    actor = tiny_actor(family, tied=tied, dtype=dtype)
    reference = tiny_reference(family, tied=tied, dtype=dtype)
    sampled = drawn(actor, temperature=temperature)
    measured = measure(
        actor,
        reference,
        padded(PROMPTS, 8),
        sampled,
        temperature=temperature,
        keep_ref_hidden=True,
    )
    assert measured.ref_hidden is not None
    for row, prompt in enumerate(PROMPTS):
        response = tokens(sampled, row)
        n = len(response)
        own, _ = plain_scores(actor, prompt, response, temperature)
        ref, _ = plain_scores(reference, prompt, response, temperature)
        kl = (own.exp() * (own - ref)).sum(-1)
        entropy = -(own.exp() * own).sum(-1)
        near = {"atol": 10 * atol, "rtol": 0}
        assert torch.allclose(measured.kl[row, :n], kl, **near)
        assert torch.allclose(measured.entropy[row, :n], entropy, **near)
        assert torch.allclose(measured.ref_logprobs[row, :n], ref[range(n), response], **near)
        from_hidden = torch.log_softmax(
            reference.logits(measured.ref_hidden[row, :n]) / temperature, -1
        )
        assert torch.allclose(from_hidden, ref, **near)
        for name in ("kl", "entropy", "ref_logprobs", "ref_hidden"):
            assert not getattr(measured, name)[row, n:].any(), name
    assert measured.kl.max() > 0.1


def test_the_chunks_of_measure_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    actor, reference = tiny_actor(dtype=torch.float64), tiny_reference(dtype=torch.float64)
    sampled = drawn(actor)
    whole = measure(
        actor, reference, padded(PROMPTS, 8), sampled, temperature=1.0, keep_ref_hidden=True
    )
    monkeypatch.setattr("agents.sampling.CHUNK_ROWS", 2)
    parts = measure(
        actor, reference, padded(PROMPTS, 8), sampled, temperature=1.0, keep_ref_hidden=True
    )
    for name in ("kl", "entropy", "ref_logprobs", "ref_hidden"):
        assert torch.allclose(getattr(whole, name), getattr(parts, name), atol=1e-12, rtol=0)


def test_what_the_reference_says_is_kept_where_it_is_small(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    actor, reference = tiny_actor(dtype=torch.float64), tiny_reference(dtype=torch.float64)
    prompts, sampled = padded(PROMPTS, 8), drawn(actor)
    longest = int(sampled.mask.sum(1).max())
    kept = measure(actor, reference, prompts, sampled, temperature=1.3, keep_ref_hidden=True)
    assert kept.ref_hidden is not None and kept.ref_log_probs is not None
    expected = reference.log_probs(kept.ref_hidden[:, :longest], 1.3)
    mask = sampled.mask[:, :longest]
    assert torch.allclose(kept.ref_log_probs[mask], expected[mask], atol=1e-12, rtol=0)
    assert not kept.ref_log_probs[~mask].any()
    without = measure(actor, reference, prompts, sampled, temperature=1.3)
    assert without.ref_log_probs is None  # nobody will ask for it
    monkeypatch.setattr("agents.sampling.CHUNK_ROWS", 2)
    parts = measure(actor, reference, prompts, sampled, temperature=1.3, keep_ref_hidden=True)
    assert parts.ref_log_probs is None


@pytest.mark.case(2, 3)
@PRECISIONS
def test_the_kl_is_zero_when_the_policy_is_the_reference(dtype: torch.dtype, atol: float) -> None:
    actor = tiny_actor(dtype=dtype)
    sampled = drawn(actor)
    prompts = padded(PROMPTS, 8)
    measured = measure(actor, actor, prompts, sampled, temperature=1.0)
    # The policy's side comes from the cache, which rounds otherwise than the full forward.
    assert masked_sum(measured.kl, sampled.mask).max() < atol
    assert torch.allclose(measured.ref_logprobs, sampled.logprobs, atol=atol, rtol=0)
    assert measured.ref_hidden is None
    # From the same hidden states it is exactly zero.
    used = trim_left(prompts)
    hidden = actor.response_hidden(used, sampled.response_ids).detach()
    exact = Sampled(sampled.response_ids, sampled.logprobs, sampled.values, hidden)
    again = measure(actor, actor, prompts, exact, temperature=1.0)
    assert torch.equal(again.kl, torch.zeros_like(again.kl))


def test_trim_left_keeps_the_longest_row_whole() -> None:
    assert trim_left(padded([[1, 2], [3]], 5)).tolist() == [[1, 2], [-1, 3]]
    assert trim_left(padded([[], []], 3)).tolist() == [[-1], [-1]]
