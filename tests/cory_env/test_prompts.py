"""Tests of cory_env/prompts.py: what is cut from a prompt that is too long (cases 27, 28, 30)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from cory_env.prompts import Prompt, PromptBuilder
from cory_env.records import Query
from cory_env.tasks import make_task
from cory_env.tasks.target import LETTERS, TargetTask
from cory_env.tokens import as_tokenizer
from tests.cory_env.games import AD, TOKEN, ids


def builder(max_prompt_tokens: int, task: Any = None, tokenizer: Any = None) -> PromptBuilder:
    task = task or TargetTask()
    return PromptBuilder(task, tokenizer or task.tokenizer(), max_prompt_tokens)


class Quote(TargetTask):
    """A template of the paper's kind: long, with the query on both sides of the reference."""

    def prompt(self, role: str, query: Query, earlier_responses: Any) -> str:
        if not earlier_responses:
            return query.text
        quoted = "|".join(f'"{query.text}{text}"' for text in earlier_responses)
        return f"I can make this {quoted} better: {query.text}"


def byte_tokenizer() -> Any:
    """Every byte is a token; a character may be several."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: token for token, piece in enumerate([*alphabet, "</s>"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return as_tokenizer(tokenizer)


def test_a_prompt_that_fits_is_not_touched() -> None:
    prompt = builder(8).build("observer", AD, ("b c e",))
    # <s> a d | b c e | is eight tokens
    assert prompt == Prompt("a d | b c e |", (TOKEN["<s>"], *ids("a d | b c e |")), 0)


@pytest.mark.case(27)
def test_the_left_part_of_the_reference_goes_first() -> None:
    prompt = builder(7).build("observer", AD, ("b c e",))
    assert (prompt.text, prompt.dropped_tokens) == ("a d | c e |", 1)


@pytest.mark.parametrize(
    ("room", "text", "dropped"),
    [
        (12, "a d | b c e | f a b |", 0),
        (11, "a d | c e | f a b |", 1),
        (9, "a d | | f a b |", 3),  # the earliest is used up before the next is touched
        (8, "a d | | a b |", 4),
        (6, "a d | | |", 6),
    ],
)
def test_the_earliest_reference_is_cut_before_the_next(room: int, text: str, dropped: int) -> None:
    prompt = builder(room).build("observer_2", AD, ("b c e", "f a b"))
    assert (prompt.text, prompt.dropped_tokens) == (text, dropped)


def test_a_query_is_never_cut_but_refused() -> None:
    with pytest.raises(ValueError, match=r"query 'a d' has 4 tokens .* max_prompt_tokens=3"):
        builder(3).build("pioneer", AD)
    with pytest.raises(ValueError, match=r"prompt of the observer .* has 5 tokens without any"):
        builder(4).build("observer", AD, ("b c e",))


def test_a_prompt_without_tokens_is_refused() -> None:
    class Silent(TargetTask):
        def prompt(self, role: str, query: Query, earlier_responses: Any) -> str:
            return ""

    tokenizer = as_tokenizer(Tokenizer(models.WordLevel({"</s>": 0})))
    with pytest.raises(ValueError, match="has no tokens"):
        builder(9, Silent(), tokenizer).build("pioneer", AD)


letters = st.lists(st.sampled_from(LETTERS), max_size=5).map(" ".join)


@given(references=st.lists(letters, max_size=3), room=st.integers(8, 20))
def test_it_fits_keeps_the_query_and_drops_no_more_than_needed(
    references: list[str], room: int
) -> None:
    prompt = builder(room).build("observer_3", AD, references)
    whole = 4 + len(references) + sum(len(text.split()) for text in references)
    assert len(prompt.ids) == min(room, whole)
    assert prompt.dropped_tokens == max(0, whole - room)
    assert prompt.text.startswith("a d |")


@given(reference=st.text(max_size=30), room=st.integers(40, 120))
def test_text_of_any_kind_is_cut_to_fit_and_stays_a_suffix(reference: str, room: int) -> None:
    query = Query("\u00e9\u00e8 ")
    prompt = builder(room, Quote(), byte_tokenizer()).build("observer", query, (reference,))
    assert len(prompt.ids) <= room
    quoted = prompt.text.removeprefix('I can make this "\u00e9\u00e8 ').removesuffix(
        '" better: \u00e9\u00e8 '
    )
    assert reference.endswith(quoted)
    assert (prompt.dropped_tokens == 0) == (quoted == reference) or "\ufffd" in reference


def test_a_character_cut_in_half_leaves_nothing_behind() -> None:
    # 31 bytes of template and query, and two euro signs of three bytes: two bytes too many, and
    # the third byte of the first sign means nothing alone
    prompt = builder(35, Quote(), byte_tokenizer()).build(
        "observer", Query("x "), ("\u20ac\u20ac",)
    )
    assert prompt.text == 'I can make this "x \u20ac" better: x '
    assert len(prompt.ids) <= 35


# Special tokens in what is quoted.

wild = st.lists(
    st.sampled_from(["<s>", "</s>", "<pad>", "<unk>", "<", "s>", "/", "a", " ", "\n", "\u20ac"]),
    max_size=6,
).map("".join)


@given(question=wild, answers=st.lists(wild, max_size=2), task=st.sampled_from(["sums", "reviews"]))
def test_no_query_and_no_response_becomes_a_special_token(
    question: str, answers: list[str], task: str
) -> None:
    made = builder(400, make_task(task))
    prompt = made.build("observer_2", Query(f"q{question}"), answers)
    assert [i for i in prompt.ids if i < 3] == [1]  # <pad>, <s> and </s> are 0 to 2
    shown = made.tokenizer.backend.decode(list(prompt.ids), skip_special_tokens=False)
    assert shown == f"<s>{prompt.text}"


class Handmade(TargetTask):
    """A prompt in which the task itself writes special tokens, and strips what it quotes."""

    def prompt(self, role: str, query: Query, earlier_responses: Any) -> str:
        quoted = "".join(f"<s>{text.strip()}</s>" for text in earlier_responses)
        return f"<s>{query.text}|{query.metadata.get('note')}</s>{quoted}<s>"


@pytest.mark.case(30)
def test_the_special_tokens_of_the_task_itself_stay() -> None:
    made = builder(400, Handmade(), make_task("sums").tokenizer())
    query = Query("</s><s>", metadata={"note": "</s>", "line": 3})
    prompt = made.build("observer", query, (" <s> ",))
    assert prompt.text == "<s></s><s>|</s></s><s><s></s><s>"
    assert [i for i in prompt.ids if i < 3] == [1, 2, 1, 2, 1]
    shown = made.tokenizer.backend.decode(list(prompt.ids), skip_special_tokens=False)
    assert shown == prompt.text


def test_where_a_task_looks_into_its_quotes_nothing_is_a_special_token() -> None:
    class Looking(Handmade):
        def prompt(self, role: str, query: Query, earlier_responses: Any) -> str:
            return f"<s>{len(query.text)} {query.text}"

    class Refusing(Handmade):
        def prompt(self, role: str, query: Query, earlier_responses: Any) -> str:
            if "\U000f0000" in query.text:
                raise RuntimeError("never seen such a sign")
            return f"<s>4 {query.text}"

    for task in (Looking(), Refusing()):
        made = builder(400, task, make_task("sums").tokenizer())
        prompt = made.build("pioneer", Query("</s>"))
        assert prompt.text == "<s>4 </s>"
        assert [i for i in prompt.ids if i < 3] == [1]  # the one that the tokenizer puts in front


def test_a_reference_that_is_cut_keeps_what_it_spells() -> None:
    prompt = builder(30, make_task("sums")).build("observer", Query("1 + 2"), ("a" * 30 + "</s>",))
    # "<s>Q: 1 + 2", a new line, "R: ", a new line and "A:" are 16 tokens
    assert prompt.text == f"Q: 1 + 2\nR: {'a' * 10}</s>\nA:"
    assert (len(prompt.ids), prompt.dropped_tokens) == (30, 20)
