"""Token ids end to end, with tokenizers that do not give back the ids they decoded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from agents.models.load import load_model
from agents.train import Training
from cory_env import GameRules, cory_v0
from cory_env.tokens import as_tokenizer
from tests.agents.runs import training_of
from tests.cases.models import KINDS, byte_level, fast, model_folder, sentencepiece


@pytest.fixture(scope="module", params=KINDS)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Training:
    """One iteration of a model whose random words are mostly no good English."""
    root = tmp_path_factory.mktemp(request.param)
    training = training_of(
        root / "run",
        model=str(model_folder(root / "model", request.param)),
        iterations=1,
        batch_size=32,
        max_prompt_tokens=120,
        max_response_tokens=8,
        eval_queries=2,
        update_epochs=1,
    )
    training.run()
    return training


@pytest.mark.case(25, 26)
def test_the_trained_tokens_are_the_sampled_ones_although_text_would_give_others(
    trained: Training,
) -> None:
    session = trained.session
    tokenizer = session.rules.tokenizer
    records = session.env.records()
    changed = 0
    for agent, rollout in session.team.rollouts.items():
        for number, ids in zip(rollout.episode.tolist(), rollout.response_ids, strict=True):
            turn = next(t for t in records[number].turns if t.agent == agent)
            written = tuple(ids[ids >= 0].tolist())
            assert turn.response_ids == written
            assert turn.response == tokenizer.decode(written)
            body = [t for t in written if t not in tokenizer.end_ids]
            changed += tokenizer.encode(turn.response) != body
    assert changed > 5  # otherwise nothing has been shown


@pytest.mark.case(25, 27, 31)
def test_each_agent_reads_its_own_prompt_token_by_token(trained: Training) -> None:
    session = trained.session
    tokenizer, task = session.rules.tokenizer, session.task
    records = session.env.records()
    for agent, rollout in session.team.rollouts.items():
        for number, ids in zip(rollout.episode.tolist(), rollout.prompt_ids, strict=True):
            record = records[number]
            seat = next(i for i, turn in enumerate(record.turns) if turn.agent == agent)
            earlier = [turn.response for turn in record.turns[:seat]]
            text = task.prompt(record.turns[seat].role, record.query, earlier)
            assert record.turns[seat].prompt == text
            assert ids[ids >= 0].tolist() == tokenizer.encode_prompt(text)


@pytest.mark.case(30)
@pytest.mark.parametrize("text", ["a d |", "", " a", "<s> a d |", "a <s> b", "Q: 1\nA:"])
@pytest.mark.parametrize("form", ["tokenizers", "transformers", "folder"])
def test_a_prompt_has_exactly_one_begin_token_at_its_front(
    form: str, text: str, tmp_path: Path
) -> None:
    made = sentencepiece()
    if form == "tokenizers":
        tokenizer = as_tokenizer(made)
    else:
        wrapped = fast("sentencepiece", pad_is_end=True)
        wrapped.save_pretrained(tmp_path)
        tokenizer = as_tokenizer(wrapped if form == "transformers" else tmp_path)
    ids = tokenizer.encode_prompt(text)
    spelled = text.count("<s>") - text.startswith("<s>")
    assert ids[0] == 1
    assert ids.count(1) == 1 + spelled  # what the text itself says further on stays


@pytest.mark.case(30)
def test_a_tokenizer_without_a_begin_token_gets_none() -> None:
    tokenizer = as_tokenizer(byte_level())
    assert tokenizer.encode_prompt("a d |") == tokenizer.encode("a d |")
    assert tokenizer.decode(tokenizer.encode_prompt("a d |")) == "a d |"


@pytest.mark.case(27, 30)
def test_golden_ids_of_pioneer_and_observer() -> None:
    # Letters of the target task: "a" is 6, "b" 7, "d" 9, "|" 5, "<s>" 1, "</s>" 2.
    env = cory_v0.raw_env()
    env.reset(options={"query": "a d", "turn_order": ["agent_1", "agent_0"]})
    assert env.observe("agent_1").tolist() == [-1] * 8 + [1, 6, 9, 5]
    env.step(np.array([7, 2, -1]))
    assert env.observe("agent_0").tolist() == [-1] * 6 + [1, 6, 9, 5, 7, 5]


@pytest.mark.parametrize("kind", KINDS)
def test_a_game_takes_either_kind(kind: str, tmp_path: Path) -> None:
    text = load_model(str(model_folder(tmp_path / "model", kind))).text_tokenizer
    rules = GameRules.make("target", tokenizer=text, max_prompt_tokens=60)
    assert rules.tokenizer.vocab_size == text.vocab_size
