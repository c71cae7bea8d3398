"""Tests of cory_env/schedule.py."""

from __future__ import annotations

import pytest

from cory_env.queries import QuerySource
from cory_env.records import Query
from cory_env.schedule import EpisodeSchedule

AGENTS = ("agent_0", "agent_1", "agent_2")
QUERIES = [Query(str(i)) for i in range(6)]


def schedule(role_schedule: str = "fixed", seed: int = 3) -> EpisodeSchedule:
    return EpisodeSchedule(QUERIES, AGENTS, role_schedule, seed)


def orders(made: EpisodeSchedule, n: int) -> list[tuple[str, ...]]:
    dealt = []
    for _ in range(n):
        dealt.append(made.deal()[1])
        made.played()
    return dealt


def test_queries_come_in_the_order_of_the_source() -> None:
    made = schedule()
    dealt = []
    for _ in range(6):
        dealt.append(made.deal()[0])
        made.played()
    assert dealt == QuerySource(QUERIES, 3).take(6)


def test_an_episode_that_nobody_played_is_dealt_again() -> None:
    for role_schedule in ("fixed", "alternate", "random"):
        made = schedule(role_schedule)
        assert made.deal() == made.deal()


def test_fixed_alternate_and_random_orders() -> None:
    a, b, c = AGENTS
    assert orders(schedule("fixed"), 3) == [(a, b, c)] * 3
    assert orders(schedule("alternate"), 4) == [(a, b, c), (b, c, a), (c, a, b), (a, b, c)]
    random = orders(schedule("random"), 60)
    assert len(set(random)) == 6  # all permutations
    assert random == orders(schedule("random"), 60)
    assert random != orders(schedule("random", seed=4), 60)


def test_without_queries_every_deal_is_given_one() -> None:
    made = EpisodeSchedule(None, AGENTS, "alternate", 3)
    with pytest.raises(ValueError, match=r"reset must name options\['query'\]"):
        made.deal()
    for turn in range(2):
        assert made.deal(QUERIES[turn]) == (QUERIES[turn], AGENTS[turn:] + AGENTS[:turn])
        made.played()
    with pytest.raises(ValueError, match="queries must hold at least one query"):
        EpisodeSchedule([], AGENTS, "fixed", 3)


def test_a_given_query_leaves_the_due_one_due_and_holds_for_one_episode() -> None:
    made, other = schedule(), Query("other")
    due = made.deal()[0]
    assert made.deal(query=other)[0] == other
    assert made.deal()[0] == other  # untouched: kept
    made.played()
    assert made.deal()[0] == due
    made.played()
    assert made.deal()[0] != due


def test_a_given_order_holds_for_one_episode() -> None:
    made = schedule("alternate")
    given = ("agent_2", "agent_1", "agent_0")
    assert made.deal(turn_order=given)[1] == given
    assert made.deal()[1] == given
    made.played()
    assert made.deal()[1] == ("agent_1", "agent_2", "agent_0")  # the schedule went on


def test_another_schedule_is_refused() -> None:
    with pytest.raises(ValueError, match="role_schedule must be one of"):
        schedule("sometimes")
