"""Ends, padding and cuts: masks come from lengths, and every token edge is where it should be."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agents.bridge.learner import trimmed
from agents.maths.returns import token_rewards
from agents.models import ActorCritic
from agents.rollout import Rollout
from cory_env import GameRules, cory_v0
from cory_env.tokens import response_ids
from tests.agents.learners.toy import END as TOY_END
from tests.agents.learners.toy import PROMPT, made_rollout, prepared_of, toy_learner, toy_rollout
from tests.agents.runs import lines, training_of
from tests.agents.tiny import END, padded, tiny_actor
from tests.cory_env.games import TOKEN

PROMPTS = [[1, 5], [1, 4, 3], [1], [1, 9, 9, 9]]
RESPONSES = [[], [END], [7], [7, END], [7, 7, END], [3, 4, 5], [END, END, END]]
"""Empty, ended at each place, cut at each place, and an end token that is just a token."""


def right_padded(rows: list[list[int]], width: int = 3) -> torch.Tensor:
    return torch.tensor([row + [-1] * (width - len(row)) for row in rows])


@pytest.mark.case(14, 15, 16)
@pytest.mark.parametrize("pad", [END, 3, None], ids=["pad is end", "another", "none"])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_scores_reach_exactly_to_the_last_token_of_each_response(
    family: str, pad: int | None
) -> None:
    actor = tiny_actor(family, dtype=torch.float64)
    actor.model.config.pad_token_id = pad
    n = len(RESPONSES)
    prompts = padded([PROMPTS[i % len(PROMPTS)] for i in range(n)], 5)
    scored = actor.score(prompts, right_padded(RESPONSES), 1.0)
    for row, response in enumerate(RESPONSES):
        got = scored.logprobs[row]
        assert bool((got[: len(response)] < 0).all()) and not got[len(response) :].any()
        for t in range(len(response)):  # another token here changes nothing before it
            other = [*response[:t], (response[t] + 1) % 11, *response[t + 1 :]]
            again = actor.score(prompts[row : row + 1], right_padded([other]), 1.0).logprobs[0]
            assert torch.allclose(again[:t], got[:t], atol=1e-12, rtol=0)
            assert (again[t] - got[t]).abs().item() > 1e-6


@pytest.mark.case(14, 16)
@pytest.mark.parametrize("lengths", [(2, 1), (1, 1), (2, 2), (0, 2)])
def test_the_gradient_of_the_loss_reaches_exactly_the_tokens(lengths: tuple[int, int]) -> None:
    ids = torch.tensor([[0, TOY_END], [1, TOY_END]])
    for row, length in enumerate(lengths):
        ids[row, length:] = -1
    learner = toy_learner(kl_estimator="k3", whiten="none", vf_coef=1.0, ent_coef=0.1)
    rollout = made_rollout(response_ids=ids)
    ones = torch.ones(2, 2, dtype=torch.float64)
    batch = prepared_of(rollout, ones, 2 * ones, 1.0)
    scored = learner.actor.score(batch.prompt_ids, ids, 1.0)
    leaves = {
        name: getattr(scored, name).detach().requires_grad_()
        for name in ("logprobs", "entropy", "values")
    }
    loss, _ = learner.loss(type(scored)(kl=scored.kl.detach(), **leaves), batch)
    loss.backward()
    for name, leaf in leaves.items():
        assert torch.equal(leaf.grad != 0, ids >= 0), name


@pytest.mark.case(16)
def test_the_end_token_is_learned_although_padding_has_its_id() -> None:
    # Who stops at once is paid 1, the others nothing.
    learner = toy_learner(kl_coef=0.0, learning_rate=1e-2, whiten="batch")
    learner.actor.model.config.pad_token_id = TOY_END
    responses = [[TOY_END], [0, TOY_END], [1, 1], [TOY_END], [0, 0], [1, TOY_END]]

    def stops() -> float:
        with torch.no_grad():
            one = learner.actor.score(torch.tensor([PROMPT]), torch.tensor([[TOY_END, -1]]), 1.0)
        return float(one.logprobs[0, 0])

    before = stops()
    learner.set_iteration(1, 1)
    rollout = toy_rollout(learner, responses, [1.0, 0.0, 0.0, 1.0, 0.0, 0.0])
    learner.update_from(learner.prepare(rollout), None, 4)
    assert stops() > before + 0.05


@pytest.mark.case(18)
def test_the_payoff_stands_on_the_last_real_token_of_every_response_of_a_run(
    tmp_path: Path,
) -> None:
    training = training_of(tmp_path / "run", iterations=1, batch_size=64, max_response_tokens=4)
    training.run()
    ended = set()
    for rollout in training.session.team.rollouts.values():
        payoffs = torch.arange(1.0, len(rollout) + 1)
        rewards = token_rewards(payoffs, torch.zeros_like(rollout.logprobs), rollout.mask)
        for row, ids in enumerate(rollout.response_ids.tolist()):
            tokens = [t for t in ids if t >= 0]
            ended.add(tokens[-1] == 2)
            where = torch.nonzero(rewards[row]).flatten().tolist()
            assert where == [len(tokens) - 1]
            assert rewards[row, where[0]] == payoffs[row]
    assert ended == {True, False}  # by an end token, and by the limit


@pytest.mark.case(18)
@pytest.mark.parametrize("ends", [(2,), (2, 8), (8, 9)])
def test_custom_end_tokens_end_a_response_and_carry_the_payoff(ends: tuple[int, ...]) -> None:
    action = [5, 8, 2, 9]
    first = min(action.index(end) for end in ends if end in action)
    kept = response_ids(action, ends)
    assert kept == tuple(action[: first + 1])
    ids = right_padded([list(kept)], 4)
    rewards = token_rewards(torch.tensor([3.0]), torch.zeros(1, 4), ids >= 0)
    assert rewards[0].tolist() == [3.0 if t == first else 0.0 for t in range(4)]


@pytest.mark.case(19)
@pytest.mark.parametrize("rest", [[-1, -1], [-1, 7], [5, 5], [2, 2], [0, 0]])
def test_what_follows_the_end_of_an_action_is_never_read(rest: list[int]) -> None:
    def played(tail: list[int]) -> tuple[Any, ...]:
        env = cory_v0.raw_env(max_response_tokens=4)
        env.reset(seed=3, options={"query": "a d"})
        env.step(np.array([TOKEN["a"], TOKEN["</s>"], *tail]))
        seen = env.observe("agent_1").tolist()
        env.step(np.array([TOKEN["b"], TOKEN["</s>"], *tail]))
        return seen, env.rewards, env.infos

    assert played(rest) == played([-1, -1])


@pytest.mark.case(21)
def test_cut_responses_are_kept_scored_and_paid_under_one_mask(tmp_path: Path) -> None:
    training = training_of(tmp_path / "run", iterations=1, max_response_tokens=1, batch_size=32)
    row = training.run().metrics[0]
    samples = lines(tmp_path / "run/samples.jsonl")
    for agent, rollout in training.session.team.rollouts.items():
        assert row[f"{agent}/truncated"] > 0.5  # an end token is one of twelve
        for name in ("logprobs", "entropy", "ref_logprobs"):
            assert torch.equal(getattr(rollout, name) != 0, rollout.mask), name
        assert row[f"{agent}/score"] == pytest.approx(
            np.mean([sample["scores"][agent] for sample in samples])
        )
        paid = [sample["rewards"][agent] for sample in samples]
        assert rollout.payoffs.tolist() == paid


SHORTER = [f.name for f in fields(Rollout) if f.name not in ("response_ids", "seat")]


@pytest.mark.case(26)
@pytest.mark.parametrize("name", SHORTER)
def test_a_record_of_another_length_is_refused_when_it_is_stored(name: str) -> None:
    right = made_rollout()
    with pytest.raises(ValueError, match=f"{name} must"):
        made_rollout(**{name: getattr(right, name)[:1]})
    by_agent = ("scores", "shares")  # as many columns as there are agents
    if getattr(right, name).ndim == 2 and name not in ("prompt_ids", *by_agent):
        with pytest.raises(ValueError, match=rf"{name} must be \[2, 2\], got \[2, 3\]"):
            made_rollout(**{name: torch.zeros(2, 3)})


@pytest.mark.case(12, 15)
def test_trimming_a_minibatch_moves_no_log_probability() -> None:
    actor: ActorCritic = tiny_actor(dtype=torch.float64)
    ids, prompts = right_padded([[7, END], [END]], 5), padded([[1, 5], [1]], 9)
    zeros = torch.zeros(2, 5, dtype=torch.float64)
    columns = ("logprobs", "values", "kl", "entropy", "ref_logprobs")
    rollout = Rollout(
        prompt_ids=prompts,
        response_ids=ids,
        ref_hidden=torch.zeros(2, 5, 16),
        payoffs=torch.ones(2),
        episode=torch.arange(2),
        seat=0,
        **dict.fromkeys(columns, zeros),
    )
    small = trimmed(prepared_of(rollout, zeros, zeros, 1.0))
    assert small.response_ids.shape == (2, 2) and small.prompt_ids.shape == (2, 2)
    one = actor.score(prompts, ids, 1.0).logprobs[:, :2]
    two = actor.score(small.prompt_ids, small.response_ids, 1.0).logprobs
    assert torch.allclose(one, two, atol=1e-12, rtol=0)


@pytest.mark.case(16)
def test_padding_of_an_observation_is_no_token() -> None:
    rules = GameRules.make("target")
    assert rules.observation_space.low.min() == -1
    assert rules.observation_space.high.max() == rules.tokenizer.vocab_size - 1
