"""Tests of agents/maths/returns.py."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agents.maths.returns import chained_gae, gae, to_go, token_rewards


def mask_of(*lengths: int, width: int = 3) -> torch.Tensor:
    return torch.arange(width).unsqueeze(0) < torch.tensor(lengths).unsqueeze(1)


@pytest.mark.case(18, 43)
def test_the_payoff_goes_to_the_last_token() -> None:
    # Ended after 2, cut at 3, one token, none: payoffs 1, 2, 3, 4; penalty 0.5 a token.
    mask = mask_of(2, 3, 1, 0)
    rewards = token_rewards(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.full((4, 3), 0.5), mask)
    assert rewards.tolist() == [
        [-0.5, 0.5, 0.0],
        [-0.5, -0.5, 1.5],
        [2.5, 0.0, 0.0],
        [0.0, 0.0, 0.0],
    ]


def test_penalties_are_not_changed_in_place() -> None:
    penalties = torch.full((1, 3), 0.5)
    token_rewards(torch.tensor([1.0]), penalties, mask_of(3))
    assert penalties.tolist() == [[0.5, 0.5, 0.5]]


def test_payoffs_may_have_another_precision() -> None:
    rewards = token_rewards(torch.tensor([1.0]).double(), torch.zeros(1, 2), mask_of(2, width=2))
    assert rewards.dtype == torch.float32
    assert rewards.tolist() == [[0.0, 1.0]]


def test_gae_of_a_constant_value_and_one_final_reward() -> None:
    # V = 0.5 everywhere, reward 1 at the end, gamma 1, lambda 0.5.
    # delta_2 = 1 - 0.5 = 0.5; delta_1 = delta_0 = 0: A = 0.125, 0.25, 0.5 and R = A + V.
    rewards, values = torch.tensor([[0.0, 0.0, 1.0]]), torch.full((1, 3), 0.5)
    advantages, returns = gae(rewards, values, mask_of(3), gamma=1.0, gae_lambda=0.5)
    assert advantages.tolist() == [[0.125, 0.25, 0.5]]
    assert returns.tolist() == [[0.625, 0.75, 1.0]]


def test_gae_with_a_discount_by_hand() -> None:
    # gamma 0.5, lambda 1, V = (1, 2): delta_1 = 4 - 2 = 2; delta_0 = 0 + .5 * 2 - 1 = 0;
    # A_0 = 0 + .5 * 2 = 1, which is .5 * 4 - 1.
    rewards, values = torch.tensor([[0.0, 4.0]]), torch.tensor([[1.0, 2.0]])
    advantages, returns = gae(rewards, values, mask_of(2, width=2), gamma=0.5, gae_lambda=1.0)
    assert advantages.tolist() == [[1.0, 2.0]]
    assert returns.tolist() == [[2.0, 4.0]]


@pytest.mark.case(43)
def test_gamma_zero_sees_only_its_own_reward() -> None:
    rewards, values = torch.tensor([[3.0, 5.0, 7.0]]), torch.tensor([[1.0, 1.0, 2.0]])
    advantages, returns = gae(rewards, values, mask_of(3), gamma=0.0, gae_lambda=0.95)
    assert advantages.tolist() == [[2.0, 4.0, 5.0]]
    assert returns.tolist() == [[3.0, 5.0, 7.0]]


def test_lambda_one_and_gamma_one_give_the_reward_to_go() -> None:
    rewards = torch.tensor([[1.0, -2.0, 4.0]])
    values = torch.tensor([[0.3, -7.0, 2.0]])
    advantages, returns = gae(rewards, values, mask_of(3), gamma=1.0, gae_lambda=1.0)
    assert returns[0].tolist() == pytest.approx([3.0, 2.0, 4.0])
    assert advantages[0].tolist() == pytest.approx([2.7, 9.0, 2.0])


@pytest.mark.case(18, 43)
def test_the_value_after_a_cut_response_is_zero_too() -> None:
    # A response cut at the limit is terminated: no bootstrapping from its last value.
    advantages, _ = gae(
        torch.tensor([[0.0]]), torch.tensor([[0.7]]), mask_of(1, width=1), gamma=1.0, gae_lambda=1.0
    )
    assert advantages.item() == pytest.approx(-0.7)


def test_no_columns_and_no_rows_are_fine() -> None:
    empty = torch.zeros(2, 0)
    advantages, returns = gae(empty, empty, empty.bool(), gamma=1.0, gae_lambda=1.0)
    assert advantages.shape == returns.shape == (2, 0)


@pytest.mark.case(43)
@given(
    seed=st.integers(0, 10**6),
    gamma=st.floats(0, 1),
    gae_lambda=st.floats(0, 1),
    pad=st.floats(-1e6, 1e6),
)
def test_padding_is_ignored_and_rows_stand_for_themselves(
    seed: int, gamma: float, gae_lambda: float, pad: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 6, (4,), generator=generator).tolist()
    mask = mask_of(*lengths, width=5)
    rewards = torch.randn(4, 5, generator=generator, dtype=torch.float64)
    values = torch.randn(4, 5, generator=generator, dtype=torch.float64)
    options = {"gamma": gamma, "gae_lambda": gae_lambda}
    advantages, returns = gae(rewards, values, mask, **options)
    padded = gae(rewards.masked_fill(~mask, pad), values.masked_fill(~mask, pad), mask, **options)
    assert torch.equal(advantages, padded[0])
    assert torch.equal(returns, padded[1])
    assert torch.equal(advantages[~mask], torch.zeros_like(advantages[~mask]))
    for row, length in enumerate(lengths):  # the same as without its padding
        alone, _ = gae(
            rewards[row : row + 1, :length],
            values[row : row + 1, :length],
            mask[row : row + 1, :length],
            **options,
        )
        assert torch.equal(advantages[row, :length], alone[0])


@pytest.mark.case(43)
@given(seed=st.integers(0, 10**6))
def test_rewards_sum_to_payoff_minus_penalties(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    mask = mask_of(*torch.randint(1, 6, (4,), generator=generator).tolist(), width=5)
    penalties = torch.rand(4, 5, generator=generator, dtype=torch.float64)
    payoffs = torch.randn(4, generator=generator, dtype=torch.float64)
    rewards = token_rewards(payoffs, penalties, mask)
    expected = payoffs - penalties.masked_fill(~mask, 0.0).sum(-1)
    assert torch.allclose(rewards.sum(-1), expected, atol=1e-12)


def test_shapes_that_would_broadcast_are_refused() -> None:
    with pytest.raises(ValueError, match="share one shape"):
        gae(torch.zeros(2, 3), torch.zeros(1, 3), mask_of(3), gamma=1.0, gae_lambda=1.0)
    with pytest.raises(ValueError, match="share one shape"):
        token_rewards(torch.zeros(2), torch.zeros(2, 3), mask_of(3))


# Costs to go, and one stream over several turns.


def test_to_go_by_hand() -> None:
    values = torch.tensor([[1.0, 2.0, 4.0], [3.0, 99.0, 99.0]])
    mask = torch.tensor([[True, True, True], [True, False, False]])
    assert to_go(values, mask).tolist() == [[7.0, 6.0, 4.0], [3.0, 0.0, 0.0]]


def _two_turns() -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    """One episode: the pioneer's two tokens, then the observer's two; padding in between."""
    rewards = [torch.tensor([[0.0, 1.0, 0.0]]), torch.tensor([[0.0, 2.0, 0.0]])]
    values = [torch.tensor([[0.5, 0.25, 7.0]]), torch.tensor([[0.75, 1.5, 7.0]])]
    mask = torch.tensor([[True, True, False]])
    return rewards, values, [mask, mask]


def test_the_chain_by_hand() -> None:
    # gamma 1, lambda 1/2, lambda_turn 1/4.
    # Observer: delta_3 = 2 - 1.5 = .5; delta_2 = 1.5 - .75 = .75; A_3 = .5, A_2 = .75 + .25 = 1.
    # Pioneer: delta_1 = 1 + .75 - .25 = 1.5; A_1 = 1.5 + 1/4 * 1 = 1.75;
    #          delta_0 = .25 - .5 = -.25; A_0 = -.25 + 1/2 * 1.75 = .625.
    found = chained_gae(*_two_turns(), gamma=1.0, gae_lambda=0.5, lambda_turn=0.25)
    assert found[0][0].tolist() == [[0.625, 1.75, 0.0]]
    assert found[1][0].tolist() == [[1.0, 0.5, 0.0]]
    assert found[0][1].tolist() == [[1.125, 2.0, 0.0]]  # plus the values
    assert found[1][1].tolist() == [[1.75, 2.0, 0.0]]


def test_without_trace_over_the_boundary_the_critic_stands_for_the_observer() -> None:
    found = chained_gae(*_two_turns(), gamma=1.0, gae_lambda=1.0, lambda_turn=0.0)
    # Return of the pioneer: its own 1 and V at the observer's first token, .75.
    assert found[0][1].tolist() == [[1.75, 1.75, 0.0]]


def test_with_full_traces_the_chain_is_the_sum_of_all_rewards() -> None:
    found = chained_gae(*_two_turns(), gamma=1.0, gae_lambda=1.0, lambda_turn=1.0)
    assert found[0][1].tolist() == [[3.0, 3.0, 0.0]]
    assert found[1][1].tolist() == [[2.0, 2.0, 0.0]]


def test_the_chain_is_gae_over_the_tokens_without_the_padding() -> None:
    rewards, values, masks = _two_turns()
    settings = {"gamma": 0.9, "gae_lambda": 0.7}
    chain = chained_gae(rewards, values, masks, lambda_turn=0.7, **settings)
    joined = [torch.cat([part[:, :2] for part in parts], dim=1) for parts in (rewards, values)]
    whole, _ = gae(*joined, torch.ones(1, 4, dtype=torch.bool), **settings)
    got = torch.cat([advantages[:, :2] for advantages, _ in chain], dim=1)
    assert torch.allclose(got, whole)


def test_an_empty_turn_is_passed_over() -> None:
    rewards, values, masks = _two_turns()
    empty = torch.zeros(1, 3, dtype=torch.bool)
    settings = {"gamma": 0.9, "gae_lambda": 0.5, "lambda_turn": 0.25}
    two = chained_gae(rewards, values, masks, **settings)
    three = chained_gae(
        [rewards[0], rewards[0], rewards[1]],
        [values[0], values[0], values[1]],
        [masks[0], empty, masks[1]],
        **settings,
    )
    assert torch.equal(three[0][0], two[0][0])
    assert not three[1][0].any()
