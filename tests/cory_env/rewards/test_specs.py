"""Tests of cory_env/rewards/specs.py."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cory_env.rewards.specs import (
    Arguments,
    RewardTerm,
    Scalar,
    format_spec,
    parse_spec,
    with_absolute_paths,
)


def term(
    name: str, *values: Scalar, weight: float = 1.0, called: bool = True, **named: Scalar
) -> RewardTerm:
    arguments = Arguments(values, tuple(named.items())) if called else None
    return RewardTerm(weight, name, arguments)


def bare(name: str, weight: float = 1.0) -> RewardTerm:
    return RewardTerm(weight, name)


@pytest.mark.parametrize(
    ("spec", "terms"),
    [
        ("vader", [bare("vader")]),
        (" my.module:Class.name ", [bare("my.module:Class.name")]),
        ("0.7*a + 0.3*m:b", [bare("a", 0.7), bare("m:b", 0.3)]),
        ("a+b", [bare("a"), bare("b")]),
        ("a - 0.5*b", [bare("a"), bare("b", -0.5)]),
        ("-a + -2 * b", [bare("a", -1.0), bare("b", -2.0)]),
        ("a - -b", [bare("a"), bare("b")]),
        ("+.5*a", [bare("a", 0.5)]),
        ("1e-3*a - 1E+2*b", [bare("a", 0.001), bare("b", -100.0)]),
        ("0*a", [bare("a", 0.0)]),
        ("a()", [term("a")]),
        ("a ( )", [term("a")]),
        ("c(models/a.b-c_d/e)", [term("c", "models/a.b-c_d/e")]),
        ("c(lvwerra/distilbert-imdb)", [term("c", "lvwerra/distilbert-imdb")]),
        ("c(../x, label=1)", [term("c", "../x", label=1)]),
        (r"c(C:\models\x)", [term("c", r"C:\models\x")]),
        ('c("my models/x, y (old)=z")', [term("c", "my models/x, y (old)=z")]),
        (r'c("C:\my models\")', [term("c", "C:\\my models\\")]),
        ('c(\'it\'\'s\', "say ""yes""")', [term("c", "it's", 'say "yes"')]),
        ("c('')", [term("c", "")]),
        ("c(1, -2, 1.5, 1e3, .5)", [term("c", 1, -2, 1.5, 1000.0, 0.5)]),
        ("c('1', '1.5', 'True')", [term("c", "1", "1.5", "True")]),
        ("c(True, false, None, none)", [term("c", True, False, None, None)]),
        ("c(nan, inf, 1_0, 1-2)", [term("c", "nan", "inf", "1_0", "1-2")]),
        ("c(x , a = 1 ,b= 'y z' )", [term("c", "x", a=1, b="y z")]),
        (
            "0.5*c(x, label=1) - 2*c(y) + a",
            [term("c", "x", weight=0.5, label=1), term("c", "y", weight=-2.0), bare("a")],
        ),
    ],
)
def test_known_answers(spec: str, terms: list[RewardTerm]) -> None:
    parsed = parse_spec(spec)
    assert list(parsed) == terms
    for got, wanted in zip(parsed, terms, strict=True):
        # 1 == 1.0 == True, so that equality alone would not tell them apart
        assert repr(got.arguments) == repr(wanted.arguments)


LOOKS = "reward must look like 'name', 'name(argument)' or '0.7*name + 0.3*module:name'"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", f"{LOOKS}, got ''"),
        ("  ", LOOKS),
        ("0.5*", LOOKS),
        ("a +", LOOKS),
        ("a + + + b", LOOKS),
        ("3", LOOKS),
        ("*a", LOOKS),
        ("(a)", LOOKS),
        ("a b", "must be joined by '+' or '-', got 'b' behind 'a' in 'a b'"),
        ("a * 0.5", "must be joined by '+' or '-', got '* 0.5' behind 'a' in 'a * 0.5'; a weight"),
        ("a, b", "must be joined by '+' or '-', got ', b' behind 'a'"),
        ("org/model", "got '/model' behind 'org' in 'org/model'; a folder or hub name stands in"),
        ("c(x))", "reward: a bracket ) was never opened in 'c(x))'"),
        ("a)", "reward: a bracket ) was never opened"),
        ("c(", "reward 'c': a bracket ( is not closed in 'c('"),
        ("c(x", "reward 'c': a bracket ( is not closed in 'c(x'"),
        ("c(x, ", "reward 'c': a bracket ( is not closed"),
        ("c(x, label=", "reward 'c': a bracket ( is not closed"),
        ("c('x)", "reward 'c': a quote ' is not closed in \"c('x)\""),
        ('c("x)', "reward 'c': a quote \" is not closed"),
        ("c(my folder)", "with text that has spaces, quotes, commas, brackets or = in quotes"),
        ("c(x,,y)", "reward 'c' must be given as c(value, keyword=value)"),
        ("c(x,)", "reward 'c' must be given as c(value, keyword=value)"),
        ("c(,)", "reward 'c' must be given as"),
        ("c(a=b=c)", "reward 'c' must be given as"),
        ("c(=1)", "reward 'c' must be given as"),
        ("c('a'b)", "reward 'c' must be given as"),
        ("c(f(x))", "reward 'c' must be given as"),
        (
            "c(label=1, x)",
            "reward 'c': arguments with a keyword must come last, got x behind label=",
        ),
        ("c(x, label=1, label=2)", "reward 'c' must get label once, got it twice"),
        ("c(1e999)", "reward arguments must be finite, got '1e999'"),
        (f"c({'9' * 40})", "reward arguments must be shorter numbers, got '99999"),
        ("1e999*a", "reward weights must be finite, got 1e999"),
    ],
)
def test_what_is_misspelt_gets_one_sentence(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_spec(spec)


PIECES = st.sampled_from(
    [
        *"()+-*,=/._'\" \n\x00\\é²٣",
        *("a", "m:b", "0.5", "1e9", "True", "x y"),
        "\ud800",  # half of a surrogate pair
        "9" * 5000,  # int() refuses it
    ]
)


@settings(max_examples=1000)
@given(st.one_of(st.text(max_size=30), st.lists(PIECES, max_size=14).map("".join)))
def test_any_text_is_read_or_refused_with_a_sentence(spec: str) -> None:
    try:
        terms = parse_spec(spec)
    except ValueError as error:
        refusal = str(error)
    else:
        refusal = "reward: none"
        assert parse_spec(format_spec(terms)) == terms
    assert refusal.startswith("reward")


NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.]{0,6}(:[A-Za-z0-9_.]{1,6})?", fullmatch=True)
KEYWORDS = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,6}", fullmatch=True)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.one_of(
    st.text(max_size=8),
    st.sampled_from(["True", "none", "1", "-1.5e3", ".5", "a b", "", "'", '""', "a=b", "\\", "x)"]),
    st.booleans(),
    st.none(),
    st.integers(-(10**20), 10**20),
    NUMBERS,
)
ARGUMENTS = st.builds(
    Arguments,
    st.lists(VALUES, max_size=3).map(tuple),
    st.dictionaries(KEYWORDS, VALUES, max_size=3).map(lambda d: tuple(d.items())),
)
TERMS = st.builds(RewardTerm, NUMBERS, NAMES, st.none() | ARGUMENTS)


@settings(max_examples=300)
@given(st.lists(TERMS, min_size=1, max_size=3).map(tuple))
def test_what_is_written_is_read_back(terms: tuple[RewardTerm, ...]) -> None:
    back = parse_spec(format_spec(terms))
    assert repr(back) == repr(terms)  # repr tells 1 from 1.0 and 0.0 from -0.0


def test_files_and_folders_are_written_by_their_whole_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "x").mkdir(parents=True)
    (tmp_path / "POSITIVE").mkdir()
    here = tmp_path.resolve()
    assert with_absolute_paths("0.5*c(models, label=POSITIVE)+v") == (
        f"0.5*c({here}/models, label=POSITIVE) + v"
    )
    assert with_absolute_paths("c(model=models/x)") == f"c(model={here}/models/x)"
    # What is not there, and a spec without paths, stays as it was typed.
    for spec in ("c( org/model )+v", "0.70*a+b", "c('')", "c('\x00')", f"c({'a/' * 3000})", "c(1)"):
        assert with_absolute_paths(spec) == spec
