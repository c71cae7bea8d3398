"""Tests of cory_env/records.py."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cory_env.records import EpisodeRecord, Query, Turn

TURN = Turn("agent_0", "pioneer", "a d |", 4, 0, "a", (6, 2), False, 1.0, 2.0)


def test_a_query_prints_as_its_text() -> None:
    assert str(Query("47 + 38", "85")) == "47 + 38"


def test_a_query_has_no_answer_and_no_metadata_by_default() -> None:
    assert (Query("x").answer, dict(Query("x").metadata)) == (None, {})


def test_a_query_with_metadata_can_be_a_key() -> None:
    assert {Query("x", metadata={"a": [1]}): 1}[Query("x", metadata={"a": [1]})] == 1


def test_records_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        TURN.score = 3.0  # type: ignore[misc]


def test_json_of_a_record_written_out_in_full() -> None:
    record = EpisodeRecord(Query("a d", "a", {"hidden": False}), (TURN,))
    assert json.loads(record.to_json()) == {
        "query": {"text": "a d", "answer": "a", "metadata": {"hidden": False}},
        "turns": [
            {
                "agent": "agent_0",
                "role": "pioneer",
                "prompt": "a d |",
                "prompt_tokens": 4,
                "dropped_tokens": 0,
                "response": "a",
                "response_ids": [6, 2],
                "truncated": False,
                "score": 1.0,
                "payoff": 2.0,
            }
        ],
    }


turns = st.builds(
    Turn,
    agent=st.text(),
    role=st.text(),
    prompt=st.text(),
    prompt_tokens=st.integers(0, 99),
    dropped_tokens=st.integers(0, 99),
    response=st.text(),
    response_ids=st.lists(st.integers(0, 50000)).map(tuple),
    truncated=st.booleans(),
    score=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    payoff=st.none() | st.floats(allow_nan=False, allow_infinity=False),
)
queries = st.builds(
    Query,
    st.text(),
    st.none() | st.text(),
    st.dictionaries(st.text(), st.none() | st.integers() | st.lists(st.text())),
)


@given(st.builds(EpisodeRecord, queries, st.lists(turns, max_size=3).map(tuple)))
def test_json_round_trip_on_one_line(record: EpisodeRecord) -> None:
    line = record.to_json()
    assert "\n" not in line
    assert EpisodeRecord.from_json(line) == record
