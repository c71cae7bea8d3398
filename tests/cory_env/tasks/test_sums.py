"""Tests of cory_env/tasks/sums.py."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cory_env.records import Query
from cory_env.tasks.sums import PARTS, SumsTask, problems

TASK = SumsTask()
TOKENIZER = TASK.tokenizer()


@pytest.mark.case(27)
def test_prompts_written_out() -> None:
    query = Query("47 + 38", "85")
    assert TASK.prompt("pioneer", query, ()) == "Q: 47 + 38\nA:"
    assert TASK.prompt("observer", query, (" 85",)) == "Q: 47 + 38\nR:  85\nA:"
    assert TASK.prompt("observer_2", query, ("7\n5", "")) == "Q: 47 + 38\nR: 7 5\nR: \nA:"


def test_scores_by_the_final_number() -> None:
    queries = [Query("47 + 38", "85"), Query("3 - 10", "-7"), Query("3 - 10", "-7")]
    assert list(TASK.reward(queries, [" 85", " -7", " 7"])) == [1.0, 1.0, 0.0]


def test_parts_are_disjoint_and_together_all_problems() -> None:
    texts = [query.text for part in PARTS for query in problems(part)]
    # 100 first numbers, 100 second numbers, two signs.
    assert len(texts) == len(set(texts)) == 20000
    assert {part: round(len(problems(part)) / 20000, 1) for part in PARTS} == {
        "model": 0.5,
        "train": 0.3,
        "validation": 0.1,
        "test": 0.1,
    }


def test_answers_are_right() -> None:
    for query in problems("validation"):
        a, sign, b = query.text.split()
        assert query.answer == str(int(a) + int(b) if sign == "+" else int(a) - int(b))


def test_the_first_problems_are_a_fair_sample() -> None:
    # Mean of a uniform number in 0..99 is 49.5, its standard deviation 28.9: 200 of them are
    # within 3 * 28.9 / sqrt(200) = 6.1 of it.
    first = [int(query.text.split()[0]) for query in problems("train")[:200]]
    assert sum(first) / 200 == pytest.approx(49.5, abs=6.1)


def test_every_prompt_with_three_agents_fits() -> None:
    prompt = TASK.prompt("observer_2", Query("99 - 99"), (" 1234567", " 1234567"))
    assert len(TOKENIZER.encode_prompt(prompt)) <= TASK.max_prompt_tokens


def test_every_answer_fits() -> None:
    # A space, a sign, two digits, or a space and three digits; and the end token.
    longest = max(len(TOKENIZER.encode(f" {q.answer}")) for q in problems("test"))
    assert longest + 1 <= TASK.max_response_tokens


def test_a_typed_problem_gets_its_answer() -> None:
    assert TASK.query_from_text(" 3 -10 ").answer == "-7"
    assert TASK.query_from_text("120 + 7").answer == "127"
    assert TASK.query_from_text("What is 3 + 4?").answer is None


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=40))
def test_any_text_survives_the_tokenizer(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


@given(st.text(alphabet=st.characters(max_codepoint=126, categories=["L", "N", "P", "Z"])))
def test_an_english_character_is_one_token(text: str) -> None:
    assert len(TOKENIZER.encode(text)) == len(text)


def test_an_unknown_part_is_refused() -> None:
    with pytest.raises(ValueError, match="part must be one of"):
        problems("dev")
