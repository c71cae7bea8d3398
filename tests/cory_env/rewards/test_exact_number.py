"""Tests of cory_env/rewards/exact_number.py."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cory_env.records import Query
from cory_env.rewards.exact_number import ExactNumber, extract_number


@pytest.mark.case(71)
@pytest.mark.parametrize(
    ("text", "number"),
    [
        (" 85", "85"),
        (" -12", "-12"),
        ("\u221212", "-12"),  # the typographic minus sign
        ("47 + 38 = 85.", "85"),
        ("The answer is 3.50.", "3.50"),
        ("It costs $1,234,567.89 in all.", "1234567.89"),
        ("-$5", "-5"),
        ("$-5", "-5"),
        ("about .5 of it", "0.5"),
        ("5 - 3", "3"),  # with a space it is an operator
        ("5-3", "3"),  # so it is after a digit
        ("GPT-4", "4"),
        ("x=-3", "-3"),
        ("1,2,3", "3"),  # a list, no thousands
        ("12,34", "34"),
        ("1,2345", "2345"),
        ("50%", "50"),
        ("007", "7"),
        ("We get 12, then 30.\n#### 42", "42"),
        ("#### 1 is wrong, #### 1,000 (see step 7)", "1000"),
        ("7 #### none", "7"),
        ("first 10 #### 20 or 30", "20"),
        ("9" * 60, "9" * 60),
        ("-" + "9" * 60, "-" + "9" * 60),
    ],
)
def test_extract_number_known_answers(text: str, number: str) -> None:
    assert extract_number(text) == Decimal(number)


@pytest.mark.parametrize("text", ["", "none", "####", "-", "$", ".", "\u0664\u0665", "\u00bd"])
def test_text_without_a_number_gives_none(text: str) -> None:
    assert extract_number(text) is None


@given(st.text())
def test_no_text_raises(text: str) -> None:
    number = extract_number(text)
    assert number is None or number.is_finite()


@given(st.integers(-(10**12), 10**12), st.text(alphabet="abc ,.#\n"))
def test_a_number_behind_any_words_is_found(number: int, before: str) -> None:
    assert extract_number(f"{before} {number}") == number
    assert extract_number(f"{before} {number:,}.") == number


@pytest.mark.case(71)
def test_scores_compare_by_value() -> None:
    queries = [Query("q", "85"), Query("q", "85"), Query("q", "85"), Query("q", "1,000")]
    responses = [" 85", " 85.0", " 58", " 1000"]
    assert ExactNumber()(queries, responses) == [1.0, 1.0, 0.0, 1.0]


def test_a_worked_solution_serves_as_the_answer() -> None:
    assert ExactNumber()([Query("q", "3 + 4 = 7\n#### 7")], ["It is 7."]) == [1.0]


def test_an_empty_response_scores_zero() -> None:
    assert ExactNumber()([Query("q", "0")], [""]) == [0.0]


@pytest.mark.parametrize("answer", [None, "unknown"])
def test_a_query_without_a_number_as_answer_is_refused(answer: str | None) -> None:
    with pytest.raises(ValueError, match="number as answer"):
        ExactNumber()([Query("how many?", answer)], ["3"])
