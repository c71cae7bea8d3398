"""Tests of agents/bridge: vector environment, policies, rollouts, team."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tianshou.data import Batch

from agents.bridge.policy import ResponsePolicy, Said
from agents.bridge.records import NUMBERS
from agents.bridge.team import Team
from agents.bridge.vector_env import ResponseVectorEnv
from agents.maths.masking import masked_sum
from agents.rollout import Rollout
from agents.session import Session
from agents.streams import response_uniforms
from agents.train import Training
from cory_env import GameRules, Query
from cory_env.runner import LockStepRunner
from tests.agents.learners.toy import made_rollout
from tests.agents.runs import session_of, training_of


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Training:
    """Three iterations, so that the order is exchanged: agent_1 is the pioneer of the third."""
    training = training_of(tmp_path_factory.mktemp("team") / "run", iterations=3)
    training.run()
    return training


def test_rollouts_know_the_seat_in_which_the_agent_acted(trained: Training) -> None:
    rollouts = trained.session.team.rollouts
    assert {agent: r.seat for agent, r in rollouts.items()} == {"agent_0": 1, "agent_1": 0}


def test_three_agents_have_three_seats(tmp_path: Path) -> None:
    training = training_of(tmp_path / "run", iterations=1, n_agents=3, batch_size=6)
    training.run()
    assert [r.seat for r in training.session.team.rollouts.values()] == [0, 1, 2]


@pytest.mark.case(25)
def test_rollouts_are_the_records_of_the_same_episodes(trained: Training) -> None:
    session = trained.session
    records = session.env.records()
    for agent, rollout in session.team.rollouts.items():
        assert rollout.episode.tolist() == list(range(len(records)))
        for row, record in enumerate(records):
            turn = next(t for t in record.turns if t.agent == agent)
            ids = [t for t in rollout.response_ids[row].tolist() if t >= 0]
            prompt = [t for t in rollout.prompt_ids[row].tolist() if t >= 0]
            assert tuple(ids) == turn.response_ids
            assert len(prompt) == turn.prompt_tokens
            assert session.rules.tokenizer.encode_prompt(turn.prompt) == prompt
            assert rollout.payoffs[row].item() == turn.payoff


@pytest.mark.case(31)
def test_recorded_log_probs_belong_to_the_recorded_tokens() -> None:
    session = session_of()
    batch = played(session)
    for column, (agent, learner) in enumerate(session.learners.items()):
        rows = batch[np.flatnonzero(batch.obs.agent_id == agent)]
        rollout = learner.rollout(rows, column)
        scored = learner.actor.score(rollout.prompt_ids, rollout.response_ids, 1.0)
        assert torch.allclose(scored.logprobs, rollout.logprobs, atol=1e-5)
        assert rollout.kl.max() < 1e-6  # the policy is still the reference
        assert torch.allclose(rollout.ref_logprobs, rollout.logprobs, atol=1e-5)


def played(session: Session) -> Batch:
    """One batch of episodes through the stock Collector, as the trainer has it."""
    from tianshou.data import Collector, VectorReplayBuffer

    from agents.bridge.credit import CreditHook

    n, agents = len(session.env), session.env.agents
    buffer = VectorReplayBuffer(n * len(agents), n)
    hook = CreditHook(agents)
    collector = Collector(session.team, session.env, buffer, on_episode_done_hook=hook)
    session.begin(1)
    collector.reset()
    collector.collect(n_episode=n)
    batch, _ = buffer.sample(0)
    return batch


@pytest.mark.case(52)
def test_each_row_is_drawn_from_its_own_stream() -> None:
    session = session_of()
    batch = played(session)
    for agent, seat in (("agent_0", 0), ("agent_1", 1)):
        rows = batch[np.flatnonzero(batch.obs.agent_id == agent)]
        rollout = session.learners[agent].rollout(rows, seat)
        episode = 2
        numbers = response_uniforms(0, f"response/{seat}", 1, [episode], 3)
        prompt = np.asarray(rollout.prompt_ids[episode : episode + 1])
        sampled, _ = session.learners[agent].policy.respond(prompt, numbers)
        assert sampled.response_ids[0].tolist() == rollout.response_ids[episode].tolist()


# KL of the team.


def rollouts(seats: dict[str, int]) -> dict[str, Rollout]:
    """KL of a response: .6 and .6 for agent_0, ten times that for agent_1, and so on."""
    base = made_rollout()
    return {
        agent: replace(base, kl=base.kl * 10**place, seat=seat)
        for place, (agent, seat) in enumerate(seats.items())
    }


def team_of(kl_scope: str, n: int = 2) -> Team:
    session = session_of(kl_scope=kl_scope, n_agents=n, batch_size=2 * n, kl_coef=0.5)
    return session.team


def test_team_kl_charges_those_who_act_later_and_only_those() -> None:
    team = team_of("team")
    charged = team._with_later_kl(rollouts({"agent_0": 0, "agent_1": 1}))
    # agent_1's KL of 6 nats at weight 0.5 costs agent_0 3; agent_1 pays nothing for agent_0.
    assert charged["agent_0"].payoffs.tolist() == pytest.approx([1 - 3.0, 3 - 3.0])
    assert charged["agent_1"].payoffs.tolist() == [1.0, 3.0]
    # After an exchange it is the other way round: 0.6 nats.
    charged = team._with_later_kl(rollouts({"agent_0": 1, "agent_1": 0}))
    assert charged["agent_0"].payoffs.tolist() == [1.0, 3.0]
    assert charged["agent_1"].payoffs.tolist() == pytest.approx([1 - 0.3, 3 - 0.3])


def test_team_kl_of_three() -> None:
    team = team_of("team", 3)
    team.learners["agent_2"].kl_controller.coef = 0.25  # its own weight, not the payer's
    charged = team._with_later_kl(rollouts({"agent_0": 0, "agent_1": 1, "agent_2": 2}))
    # 6 * .5 + 60 * .25 = 18 for the first, 15 for the second.
    assert charged["agent_0"].payoffs.tolist() == pytest.approx([1 - 18.0, 3 - 18.0])
    assert charged["agent_1"].payoffs.tolist() == pytest.approx([1 - 15.0, 3 - 15.0])
    assert charged["agent_2"].payoffs.tolist() == [1.0, 3.0]


@pytest.mark.parametrize("kl_scope", ["own", "team"])
def test_the_scope_reaches_the_advantages_of_a_run(kl_scope: str) -> None:
    session = session_of(kl_scope=kl_scope, kl_coef=0.5, whiten="none", gae_lambda=1.0)
    batch = played(session)
    # Policies are the references at first: give the observer a KL to be charged.
    observer = np.flatnonzero(batch.obs.agent_id == "agent_1")
    batch.policy["numbers"][observer, NUMBERS.index("kl")] = 2.0
    paid = session.team._preprocess_batch(batch, None, np.arange(len(batch)))
    lengths = masked_sum(torch.ones(4, 3), session.team.rollouts["agent_1"].mask).double()
    plain = session.team.rollouts["agent_0"].payoffs
    expected = plain - (0.5 * 2.0 * lengths if kl_scope == "team" else 0.0)
    first = paid["agent_0"].returns[:, 0].double()
    assert torch.allclose(first, expected, atol=1e-5)
    # What is logged is what was paid, without the charge.
    assert torch.equal(session.team.rollouts["agent_0"].payoffs, plain)


def test_the_controllers_move_by_each_agents_own_kl(tmp_path: Path) -> None:
    training = training_of(
        tmp_path / "run", iterations=2, kl_target=0.5, kl_horizon=100, kl_coef=0.5
    )
    training.run()
    rows = training.folder.metrics()
    for agent, learner in training.session.learners.items():
        coef = 0.5
        for row in rows:
            error = min(max(row[f"{agent}/kl"] / 0.5 - 1, -0.2), 0.2)
            coef *= 1 + error * 4 / 100  # 4 responses of each agent an iteration
        assert learner.kl_controller.coef == pytest.approx(coef)


# The vector environment.


def env_of(n: int = 3, **settings: Any) -> ResponseVectorEnv:
    return ResponseVectorEnv(LockStepRunner(GameRules.make("target", **settings)), n)


THREE = [Query("a b", answer="a"), Query("b c", answer="b"), Query("c d", answer="c")]
SAY_A = np.array([6, 2, -1])  # "a" and the end


@pytest.mark.case("P9")
def test_a_reset_uses_up_no_query_and_keeps_the_order() -> None:
    env = env_of()
    env.begin(THREE, ["agent_1", "agent_0"])
    obs, _ = env.reset()
    again, infos = env.reset([2, 0])
    assert np.array_equal(np.asarray(again.obs), np.asarray(obs.obs)[[2, 0]])
    assert list(again.agent_id) == ["agent_1", "agent_1"]
    assert [i["episode"] for i in infos] == [2, 0]


@pytest.mark.case(56)
def test_rewards_are_columns_of_agents_and_one_call_scores_all() -> None:
    calls: list[int] = []

    def reward(queries: Any, responses: Any) -> list[float]:
        calls.append(len(responses))
        return [float(q.answer == r.split()[0]) for q, r in zip(queries, responses, strict=True)]

    env = env_of(reward=reward, reward_mixing=[[1, 10], [100, 1000]])
    env.begin(THREE, ["agent_1", "agent_0"])
    env.reset()
    _, rewards, ended, cut, _ = env.step(np.stack([SAY_A] * 3), [0, 1, 2])
    assert not rewards.any() and not ended.any() and calls == []
    say_b = np.array([7, 2, -1])
    _, rewards, ended, cut, _ = env.step(np.stack([say_b] * 3), [0, 1, 2])
    # Query a: the pioneer (agent_1) is right: seat 0 gets 1, seat 1 gets 100. Query b: the
    # observer (agent_0): 10 and 1000. Query c: nobody.
    assert rewards.tolist() == [[100, 1], [1000, 10], [0, 0]]
    assert ended.all() and not cut.any()
    assert calls == [6]


def test_records_of_an_unfinished_batch_are_refused() -> None:
    env = env_of()
    env.begin(THREE, ["agent_0", "agent_1"])
    env.reset()
    with pytest.raises(RuntimeError, match="before every episode"):
        env.records()


def test_a_batch_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="queries must be 3, got 2"):
        env_of().begin(THREE[:2], ["agent_0", "agent_1"])


@pytest.mark.case("P9")
def test_the_collectors_last_reset_leaves_the_records(trained: Training) -> None:
    # The Collector has reset every environment after the last episode; the records are still there.
    env = trained.session.env
    assert all(not episode.over for episode in env.runner.episodes)
    assert len(env.records()) == len(env)


# Determinism of the whole.


def test_a_run_does_not_read_the_global_generators(tmp_path: Path) -> None:
    torch.manual_seed(1)
    np.random.seed(1)
    one = training_of(tmp_path / "one", iterations=1)
    one.run()
    torch.manual_seed(2)
    np.random.seed(2)
    two = training_of(tmp_path / "two", iterations=1)
    two.run()
    for a, b in zip(one.folder.metrics(), two.folder.metrics(), strict=True):
        assert {**a, "seconds": 0} == {**b, "seconds": 0}


def test_what_a_reference_said_is_given_once_and_only_about_the_same_episodes(
    tmp_path: Path,
) -> None:
    training = training_of(tmp_path / "run", iterations=2, update_epochs=2)
    training.trainer.run_iteration()
    policy = training.session.team.policy.policies["agent_0"]
    assert policy.said is None  # the update has taken it
    said = Said(3, np.array([0, 2]), torch.zeros(2, 1, 1))
    for iteration, episodes in ((4, [0, 2]), (3, [0, 1]), (3, [0, 2, 3])):
        policy.said = said
        assert policy.take_said(iteration, np.array(episodes)) is None
    policy.said = said
    assert policy.take_said(3, np.array([0, 2])) is said.log_probs
    assert policy.take_said(3, np.array([0, 2])) is None


def test_an_update_is_the_same_whether_the_reference_was_kept_or_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = []
    for name in ("kept", "asked"):
        if name == "asked":
            monkeypatch.setattr(ResponsePolicy, "take_said", lambda *_: None)
        training = training_of(tmp_path / name, iterations=2, update_epochs=2)
        training.trainer.run_iteration()
        training.trainer.run_iteration()
        actor = training.session.learners["agent_1"].actor
        weights.append(torch.cat([p.detach().flatten() for p in actor.parameters()]))
    assert torch.allclose(*weights, atol=1e-7, rtol=0)
