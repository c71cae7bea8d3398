"""Ten thousand broken inputs for each parser: an answer or a ValueError, never anything else."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import agents.checkpoint as checkpoint_module
from agents.checkpoint import capture, load_checkpoint, save_checkpoint
from agents.command_line import settings_from_file
from agents.config import TrainConfig
from agents.guards import check_stop_on
from agents.run_folder import RunFolder
from agents.session import _task_keywords
from cory_env.data_files import READERS, SPLITS, read_queries, split_of
from cory_env.mixing import mixing
from cory_env.records import EpisodeRecord, Query
from cory_env.registry import resolve
from cory_env.rewards import REWARDS
from cory_env.rewards.base import make_reward
from cory_env.rewards.exact_number import ExactNumber, extract_number
from cory_env.rules import GameRules
from cory_env.tasks import TASKS
from cory_env.tokens import as_tokenizer
from tests.agents.learners.toy import toy_learner
from tests.agents.runs import config
from tests.mutations import as_bytes, mutants

N = 10_000
fuzz = pytest.mark.slow


def survives(parse: Callable[[Any], Any], inputs: Any, *, some_pass: bool = True) -> None:
    """Feed all inputs; only a ValueError may come out, and it must say something."""
    passed = failed = 0
    for given_input in inputs:
        try:
            parse(given_input)
            passed += 1
        except ValueError as error:
            failed += bool(str(error))
        except BaseException as error:
            raise AssertionError(f"{error!r} of {given_input!r:.300}") from error
    assert passed + failed >= N
    assert (passed > N // 100 or not some_pass) and failed > N // 100


def through_file(path: Path, parse: Callable[[Path], Any], seed: int) -> Callable[[str], Any]:
    rng = random.Random(seed)

    def run(text: str) -> Any:
        path.unlink(missing_ok=True)  # writing over a file, some file systems wait for the disk
        path.write_bytes(as_bytes(text, rng))
        return parse(path)

    return run


# Answers.

ANSWERS = [
    "47 + 38 = 85.",
    "It costs $1,234,567.89 in all.",
    "We get 12, then 30.\n#### 42",
    "#### -1,000 (see step 7)",
    "x=-3, so .5 of it is 50%",
]


@fuzz
def test_answers() -> None:
    for text in mutants(ANSWERS, N, 1):
        number = extract_number(text)
        assert number is None or number.is_finite()


@fuzz
@pytest.mark.case(71)
def test_scores_of_any_text() -> None:
    reward, query = ExactNumber(), Query("q", "85")
    for text in mutants(ANSWERS, N, 2):
        assert reward([query], [text]) in ([0.0], [1.0])


NUMBERS = st.decimals(
    min_value=-(10**12), max_value=10**12, allow_nan=False, allow_infinity=False, places=2
) | st.integers(-(10**15), 10**15).map(Decimal)
WORDS = st.text(alphabet="abc XYZ\n\t.,:;!?()*'\"é", max_size=12)


@st.composite
def written(draw: st.DrawFn) -> tuple[Decimal, str]:
    """A number and a text in which it is the answer."""
    number = draw(NUMBERS)
    sign = "" if number >= 0 else draw(st.sampled_from(["-", "\u2212"]))
    magnitude = abs(number)
    digits = f"{magnitude:,}" if draw(st.booleans()) else f"{magnitude}"
    if "." not in digits and draw(st.booleans()):
        digits += "." + "0" * draw(st.integers(1, 3))
    currency = draw(st.sampled_from(["", "", "$", "€", "£", "¥"]))
    front = sign + currency if draw(st.booleans()) else currency + sign
    unit = draw(st.sampled_from(["", "%", " km", "m", " apples", " dollars", "°", "€", "/h"]))
    stop = draw(st.sampled_from(["", ".", "!", "\n", ". ", ")", "**", '"', ", of course."]))
    before = draw(st.sampled_from(["", " ", "is ", "= ", "(", "**", "x=", ": ", "\n", "#### "]))
    earlier = draw(st.sampled_from(["", "12 and then ", "3/4 of it, ", "Step 1: 2 + 2 = 4.\n"]))
    words = draw(WORDS)
    if before == "":
        words += "\n"
    return number, words + earlier + before + front + digits + unit + stop


@fuzz
@pytest.mark.case(71)
@settings(max_examples=1000)
@given(written())
def test_the_number_of_a_text_made_around_it_is_read(example: tuple[Decimal, str]) -> None:
    number, text = example
    assert extract_number(text) == number, text


@pytest.mark.case(71)
@given(written(), st.sampled_from(["", " or 7", " (see 3)", ", not 12."]))
def test_what_stands_behind_the_marked_answer_does_not_count(
    example: tuple[Decimal, str], behind: str
) -> None:
    number, text = example
    marked = f"It may be 5.\n#### {text.rpartition('####')[2].strip()}"
    found = extract_number(marked)
    assert extract_number(marked + behind) == found
    if "12" not in text and "/" not in text and "Step" not in text:
        assert found == number


# Data files.

DATA = {
    ".txt": ["The film\nA play\n\nthe end", "\ufeffone\r\ntwo\r\n"],
    ".jsonl": [
        '{"query": "2 + 2", "answer": 4, "level": 1}\n{"query": "x", "answer": null}\n',
        '{"query": "a", "answer": "b", "more": {"k": [1, 2.5, true]}}',
    ],
    ".csv": ['query,answer\n"2, or ""two""",4\nx,\n', "answer,query,level\r\n4,a b,3\r\n"],
}


def test_every_text_format_is_tried() -> None:
    assert set(READERS) - set(DATA) == {".parquet"}  # tests/cory_env/data_files/test_parquet.py


@fuzz
@pytest.mark.parametrize("suffix", sorted(DATA))
def test_data_files(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"q{suffix}"

    def parse(file: Path) -> None:
        for query in read_queries(file):
            assert query.text.strip()
            query.text.encode()  # what a tokenizer does first
            assert query.answer is None or isinstance(query.answer, str)
            assert split_of(query.text) in SPLITS

    def named(file: Path) -> None:
        try:
            parse(file)
        except ValueError as error:
            if not str(error).startswith(str(file)):  # which file, and mostly which line
                raise AssertionError(f"{error} names no file") from error
            raise

    survives(through_file(path, named, 3), mutants(DATA[suffix], N, 4))


# Settings.

SETTINGS = {
    ".json": [
        json.dumps({"task": "sums", "learning_rate": 2e-4, "iterations": 3, "resume": False}),
        json.dumps(TrainConfig().to_json() | {"versions": {"torch": "2"}}),
    ],
    ".yaml": [
        "task: sums\nlearning-rate: 2e-4\niterations: 3\nresume: false\n",
        "method: cory\nmax_grad_norm: null\nout: runs/x # here\nkl_coef: 0.1",
    ],
}


@fuzz
@pytest.mark.parametrize("suffix", sorted(SETTINGS))
def test_settings_files(suffix: str, tmp_path: Path) -> None:
    def parse(file: Path) -> None:
        TrainConfig(**settings_from_file(file))

    path = tmp_path / f"c{suffix}"
    survives(through_file(path, parse, 5), mutants(SETTINGS[suffix], N, 6))


@fuzz
def test_task_keywords() -> None:
    examples = ["kappa=0.5", "kappa=1,data=x", "a=[1, 2]", "kappa=, b={c: d}"]
    survives(lambda text: _task_keywords(TrainConfig(task_args=text)), mutants(examples, N, 7))


@fuzz
def test_guards_to_stop_on() -> None:
    survives(check_stop_on, mutants(["all", "kl,entropy", "zero_reward_variance, kl"], N, 8))


# Names.


@fuzz
def test_reward_specs() -> None:
    examples = ["target", "0.7*target + 0.3*exact_number", "-1e-3 * target", "json:dumps"]
    examples += ["2*vader() - builtins:max(1, 'a b', key=None)"]
    survives(make_reward, mutants(examples, N, 9))


@fuzz
@pytest.mark.parametrize("kind", ["task", "reward"])
def test_registry_specs(kind: str) -> None:
    table: Mapping[str, Any] = TASKS if kind == "task" else REWARDS
    examples = [*table, "json:dumps", "cory_env.tasks:TASKS.keys", "tests.agents.rewards:distinct"]
    survives(lambda spec: resolve(spec, table, kind), mutants(examples, N, 10))


# Checkpoints and run folders.


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A checkpoint of one tiny agent that has made a step."""
    learner = toy_learner()
    learner.set_iteration(1, 1)
    for parameter in learner.actor.parameters():
        parameter.grad = torch.zeros_like(parameter)
    learner.optim._optim.step()
    learners = {"agent_0": learner}
    folder = tmp_path_factory.mktemp("checkpoints")
    state = {"counters": {"episodes": 4}, "query_position": 3, "run": {"seed": 0}}
    return save_checkpoint(folder, 1, capture(learners), state), learners


@fuzz
@pytest.mark.case(51)
@pytest.mark.parametrize("forged", [False, True], ids=["damaged", "with right checksums"])
@pytest.mark.parametrize("name", ["state.json", "agent_0.json"])
def test_checkpoint_metadata(
    name: str,
    forged: bool,
    saved: tuple[Path, dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, learners = saved
    file = path / name
    good = file.read_text()
    state = json.loads((path / "state.json").read_text())
    # The tensors are good and the same each time; what is broken here is beside them.
    tensors = {f.name: checkpoint_module.load_file(f) for f in path.glob("*.safetensors")}
    sums = {f.name: checkpoint_module._file_sum(f) for f in path.iterdir()}
    monkeypatch.setattr(checkpoint_module, "load_file", lambda f: dict(tensors[Path(f).name]))
    if forged:
        monkeypatch.setattr(checkpoint_module, "_state_sum", lambda state_: state["checksum"])
        monkeypatch.setattr(checkpoint_module, "_file_sum", lambda f: sums[f.name])

    def parse(_: Path) -> None:
        load_checkpoint(path, learners, {"seed": 0})

    try:
        survives(
            through_file(file, parse, 11), mutants([good, json.dumps(json.loads(good))], N, 12)
        )
    finally:
        file.write_text(good)
    load_checkpoint(path, learners)


@fuzz
def test_run_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        '{"iteration": 1, "a": 0.5}\n{"iteration": 2, "a": null}\n',
        '{"iteration": 1}\n{"iteration": 2}\n{"it',
    ]
    folder = RunFolder(tmp_path)
    # Without waiting for the disk each time.
    monkeypatch.setattr("agents.run_folder.write_text", lambda path, text: path.write_text(text))

    def parse(_: Path) -> None:
        folder.cut_after(1)
        assert [row["iteration"] for row in folder.metrics()] == [1]

    survives(through_file(folder.metrics_file, parse, 13), mutants(rows, N, 14))


@fuzz
def test_the_config_of_a_run_that_is_resumed(tmp_path: Path) -> None:
    good = json.dumps(config(tmp_path).to_json() | {"versions": {"torch": "2"}})
    folder = RunFolder(tmp_path)
    wanted = config(tmp_path, resume=True)
    parse = through_file(folder.config_file, lambda _: folder.check(wanted), 15)
    survives(parse, mutants([good], N, 16), some_pass=False)


@fuzz
def test_records_of_episodes() -> None:
    turn = {
        "agent": "agent_0",
        "role": "pioneer",
        "prompt": "a",
        "prompt_tokens": 1,
        "dropped_tokens": 0,
        "response": "b",
        "response_ids": [1, 2],
        "truncated": False,
        "score": 1.0,
        "payoff": None,
    }
    good = json.dumps({"query": {"text": "a", "answer": None, "metadata": {}}, "turns": [turn]})
    survives(EpisodeRecord.from_json, mutants([good], N, 17))


@fuzz
def test_tokenizer_folders(tmp_path: Path) -> None:
    good = GameRules.make("target").tokenizer.backend.to_str()
    (tmp_path / "tokenizer.json").write_text(good)
    file = tmp_path / "tokenizer_config.json"
    examples = ['{"eos_token": "</s>"}', '{"eos_token": {"content": "</s>", "lstrip": false}}']
    survives(through_file(file, lambda _: as_tokenizer(tmp_path), 18), mutants(examples, N, 19))
    file.write_text(examples[0])
    whole = tmp_path / "tokenizer.json"
    survives(through_file(whole, lambda _: as_tokenizer(tmp_path), 20), mutants([good], N, 21))


# The rules: any action, and any matrix.

RULES = GameRules.make("target", max_response_tokens=3)


@fuzz
def test_actions() -> None:
    rng = np.random.default_rng(20)
    odd: list[Any] = [None, "abc", 7, 2.5, b"x", {}, [], [[1, 2], [3]]]
    cells: list[Any] = [None, "a", 1, 2.5, True, float("nan"), 10**30]
    kinds: list[Callable[[], Any]] = [
        lambda: rng.integers(-3, 15, rng.integers(0, 5)),
        lambda: rng.integers(-1, 12, 3),
        lambda: rng.random(3),
        lambda: [cells[i] for i in rng.integers(len(cells), size=3)],
        lambda: rng.integers(-1, 12, (3, 1)),
        lambda: odd[rng.integers(len(odd))],
        lambda: np.array([1, 2, 3]).astype(str(rng.choice(["uint8", "uint64", "bool", "O"]))),
    ]

    def parse(action: Any) -> None:
        tokens = RULES.parse_action(action)
        assert len(tokens) <= 3 and all(0 <= t < RULES.tokenizer.vocab_size for t in tokens)
        assert not set(tokens[:-1]) & set(RULES.tokenizer.end_ids)

    survives(parse, (kinds[rng.integers(len(kinds))]() for _ in range(N)))


@fuzz
def test_mixings() -> None:
    rng = random.Random(21)
    cells = [0, 1, -1.5, "x", None, float("nan"), float("inf"), True, [], 10**400]

    def spec() -> Any:
        if rng.random() < 0.2:
            return rng.choice(["sum", "own", "competitive", "exact", "", 3, None, {}, [], [[]]])
        n = rng.choice((1, 2, 2, 2, 2, 3))
        few = cells[: rng.choice((3, 3, len(cells)))]
        return [[rng.choice(few) for _ in range(n)] for _ in range(n)]

    def parse(given_spec: Any) -> None:
        paid = mixing(given_spec, 2)(np.array([1.0, 2.0]))
        assert paid.shape == (2,) and np.isfinite(paid).all()

    survives(parse, (spec() for _ in range(N)))
