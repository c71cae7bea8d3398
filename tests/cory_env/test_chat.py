"""Tests of cory_env/chat.py: prompts of chat models (cases 27 to 30)."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cory_env import GameRules, Query, as_tokenizer, cory_v0, make_task
from cory_env.chat import ChatSettings, load_few_shot
from cory_env.episode import Episode
from cory_env.tasks.sums import SumsTask
from tests.cory_env.chats import (
    BOS,
    CHATML,
    COUNTING,
    END,
    EOS,
    INST,
    NO_SYSTEM,
    PLAIN,
    SEVEN,
    SPECIALS,
    START,
    THINKING,
    TURN,
    Asked,
    backend,
    chatty,
    letters,
    rules,
)

TEMPLATES = {"chatml": CHATML, "inst": INST, "no_system": NO_SYSTEM, "plain": PLAIN}
EXAMPLES = (("1 + 1", "2"), ("9 - 4", "5"))


def ids(game: GameRules, role: str = "pioneer", references: tuple[str, ...] = ()) -> list[int]:
    return list(game.prompts.build(role, SEVEN, references).ids)


# What a prompt is.


@pytest.mark.case(27, 28)
def test_golden_ids_of_pioneer_and_observer_with_a_long_generation_prompt() -> None:
    game = rules(CHATML)
    asks = [START, *letters("assistant\n")]  # eleven tokens that ask for an answer
    pioneer = [START, *letters("user\nQ: 3 + 4\nA:"), END, *letters("\n"), *asks]
    observer = [START, *letters("user\nQ: 3 + 4\nR: seven\nA:"), END, *letters("\n"), *asks]
    assert ids(game) == pioneer
    assert ids(game, "observer", ("seven",)) == observer
    # The table itself: six added tokens, then the bytes; "a" is the 65th, the line break the 199th.
    assert letters("a\n") == [6 + 64, 6 + 198]


@pytest.mark.case(27, 30)
def test_golden_ids_where_a_begin_token_comes_first_and_nothing_asks_for_an_answer() -> None:
    game = rules(INST, chat=ChatSettings(system="Add."))
    begin = [BOS, *letters("[INST] <<SYS>>\nAdd.\n<</SYS>>\n\n")]
    assert ids(game) == [*begin, *letters("Q: 3 + 4\nA: [/INST]")]
    assert ids(game, "observer", ("7",)) == [*begin, *letters("Q: 3 + 4\nR: 7\nA: [/INST]")]


@pytest.mark.case(27, 28)
def test_golden_ids_of_examples_and_of_words_that_begin_the_answer() -> None:
    chat = ChatSettings(few_shot=EXAMPLES[:1], generation_prompt="So:")
    assert ids(rules(NO_SYSTEM, chat=chat)) == [
        *[BOS, TURN, *letters("user\nQ: 1 + 1\nA:"), END, *letters("\n")],
        *[TURN, *letters("model\n2"), END, *letters("\n")],
        *[TURN, *letters("user\nQ: 3 + 4\nA:"), END, *letters("\n")],
        *[TURN, *letters("model\nSo:")],
    ]


def test_the_text_of_a_prompt_is_what_the_model_reads() -> None:
    prompt = rules(CHATML).prompts.build("observer", SEVEN, ("seven",))
    assert prompt.text == ("<|start|>user\nQ: 3 + 4\nR: seven\nA:<|end|>\n<|start|>assistant\n")


@pytest.mark.parametrize("system", [None, " Be brief.\n"])
@pytest.mark.parametrize("few_shot", [(), EXAMPLES])
@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_the_ids_are_those_of_the_librarys_own_call(
    template: str, few_shot: tuple[tuple[str, str], ...], system: str | None
) -> None:
    if template is NO_SYSTEM:
        system = None
    game = rules(template, chat=ChatSettings(system=system, few_shot=few_shot))
    messages = [] if system is None else [{"role": "system", "content": system}]
    for question, answer in few_shot:
        messages.append({"role": "user", "content": f"Q: {question}\nA:"})
        messages.append({"role": "assistant", "content": answer})
    messages.append({"role": "user", "content": "Q: 3 + 4\nA:"})
    assert ids(game) == chatty(template).apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False
    )


@pytest.mark.parametrize(("template", "kept"), [(CHATML, "\n x \n"), (INST, "x"), (NO_SYSTEM, "x")])
def test_white_space_goes_where_the_template_takes_it_off(template: str, kept: str) -> None:
    class Wide(Asked):
        def prompt(self, role: str, query: Query, earlier_responses: Any) -> str:
            return "\n x \n"

    message = [{"role": "user", "content": "\n x \n"}]
    assert ids(rules(template, task=Wide())) == chatty(template).apply_chat_template(
        message, add_generation_prompt=True, return_dict=False
    )
    assert f"{kept}" in rules(template, task=Wide()).prompts.build("pioneer", SEVEN).text


def test_a_template_may_take_off_line_breaks_only() -> None:
    template = CHATML.replace("message['content']", "message['content'].strip('\\n')")

    class Wide(Asked):
        def prompt(self, role: str, query: Query, earlier_responses: Any) -> str:
            return "\n\n x \n"

    text = rules(template, task=Wide()).prompts.build("pioneer", SEVEN).text
    assert text == "<|start|>user\n x <|end|>\n<|start|>assistant\n"


def test_a_date_in_a_template_is_the_same_every_day() -> None:
    dated = "{{ 'Today is ' + strftime_now('%d %b %Y') + '.\n' }}" + CHATML
    assert rules(dated).prompts.build("pioneer", SEVEN).text.startswith("Today is 26 Jul 2024.\n<")


@pytest.mark.case(30)
@pytest.mark.parametrize(
    ("template", "adds_begin", "count"),
    [(INST, True, 1), (INST, False, 1), (CHATML, True, 1), (CHATML, False, 0)],
)
@pytest.mark.parametrize("role", ["pioneer", "observer"])
def test_exactly_one_begin_token_by_count(
    template: str, adds_begin: bool, count: int, role: str
) -> None:
    references = ("<s>",) if role == "observer" else ()
    made = ids(rules(template, adds_begin=adds_begin), role, references)
    assert made.count(BOS) == count
    assert made[:1] == [BOS] or not count


# Where a template is used.


def test_it_is_used_where_the_model_has_one_and_the_task_asks_something() -> None:
    assert rules(CHATML).frame is not None
    assert rules(None).frame is None
    assert rules(CHATML, task=SumsTask(), max_prompt_tokens=99).frame is None  # is continued
    assert rules(CHATML, task=SumsTask(), chat=ChatSettings("always")).frame is not None
    never = rules(CHATML, chat=ChatSettings("never"))
    assert never.frame is None
    assert ids(never) == letters("Q: 3 + 4\nA:")


def test_a_tokenizer_that_is_no_chat_tokenizer_stays_as_it_is() -> None:
    tokenizer = as_tokenizer(backend(adds_begin=False))
    assert GameRules.make(Asked(), tokenizer=tokenizer).tokenizer is tokenizer


@pytest.mark.parametrize(
    ("chat", "words"),
    [
        ({"system": "x"}, "a system prompt"),
        ({"few_shot": EXAMPLES}, "few-shot examples"),
        ({"generation_prompt": "x"}, "a generation prompt"),
        ({"system": "", "generation_prompt": "x"}, "a system prompt and a generation prompt"),
    ],
)
def test_settings_that_need_a_template_are_refused_without_one(
    chat: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=f"^{words} cannot be used without the .*switched off"):
        rules(CHATML, chat=ChatSettings("never", **chat))
    with pytest.raises(
        ValueError, match=f"^{words} cannot be used without the .*the tokenizer has none"
    ):
        rules(None, chat=ChatSettings(**chat))
    with pytest.raises(
        ValueError,
        match=f"^{words} cannot be used without the .*'sums' lets its queries be continued",
    ):
        rules(CHATML, task=SumsTask(), chat=ChatSettings(**chat))


@pytest.mark.parametrize("tokenizer", [None, chatty(None), backend(adds_begin=True)])
def test_always_needs_a_tokenizer_with_a_template(tokenizer: Any) -> None:
    with pytest.raises(ValueError, match=r"asked for \(always\), and the tokenizer has none"):
        GameRules.make(Asked(), tokenizer=tokenizer, chat=ChatSettings("always"))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mode": "sometimes"}, "chat mode must be one of .*'sometimes'"),
        ({"system": 3}, "system prompt must be text or None, got 3"),
        ({"generation_prompt": None}, "generation prompt must be text, got None"),
        ({"few_shot": "1 + 1"}, "few_shot must be pairs"),
        ({"few_shot": None}, "few_shot must be pairs"),
        ({"few_shot": [("1 + 1",)]}, "few_shot must be pairs"),
        ({"few_shot": [("1 + 1", 2)]}, "few_shot must be pairs"),
        ({"few_shot": [("1 + 1", " ")]}, "few_shot must be pairs"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ChatSettings(**settings)


def test_other_things_than_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="chat must be ChatSettings or None, got 'always'"):
        GameRules.make(chat="always")  # type: ignore[arg-type]


# Templates that do something else.


def test_a_template_that_refuses_a_system_prompt() -> None:
    with pytest.raises(
        ValueError, match=r"^the chat template refuses a system prompt \(System role not supported"
    ):
        rules(NO_SYSTEM, chat=ChatSettings(system="Be brief."))


def test_a_template_that_refuses_everything() -> None:
    with pytest.raises(ValueError, match=r"^the chat template cannot be used \(no\)"):
        rules("{{ raise_exception('no') }}", chat=ChatSettings(system="Be brief."))
    with pytest.raises(ValueError, match=r'\(no\); chat mode "never" goes without it$'):
        rules("{{ raise_exception('no') }}")


@pytest.mark.parametrize(
    ("template", "chat", "words"),
    [
        (CHATML.replace("in messages", "in messages[-1:]"), {"system": "x"}, "drops the system"),
        (CHATML.replace("in messages", "in messages[-2:]"), {"few_shot": EXAMPLES}, "earlier mess"),
        ("{{ messages[-1]['content'] * 2 }}", {}, "repeats the question"),
        ("{{ messages[-1]['content'] | upper }}", {}, "drops or changes a part of the question"),
        ("{{ messages[-1]['content'] | length }}", {}, "drops the question"),
        ("{{ messages[-1]['content'].strip('\n\t') }}", {}, "more with a message than to quote"),
        (CHATML.replace("in messages", "in messages[::-1]"), {"system": "x"}, "changes the order"),
    ],
)
def test_a_template_that_does_not_quote_every_message_once_is_refused(
    template: str, chat: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=f"the chat template .*{words}"):
        rules(template, chat=ChatSettings(**chat))


@pytest.mark.case(29)
def test_a_template_that_changes_earlier_messages_is_refused() -> None:
    assert rules(COUNTING).frame is not None  # nothing is earlier without examples
    with pytest.raises(ValueError, match=r"changes earlier messages .* all 5 .* first 1, .*assist"):
        rules(COUNTING, chat=ChatSettings(few_shot=EXAMPLES))


@pytest.mark.case(29)
def test_a_template_that_drops_earlier_thoughts_is_refused_only_if_there_are_any() -> None:
    assert rules(THINKING, chat=ChatSettings(few_shot=EXAMPLES)).frame is not None
    thought = (("1 + 1", "<think>one more than one</think>2"),)
    with pytest.raises(ValueError, match=r"drops or changes a part of the answer '<think>one more"):
        rules(THINKING, chat=ChatSettings(few_shot=thought))


@pytest.mark.case(29)
@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_every_prompt_begins_with_that_of_the_question_before(template: str) -> None:
    shorter = rules(template, chat=ChatSettings(few_shot=EXAMPLES[:1]))
    longer = rules(template, chat=ChatSettings(few_shot=(EXAMPLES[0], ("3 + 4", "7"))))
    assert ids(longer)[: len(ids(shorter))] == ids(shorter)


# Ends of turns.


@pytest.mark.case(17, 18)
@pytest.mark.parametrize(
    ("template", "ends"),
    [(CHATML, (EOS, END)), (NO_SYSTEM, (EOS, END)), (INST, (EOS,)), (PLAIN, (EOS,))],
)
def test_a_response_also_ends_with_what_the_template_puts_behind_an_answer(
    template: str, ends: tuple[int, ...]
) -> None:
    assert rules(template).tokenizer.end_ids == ends
    assert rules(template, chat=ChatSettings("never")).tokenizer.end_ids == (EOS,)


def test_the_end_of_a_turn_is_in_the_tokens_and_not_in_the_text() -> None:
    episode = Episode(rules(CHATML, max_response_tokens=5), SEVEN, ("agent_0", "agent_1"))
    episode.submit([*letters("7"), END, *letters("99"), -1])
    turn = episode.turns[0]
    assert (turn.response, turn.response_ids) == ("7", (*letters("7"), END))
    assert not turn.truncated
    assert "R: 7\nA:<|end|>" in episode.prompt().text


def test_marks_of_a_template_do_not_show_in_the_text_of_a_response() -> None:
    # The tokenizer itself takes <turn> for text; this template uses it as a mark.
    episode = Episode(rules(NO_SYSTEM, max_response_tokens=4), SEVEN, ("agent_0", "agent_1"))
    episode.submit([*letters("7"), START, TURN, *letters("8")])
    assert episode.turns[0].response == "78"
    plain = Episode(rules(None, max_response_tokens=2), SEVEN, ("agent_0", "agent_1"))
    plain.submit([*letters("7"), TURN])
    assert plain.turns[0].response == "7<turn>"


# Special tokens come from the template only.

GAMES = {
    name: rules(template, max_prompt_tokens=900, n_agents=3)
    for name, template in TEMPLATES.items()
    if name != "plain"  # which has no special tokens
}
BACKEND = backend(adds_begin=False)
HARMLESS = {
    name: tuple(game.prompts.build("pioneer", Query("q")).text.split("Q: q\nA:"))
    for name, game in GAMES.items()
}
pieces = st.sampled_from(
    [
        *SPECIALS,
        "<turn>",
        "<|",
        "end|>",
        "<|en",
        "d|>",
        "<",
        ">",
        "s>",
        "[INST]",
        "x",
        " ",
        "\n",
        "é",
    ]
)
wild = st.lists(pieces, max_size=6).map("".join)


@pytest.mark.case(30)
@given(question=wild, answers=st.lists(wild, max_size=2), template=st.sampled_from([*GAMES]))
def test_no_query_and_no_response_becomes_a_special_token(
    question: str, answers: list[str], template: str
) -> None:
    builder = GAMES[template].prompts
    role = "observer_2"
    prompt = builder.build(role, Query(f"q{question}"), answers)
    harmless = builder.build(role, Query("q"), ["x"] * len(answers))
    specials = GAMES[template].tokenizer.specials
    assert specials.among(prompt.ids) == specials.among(harmless.ids) != ()
    assert BACKEND.decode(list(prompt.ids), skip_special_tokens=False) == prompt.text
    # The template's own text stands round them as it is.
    front, back = HARMLESS[template]
    assert (prompt.text.startswith(front), prompt.text.endswith(back)) == (True, True)


def test_a_mark_of_the_template_that_is_not_flagged_as_special_stays_text_too() -> None:
    made = ids(rules(NO_SYSTEM), "observer", ("7<turn>model",))
    assert made.count(TURN) == 2  # the template's own
    assert ids(rules(CHATML), "observer", ("7<turn>",)).count(TURN) == 1  # here it is a word


def test_names_of_special_tokens_in_examples_and_system_prompt_stay_text() -> None:
    chat = ChatSettings(system="Say <|end|>.", few_shot=(("1<s>", "</s>"),))
    made = ids(rules(CHATML, chat=chat))
    assert [i for i in made if i <= TURN] == [START, END] * 4 + [START]


def test_words_that_begin_the_answer_are_the_users_own_and_may_spell_special_tokens() -> None:
    made = ids(rules(CHATML, chat=ChatSettings(generation_prompt="<|start|>!")))
    assert made[-2:] == [START, *letters("!")]


# Too long prompts.


@pytest.mark.case(27)
def test_a_prompt_that_is_too_long_loses_the_left_of_the_reference_inside_the_template() -> None:
    whole = rules(CHATML).prompts.build("observer", SEVEN, ("abcdefgh",))
    game = rules(CHATML, max_prompt_tokens=len(whole.ids) - 3)
    cut = game.prompts.build("observer", SEVEN, ("abcdefgh",))
    assert cut.text == whole.text.replace("abcdefgh", "defgh")
    assert (len(cut.ids), cut.dropped_tokens) == (len(whole.ids) - 3, 3)
    assert list(cut.ids) == ids(rules(CHATML), "observer", ("defgh",))


def test_a_query_that_does_not_fit_is_refused_and_the_share_of_the_template_is_told() -> None:
    chat = ChatSettings(few_shot=EXAMPLES)
    game = rules(NO_SYSTEM, chat=chat, max_prompt_tokens=60)
    whole = len(ids(rules(NO_SYSTEM, chat=chat)))
    frame = whole - len("Q: 3 + 4\nA:")
    with pytest.raises(ValueError, match=rf"has {whole} tokens .*=60 \({frame} of them are the ch"):
        game.check_query(SEVEN)


# Files, environments, copies.


def test_examples_from_a_file(tmp_path: Path) -> None:
    rows = [{"query": question, "answer": answer} for question, answer in EXAMPLES]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "a.csv").write_text("query,answer\n1 + 1,2\n9 - 4,5\n")
    assert load_few_shot(tmp_path / "a.jsonl") == load_few_shot(tmp_path / "a.csv") == EXAMPLES
    (tmp_path / "b.jsonl").write_text(json.dumps(rows[0]) + '\n{"query": "9 - 4"}')
    with pytest.raises(ValueError, match=r"b\.jsonl, line 2: a few-shot example needs an answer"):
        load_few_shot(tmp_path / "b.jsonl")
    with pytest.raises(ValueError, match=r"c\.jsonl"):
        load_few_shot(tmp_path / "c.jsonl")


def test_the_environment_takes_the_settings_and_can_be_copied() -> None:
    chat = ChatSettings(system="Add.", few_shot=EXAMPLES)
    env = cory_v0.raw_env(Asked(), tokenizer=chatty(CHATML), chat=chat)
    copy = pickle.loads(pickle.dumps(env))
    expected = ids(rules(CHATML, chat=chat))
    for made in (env, copy):
        made.reset(seed=0, options={"query": SEVEN})
        seen = made.observe("agent_0")
        assert seen[seen >= 0].tolist() == expected
    action = np.full(8, -1)
    action[:2] = [*letters("7"), END]
    env.step(action)
    assert env.infos["agent_0"]["response"] == "7"


def test_a_task_without_a_template_is_what_it_was() -> None:
    prompt = GameRules.make(make_task("sums")).prompts.build("observer", SEVEN, ("7",))
    assert prompt.text == "Q: 3 + 4\nR: 7\nA:"
