"""Tests of agents/evaluation.py, players.py and metrics.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import agents.evaluation
from agents.evaluation import (
    evaluate_alone,
    evaluate_as_observer,
    evaluation_queries,
    hidden_score,
)
from agents.maths.diversity import distinct_n
from agents.metrics import Counters
from agents.players import play
from agents.sampling import Measured, Sampled
from agents.session import Session
from cory_env import Query, make_task
from cory_env.records import EpisodeRecord, Turn
from cory_env.tasks.target import VOCABULARY
from tests.agents.runs import session_of

TOKEN = {word: token for token, word in enumerate(VOCABULARY)}


class Copier:
    """Says the first letter of what is asked, and the end; its KL is 0.5 a token."""

    def respond(
        self, prompts: NDArray[np.int64], uniforms: NDArray[np.float64]
    ) -> tuple[Sampled, Measured]:
        n, width = uniforms.shape
        response = torch.full((n, width), -1, dtype=torch.int64)
        for row, prompt in enumerate(prompts):
            response[row, 0] = int(prompt[prompt >= 0][1])
            response[row, 1] = TOKEN["</s>"]
        zeros = torch.zeros(n, width)
        kl = torch.full((n, width), 0.5).masked_fill(response < 0, 0.0)
        sampled = Sampled(response, zeros, zeros, zeros.unsqueeze(-1))
        return sampled, Measured(zeros, kl, zeros, None)


class Rambler(Copier):
    """Says `b b b`, without an end."""

    def respond(
        self, prompts: NDArray[np.int64], uniforms: NDArray[np.float64]
    ) -> tuple[Sampled, Measured]:
        sampled, measured = super().respond(prompts, uniforms)
        response = torch.full_like(sampled.response_ids, TOKEN["b"])
        return replace(sampled, response_ids=response), replace(
            measured, kl=torch.ones_like(measured.kl)
        )


@pytest.fixture(scope="module")
def session() -> Session:
    return session_of(eval_queries=20)


QUERIES = [Query("a b", answer="a"), Query("b c", answer="b"), Query("a a", answer="a")]


def test_known_answers_alone(session: Session) -> None:
    good = evaluate_alone(session.alone_runner, Copier(), QUERIES).evaluation
    assert good.score == 1.0
    assert good.kl == 1.0  # two tokens of 0.5
    assert good.response_tokens == 2.0 and good.truncated == 0.0
    assert good.distinct_2 == pytest.approx(2 / 3)  # (a end) (b end) (a end)
    assert good.hidden_score is None
    bad = evaluate_alone(session.alone_runner, Rambler(), QUERIES).evaluation
    assert bad.score == pytest.approx(1 / 3)
    assert bad.kl == 3.0
    assert bad.truncated == 1.0 and bad.response_tokens == 3.0
    assert bad.distinct_2 == pytest.approx(1 / 6)


def test_alone_means_the_query_only_prompt(session: Session) -> None:
    evaluated = evaluate_alone(session.alone_runner, Copier(), QUERIES)
    assert [r.turns[0].prompt for r in evaluated.records] == ["a b |", "b c |", "a a |"]
    assert all(len(r.turns) == 1 for r in evaluated.records)


@pytest.mark.parametrize(("agent", "score"), [("agent_0", 1.0), ("agent_1", 1 / 3)])
def test_as_observer_the_agent_sits_last_and_only_it_is_judged(
    agent: str, score: float, session: Session
) -> None:
    players = {"agent_0": Copier(), "agent_1": Rambler()}
    evaluated = evaluate_as_observer(session.evaluation_runner, players, agent, QUERIES)
    assert evaluated.evaluation.score == pytest.approx(score)
    for record in evaluated.records:
        assert [t.role for t in record.turns] == ["pioneer", "observer"]
        assert record.turns[-1].agent == agent
        assert record.turns[0].response in record.turns[1].prompt


def test_evaluation_is_the_same_every_time_and_in_any_chunks(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    player = session.evaluators["agent_0"]
    whole = evaluate_alone(session.alone_runner, player, session.evaluation_queries)
    assert evaluate_alone(session.alone_runner, player, session.evaluation_queries) == whole
    monkeypatch.setattr(agents.evaluation, "CHUNK_EPISODES", 7)
    parts = evaluate_alone(session.alone_runner, player, session.evaluation_queries)
    assert parts.records == whole.records
    assert parts.evaluation.kl == pytest.approx(whole.evaluation.kl, abs=1e-6)


def test_a_remainder_of_one_episode_is_never_left() -> None:
    # 257 queries in chunks of 256 would leave one, which cannot be permuted.
    parts = list(agents.evaluation._chunks([Query("a b")] * 257))
    assert [len(p) for _, p in parts] == [128, 129] or [len(p) for _, p in parts] == [129, 128]
    assert [first for first, _ in parts] == [0, len(parts[0][1])]


def test_evaluation_does_not_depend_on_the_seed_of_the_run(session: Session) -> None:
    other = session_of(seed=5, eval_queries=20)
    assert other.evaluation_queries == session.evaluation_queries
    # The weights come from the run's seed, the numbers that draw do not.
    player = session.evaluators["agent_0"]
    one = evaluate_alone(session.alone_runner, player, session.evaluation_queries)
    two = evaluate_alone(other.alone_runner, player, other.evaluation_queries)
    assert one.records == two.records


def test_evaluation_is_at_temperature_one_whatever_the_training() -> None:
    hot, plain = session_of(temperature=5.0), session_of()
    results = [
        evaluate_alone(s.alone_runner, s.evaluators["agent_0"], s.evaluation_queries).records
        for s in (hot, plain)
    ]
    assert results[0] == results[1]


def test_evaluation_queries_are_held_out_and_the_first_of_more() -> None:
    task = make_task("target")
    few, many = evaluation_queries(task, "validation", 5), evaluation_queries(task, "validation", 9)
    assert many[:5] == few
    everything = evaluation_queries(task, "validation", 10**6)
    assert sorted(q.metadata["index"] for q in everything) == list(
        range(len(task.queries("validation")))
    )


def test_hidden_score_is_by_the_second_scorer() -> None:
    task = make_task("target")
    turn = Turn("agent_0", "pioneer", "a b |", 4, 0, "x", (5,), False, 0.0, 0.0)
    records = [EpisodeRecord(Query("a b"), (replace(turn, response=r),)) for r in ("a", "bbb")]
    assert hidden_score(task, records) is None
    task.hidden_reward = lambda queries, responses: [float(len(r)) for r in responses]
    assert hidden_score(task, records) == 2.0


def test_play_numbers_its_episodes_so_that_parts_draw_the_same(session: Session) -> None:
    players: dict[str, Any] = dict(session.evaluators)
    runner, order = session.evaluation_runner, ("agent_1", "agent_0")
    options: dict[str, Any] = {"seed": 3, "stream_name": "x"}
    whole = play(runner, players, session.evaluation_queries[:6], order, **options).records
    first = play(runner, players, session.evaluation_queries[:4], order, **options).records
    rest = play(
        runner, players, session.evaluation_queries[4:6], order, first_episode=4, **options
    ).records
    assert first + rest == whole
    assert [t.agent for t in whole[0].turns] == list(order)


def test_counters_count() -> None:
    turn = Turn("agent_0", "pioneer", "a b |", 4, 0, "x", (5, 2), False, 0.0, 0.0)
    records = [EpisodeRecord(Query("a b"), (turn, replace(turn, response_ids=(5,))))] * 3
    counters = Counters()
    for _ in range(2):
        counters.add(records, 4, 0.5)
    assert counters == Counters(6, 2 * 3 * 3, 12, 8, 1.0)


def test_distinct_2_of_an_evaluation_is_pooled(session: Session) -> None:
    player = session.evaluators["agent_0"]
    evaluated = evaluate_alone(session.alone_runner, player, session.evaluation_queries)
    pooled = distinct_n([r.turns[-1].response_ids for r in evaluated.records])
    assert evaluated.evaluation.distinct_2 == pooled
