"""Tests of agents/schedule.py, and of role exchange in runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agents.schedule import turn_order
from agents.train import Training, TrainResult
from tests.agents.runs import assert_same_tensors, learner_state, lines, training_of

PAIR = ("agent_0", "agent_1")


def test_two_agents_exchange_after_every_interval() -> None:
    # Interval 2: iterations 1 2 | 3 4 | 5 6.
    first = [turn_order(i, PAIR, 2)[0] for i in range(1, 8)]
    assert first == ["agent_0"] * 2 + ["agent_1"] * 2 + ["agent_0"] * 2 + ["agent_1"]


def test_three_agents_rotate_by_one() -> None:
    agents = ("agent_0", "agent_1", "agent_2")
    assert turn_order(1, agents, 1) == agents
    assert turn_order(2, agents, 1) == ("agent_1", "agent_2", "agent_0")
    assert turn_order(3, agents, 1) == ("agent_2", "agent_0", "agent_1")
    assert turn_order(4, agents, 1) == agents


def test_the_papers_interval_of_five() -> None:
    assert turn_order(5, PAIR, 5) == PAIR
    assert turn_order(6, PAIR, 5) == ("agent_1", "agent_0")
    assert turn_order(11, PAIR, 5) == PAIR


def test_without_an_interval_nothing_is_exchanged() -> None:
    assert {turn_order(i, PAIR, None) for i in range(1, 100)} == {PAIR}


@given(i=st.integers(1, 1000), n=st.integers(1, 5), interval=st.integers(1, 50))
def test_n_exchanges_restore_the_order(i: int, n: int, interval: int) -> None:
    agents = tuple(f"agent_{k}" for k in range(n))
    order = turn_order(i, agents, interval)
    assert sorted(order) == list(agents)
    assert turn_order(i + n * interval, agents, interval) == order


@pytest.mark.parametrize("iteration", [0, -1])
def test_iterations_begin_at_one(iteration: int) -> None:
    with pytest.raises(ValueError, match="iteration must be at least 1"):
        turn_order(iteration, PAIR, 5)


def test_an_interval_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="interval must be at least 1"):
        turn_order(1, PAIR, 0)


# In runs.


def pioneers(result: TrainResult) -> list[str]:
    """The first actor of each iteration, on which metrics and samples must agree."""
    found = []
    samples = lines(result.out / "samples.jsonl")
    for row in result.metrics:
        in_metrics = [a for a in PAIR if row[f"{a}/role"] == "pioneer"]
        here = [s["roles"] for s in samples if s["iteration"] == row["iteration"]]
        assert len(in_metrics) == 1
        assert all(roles[in_metrics[0]] == "pioneer" for roles in here)
        found.append(in_metrics[0])
    return found


def test_the_pioneer_of_every_iteration(cory_run: TrainResult) -> None:
    # Interval 2, four iterations: exchanged before iteration 3.
    assert pioneers(cory_run) == ["agent_0", "agent_0", "agent_1", "agent_1"]


def test_an_exchange_in_every_iteration(run_of: Callable[..., TrainResult]) -> None:
    run = run_of(iterations=3, role_exchange_interval=1)
    assert pioneers(run) == ["agent_0", "agent_1", "agent_0"]


@pytest.mark.parametrize("method", ["independent", "cory_no_exchange"])
def test_methods_without_exchange(method: str, run_of: Callable[..., TrainResult]) -> None:
    run = run_of(method=method, iterations=3, role_exchange_interval=1)
    assert pioneers(run) == ["agent_0"] * 3


def test_solo_is_always_the_pioneer(run_of: Callable[..., TrainResult]) -> None:
    run = run_of(method="solo", iterations=3, role_exchange_interval=1)
    assert [row["agent_0/role"] for row in run.metrics] == ["pioneer"] * 3


class Watching(Training):
    """Notes every tensor and the identity of every part around each collection."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.before: list[dict[str, torch.Tensor]] = []
        self.after: list[dict[str, torch.Tensor]] = []
        self.parts: list[list[int]] = []
        self.queries: list[str] = []
        begin, collect = self.trainer._begin, self.trainer._collect_training_data

        def watched_begin(iteration: int) -> None:
            self.before.append(learner_state(self.session))
            begin(iteration)

        def watched_collect() -> Any:
            stats = collect()
            self.after.append(learner_state(self.session))
            self.parts.append(self._identities())
            self.queries += [r.query.text for r in self.session.env.records()]
            return stats

        self.trainer._begin = watched_begin
        self.trainer._collect_training_data = watched_collect  # type: ignore[method-assign]

    def _identities(self) -> list[int]:
        return [
            id(part)
            for learner in self.session.learners.values()
            for part in (
                learner,
                learner.actor,
                learner.actor.model,
                learner.actor.value_head,
                learner.reference,
                learner.optim,
                learner.optim._optim,
                learner.kl_controller,
                *learner.actor.parameters(),
            )
        ]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Watching:
    folder = tmp_path_factory.mktemp("watched")
    data = folder / "pairs.txt"
    data.write_text("\n".join(f"{a} {b}" for a in "abcdef" for b in "abcdef"), encoding="utf-8")
    training = training_of(
        folder / "run", Watching, data=data, iterations=15, eval_interval=100, update_epochs=1
    )
    assert isinstance(training, Watching)
    training.run()
    return training


@pytest.mark.case(35)
def test_an_exchange_moves_no_number(watched: Watching) -> None:
    # Interval 2: iterations 3, 5, 7, ... (places 2, 4, 6, ...) begin with an exchange.
    for place in (2, 4, 6):
        assert "agent_0/optimizer/0/exp_avg" in watched.before[place]
        assert_same_tensors(watched.before[place], watched.after[place])
    # And the run has trained in between, so this is no comparison of constants.
    name = "agent_0/value_head.weight"
    assert not torch.equal(watched.after[2][name], watched.after[4][name])


@pytest.mark.case(35)
def test_an_exchange_rebuilds_no_part(watched: Watching) -> None:
    assert all(parts == watched.parts[0] for parts in watched.parts)


@pytest.mark.case("P9")
def test_each_training_query_once_a_pass_although_the_collector_resets_twice(
    watched: Watching,
) -> None:
    known = [q.text for q in watched.session.task.queries("train")]
    # 15 iterations of 4 queries: two whole passes, and batches that cross their boundary.
    assert 2 * len(known) <= len(watched.queries) == 60
    assert len(known) % 4 != 0
    for start in (0, len(known)):
        assert Counter(watched.queries[start : start + len(known)]) == Counter(known)
    assert watched.queries[: len(known)] != watched.queries[len(known) : 2 * len(known)]
    assert watched.session.queries.position == 60


def test_the_first_actor_of_each_collection_follows_the_schedule(watched: Watching) -> None:
    assert pioneers_of(watched) == [PAIR[((i - 1) // 2) % 2] for i in range(1, 16)]


def pioneers_of(training: Training) -> list[str]:
    rows = training.folder.metrics()
    return [next(a for a in PAIR if row[f"{a}/role"] == "pioneer") for row in rows]
