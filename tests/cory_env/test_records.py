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
                "parts": None,
            }
        ],
    }


def test_parts_of_a_weighted_score_are_kept() -> None:
    turn = dataclasses.replace(TURN, parts={"vader": 0.5, "my_reward:score": -1.0})
    record = EpisodeRecord(Query("a d"), (turn, TURN))
    assert record.to_dict()["turns"][0]["parts"] == {"vader": 0.5, "my_reward:score": -1.0}
    assert EpisodeRecord.from_json(record.to_json()) == record
    assert {turn: 1}[turn] == 1  # a turn can be a key, with parts too


def test_a_record_of_before_there_were_parts_is_read() -> None:
    data = EpisodeRecord(Query("a d"), (TURN,)).to_dict()
    del data["turns"][0]["parts"]
    assert EpisodeRecord.from_dict(data).turns == (TURN,)


@pytest.mark.parametrize("parts", [3, [1.0], {"a": "1"}, {"a": None}, {"a": True}, "a"])
def test_parts_that_are_no_numbers_by_name_are_refused(parts: object) -> None:
    data = EpisodeRecord(Query("a d"), (TURN,)).to_dict()
    data["turns"][0]["parts"] = parts
    with pytest.raises(ValueError, match=r"no record of an episode: parts must be numbers by name"):
        EpisodeRecord.from_dict(data)


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
    parts=st.none()
    | st.dictionaries(st.text(), st.floats(allow_nan=False, allow_infinity=False), max_size=2),
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


def test_a_query_is_shown_with_its_place() -> None:
    assert Query("how?").shown == "'how?'"
    assert Query("how?", None, {"line": 3}).shown == "'how?' (line 3)"
    place = {"row": 7, "split": "train", "file": "a.csv", "level": 1}
    assert Query("x" * 300, None, place).shown == f"'{'x' * 200}' (a.csv, split train, row 7)"
