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


def test_queries_are_checked_before_anybody_answers() -> None:
    good, bad = Query("q", "7"), Query("how many?", None, {"file": "my.csv", "line": 3})
    ExactNumber().check_queries([good, good])
    with pytest.raises(ValueError, match=r"got None for query 'how many\?' \(my.csv, line 3\)"):
        ExactNumber().check_queries([good, bad])


# Worked out by hand: what a careful reader would give as the answer of each text.
TABLE = [
    # Plain numbers, units, stops.
    ("18", "18"),
    (" 18.", "18"),
    ("She has 18 eggs left.", "18"),
    ("18 km", "18"),
    ("18km", "18"),
    ("It is 18 km/h.", "18"),
    ("25 cm2", "25"),
    ("25 m\u00b2", "25"),
    ("25 m^2", "25"),
    ("25 ft^{2}", "25"),
    ("18-inch", "18"),
    ("2nd", "2"),
    ("3x faster", "3"),
    ("18!", "18"),
    ("(18)", "18"),
    ("18...", "18"),
    ("So it is...18", "18"),
    ("He is done.18 apples are left", "18"),
    ("007", "7"),
    # Decimals.
    ("18.0", "18"),
    ("18.00 dollars.", "18"),
    (".5", "0.5"),
    ("0.50", "0.5"),
    ("1.5e3 grams", "1500"),
    ("2e-2", "0.02"),
    # Thousands.
    ("1,000", "1000"),
    ("1,234,567.", "1234567"),
    ("12,34,567 rupees", "1234567"),
    ("1\u202f000", "1000"),
    ("1\u00a0234\u00a0567", "1234567"),
    ("1'000", "1000"),
    ("1 000 000", "1000000"),
    ("1,2,3", "3"),
    # Signs.
    ("-5", "-5"),
    ("\u22125", "-5"),
    ("\u20135 degrees", "-5"),
    ("-1,234.50", "-1234.5"),
    ("The change is -$5.", "-5"),
    ("$-5", "-5"),
    ("-$ 5", "-5"),
    ("negative 5", "-5"),
    ("(-5)", "-5"),
    ("10 - 5", "5"),
    ("pages 3-5", "5"),
    # Currencies and percentages.
    ("$18", "18"),
    ("$ 18", "18"),
    ("18$", "18"),
    ("\u20ac18,50", "50"),  # a comma of no thousands separates two numbers
    ("\u00a31,000", "1000"),
    ("Rs. 500", "500"),
    ("USD25", "25"),
    ("18 dollars and nothing else", "18"),
    ("50%", "50"),
    ("50 percent", "50"),
    # Scales.
    ("2 million", "2000000"),
    ("$1.5 million dollars", "1500000"),
    ("3 hundred", "300"),
    ("2 hundred thousand", "200000"),
    ("$5k", "5000"),
    ("$3B", "3000000000"),
    ("a 5k run", "5"),
    # Fractions by their value.
    ("3/4", "0.75"),
    ("2 1/2 cups", "2.5"),
    ("6/3", "2"),
    ("-3/4", "-0.75"),
    ("in line 5\n1/2", "0.5"),
    # The mark of GSM8K.
    ("#### 42", "42"),
    ("####42", "42"),
    ("9 * 2 = 18\n#### 18", "18"),
    ("#### $1,000", "1000"),
    ("#### 18 (see step 7)", "18"),
    ("#### 1\n#### 2", "2"),
    ("#### 9 * 2 = 18", "18"),
    ("#### 18 = 9 * 2", "18"),
    ("The answer is 5.\n#### 42", "42"),
    ("18 eggs #### done", "18"),
    # Its calculator's marks.
    ("She has 16 - 3 - 4 = <<16-3-4=9>>9 eggs", "9"),
    ("She makes 9 * 2 = $<<9*2=18>>18 a day", "18"),
    ("9 * 2 = $<<9*2=18>>", "18"),
    ("9 * 2 = <<9*2=18", "18"),
    ("<<1/2*100=50>>50%", "50"),
    # Boxes and LaTeX.
    (r"\boxed{18}", "18"),
    (r"so $\boxed{18}$ of the 20.", "18"),
    (r"\boxed{1} and then \boxed{2}", "2"),
    (r"\boxed{\text{18 dollars}}", "18"),
    (r"\boxed{1{,}000}", "1000"),
    (r"\boxed{10\,000\text{ km}}", "10000"),
    (r"\boxed{\frac{3}{4}}", "0.75"),
    (r"\boxed{-\dfrac{1}{2}}", "-0.5"),
    (r"\boxed{2\frac{1}{2}}", "2.5"),
    (r"\boxed{\$18.00}", "18"),
    (r"\boxed{18", "18"),
    (r"\boxed 18", "18"),
    (r"\(3 \times 6 = 18\)", "18"),
    (r"3\times6", "6"),
    (r"50\%", "50"),
    (r"\$1,000", "1000"),
    (r"$18$", "18"),
    # Bold and code.
    ("**42**", "42"),
    ("**-42**", "-42"),
    ("__42__", "42"),
    ("*42*", "42"),
    ("`42`", "42"),
    # "The answer is" comes before the last number.
    ("The answer is 18.", "18"),
    ("The answer is 18. That leaves 3 for tomorrow.", "18"),
    ("the answer is **18** eggs, not 20", "18"),
    ("The final answer is: $\\boxed{18}$. I am 99% sure.", "18"),
    ("Final Answer: The final answer is 18. I hope it is correct.", "18"),
    ("The answer is 5. No: the answer is 6, of 7.", "6"),
    ("The answer is 9 * 2 = 18 dollars of 20.", "18"),
    ("The answer is 18 = 9 * 2.", "18"),
    ("The answer is x = 18.", "18"),
    ("The answer is not 5 but 6", "6"),
    ("The answer is:\n\n18\n\n(7 steps)", "18"),
    ("So the answer would be 18, with 3 left.", "18"),
    ("Answer: 18 (9 eggs each)", "18"),
    ("**Answer:** 18, since 3 are left", "18"),
    ("ANSWER = 18; 3 left", "18"),
    ('{"answer": 18, "steps": 3}', "18"),
    ("Answer: She sells 16 - 3 - 4 = 9 eggs. That makes 9 * 2 = $18.", "18"),
    ("Answer: 16 - 3 - 4 = 9 eggs. That makes 9 * 2 = $18.", "18"),
    ("The answer is 18.\n\nQuestion: Tom has 5 apples.\nAnswer:", "18"),
    # Several numbers, none marked: the last one.
    ("3 of 5", "5"),
    ("18 eggs, of which 3 are broken", "3"),
    ("5 + 4 = 9", "9"),
]
NONE = [
    # Not one number, so none; and no other number of the text instead of it.
    "3:45",
    "He has 2 apples at 3:45",
    "#### 3:45 (see 7)",
    "The ratio is 2:3",
    "The ratio is 2 : 3",
    "\\boxed{2:3}",
    "1/2/2024",
    "12.05.2024",
    "version 1.2.3",
    "10^3",
    "10^{6}",
    "10\u00b3",
    "2\u00bd",
    "1/0",
    "The answer is 5 + 4",
    "#### 9 * 2",
    "The answer is 5 + 4 = ",
    # No number.
    "CO2",
    "eighteen",
    "The answer is unknown.",
    "\\boxed{}",
    "<<>>",
    "-$",
]


@pytest.mark.case(71)
@pytest.mark.parametrize(("text", "number"), TABLE)
def test_answers_that_were_read_by_hand(text: str, number: str) -> None:
    assert extract_number(text) == Decimal(number)
    assert ExactNumber()([Query("q", number)], [text]) == [1.0]


@pytest.mark.case(71)
@pytest.mark.parametrize("text", NONE)
def test_what_is_not_one_number_is_none(text: str) -> None:
    assert extract_number(text) is None
    for number in ("2", "3", "45", "5", "9"):
        assert ExactNumber()([Query("q", number)], [text]) == [0.0]


def test_the_table_is_long_and_says_nothing_twice() -> None:
    texts = [text for text, _ in TABLE] + NONE
    assert len(texts) == len(set(texts)) >= 60


@pytest.mark.case(71)
@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("18", "18.0", True),
        ("18.00", "18.0", True),
        ("1,000", "1000", True),
        ("1/2", "0.5", True),
        ("1/3", "2/6", True),
        ("1/3", "0.333", False),
        ("2 million", "2,000,000", True),
        ("-0", "0", True),
        ("18", "-18", False),
        ("18", "180", False),
        ("0.1", "0.10000000000000001", False),
        ("9" * 40, "9" * 39 + "8", False),
    ],
)
def test_numbers_are_equal_by_value(one: str, other: str, equal: bool) -> None:
    assert ExactNumber()([Query("q", one)], [other]) == [float(equal)]
    assert ExactNumber()([Query("q", other)], [one]) == [float(equal)]


@pytest.mark.parametrize(
    "text",
    [
        "9" * 300_000 + "/3",
        "9" * 300_000 + "e999",
        "1e999999999999",
        "\\boxed{" * 20_000,
        "the answer is " * 10_000,
        "<<" * 50_000,
        "\\frac{" * 20_000,
        "1," * 50_000,
        "1.1" * 50_000,
        "$-" * 50_000,
        "9/" * 50_000,
        "1 000" * 20_000,
    ],
    ids=lambda text: text[:12],
)
def test_no_long_text_raises(text: str) -> None:
    number = extract_number(text)
    assert number is None or number.is_finite()


@pytest.mark.parametrize(
    ("piece", "number"),
    [
        ("12,34,", "34"),  # might be the beginning of 12,34,567
        ("12,", "12"),
        ("123 ", "123"),  # might be the beginning of 123 123 000
        ("#### 123 ", "123"),
        ("answer: 1 * ", "1"),
    ],
)
def test_no_number_of_a_long_list_is_read_over_and_over(piece: str, number: str) -> None:
    # 300,000 characters: a pass that grew with the square of the length would take minutes.
    assert extract_number(piece * (300_000 // len(piece))) == Decimal(number)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("#### 1 000 000", "1000000"),
        ("#### 1 000 234", "1000"),  # a plain space only in front of a last 000
        ("#### 1 234 000 567", "1234000"),
        ("#### 1 000 1234", "1000"),
        ("#### 123 456", "123"),
        ("#### 1234 000", "1234"),
        ("#### 12,34,56,78,90,123 or 4", "1234567890123"),
    ],
)
def test_groups_of_digits_are_joined_as_far_as_they_are_one_number(text: str, number: str) -> None:
    assert extract_number(text) == Decimal(number)
