"""Runs of chat models: training, judging and playing with the model's chat template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from agents.config import TrainConfig
from agents.evaluate import EvalCommand, evaluate
from agents.header import run_header
from agents.influence import InfluenceCommand
from agents.models.target import draw_weights
from agents.play import PlayCommand, _game, play
from agents.trained import open_agents
from agents.training import Training
from tests.agents.runs import lines, session_of, training_of
from tests.cory_env.chats import CHATML, END, EOS, INST, SEVEN, chatty, letters

FRAME = (
    "<|start|>system\nAdd.<|end|>\n"
    "<|start|>user\nQ: 1 + 1\nA:<|end|>\n<|start|>assistant\n2<|end|>\n"
    "<|start|>user\n{}<|end|>\n<|start|>assistant\nSo:"
)


def chat_model(path: Path, template: str | None = CHATML) -> Path:
    """A folder with a tiny model of random weights and a chat tokenizer."""
    tokenizer = chatty(template)
    ids = {"bos_token_id": 0, "eos_token_id": EOS, "pad_token_id": 4}
    with torch.random.fork_rng(devices=[]):
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(tokenizer),
                hidden_size=16,
                intermediate_size=32,
                num_hidden_layers=1,
                num_attention_heads=2,
                max_position_embeddings=512,
                **ids,
            )
        )
        draw_weights(model, 0, std=0.3)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model(tmp_path_factory.mktemp("chat") / "model")


@pytest.fixture(scope="module")
def settings(model: Path) -> dict[str, Any]:
    queries = model.parent / "queries.txt"
    queries.write_text("\n".join(f"{a} + {b}" for a in range(8) for b in range(8)))
    examples = model.parent / "examples.jsonl"
    examples.write_text(json.dumps({"query": "1 + 1", "answer": 2}))
    return {
        "task": "tests.cory_env.chats:Asked",
        "model": str(model),
        "data": queries,
        "reward": "vader",  # these queries have no answers
        "system_prompt": "Add.",
        "few_shot": examples,
        "generation_prompt": "So:",
        "batch_size": 8,
        "eval_queries": 2,
        "iterations": 1,
        "update_epochs": 1,
        "minibatch_size": None,
    }


@pytest.fixture(scope="module")
def trained(settings: dict[str, Any]) -> Training:
    training = training_of(settings["few_shot"].parent / "run", **settings)
    training.run()
    return training


@pytest.mark.case(27, 28)
def test_both_agents_of_a_run_read_the_template(trained: Training) -> None:
    tokenizer = AutoTokenizer.from_pretrained(trained.session.config.model)
    rows = lines(trained.folder.path / "samples.jsonl")
    assert len(rows) == 4
    for row in rows:
        query, prompts = row["query"], row["prompts"]
        assert prompts["agent_0"] == FRAME.format(f"Q: {query}\nA:")
        quoted = " ".join(row["responses"]["agent_0"].splitlines())
        assert prompts["agent_1"] == FRAME.format(f"Q: {query}\nR: {quoted}\nA:")
    # What was trained on are the library's own ids of that text.
    for agent, rollout in trained.session.team.rollouts.items():
        for number, ids in zip(rollout.episode.tolist(), rollout.prompt_ids, strict=True):
            record = trained.session.env.records()[number]
            text = next(turn.prompt for turn in record.turns if turn.agent == agent)
            assert ids[ids >= 0].tolist() == tokenizer(text)["input_ids"]


def test_the_header_says_whether_the_template_is_used(
    trained: Training, settings: dict[str, Any]
) -> None:
    shown = run_header(trained.session, Path("here"))
    assert (
        "  prompts  chats by the model's own template, with a system prompt, 1 example, "
        "answers begin with 'So:'\n"
    ) in shown
    plain = session_of(task="target")
    assert "  prompts  plain text, no chat template\n" in run_header(plain, Path("here"))


def test_agents_are_judged_with_the_template_of_the_run(trained: Training) -> None:
    alone = trained.session.alone_runner.rules
    assert alone.frame == trained.session.rules.frame
    assert alone.prompts.build("pioneer", SEVEN).text == FRAME.format("Q: 3 + 4\nA:")


def test_a_run_knows_its_examples_by_their_whole_path(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(settings["few_shot"].parent)
    session = session_of(**{**settings, "few_shot": Path("examples.jsonl")})
    assert session.config.few_shot == settings["few_shot"].resolve()


@pytest.mark.case(17)
def test_a_sampled_response_ends_with_the_end_of_a_turn(trained: Training) -> None:
    assert trained.session.rules.tokenizer.end_ids == (EOS, END)
    for policy in trained.session.evaluators.values():
        assert policy.end_ids == (EOS, END)
    assert trained.session.alone_runner.rules.tokenizer.end_ids == (EOS, END)


def test_a_finished_run_is_opened_with_its_own_settings(trained: Training) -> None:
    run = trained.folder.path
    opened = open_agents(run=run, model=None, config=TrainConfig(), reference=None)
    assert opened.rules.frame == trained.session.rules.frame is not None
    rows = evaluate(EvalCommand(run=run, split="validation", queries=2))
    last = lines(run / "metrics.jsonl")[-1]
    for agent in ("agent_0", "agent_1"):
        assert rows[agent]["kl"] == pytest.approx(last[f"eval/{agent}/kl"], rel=1e-4, abs=1e-7)


def test_a_run_is_played_with_its_own_settings(
    trained: Training, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained.folder.path
    assert play(PlayCommand(run=run, query=("3 + 4",))) == 1
    assert "Query: 3 + 4" in capsys.readouterr().out
    game = _game(open_agents(run=run, model=None, config=TrainConfig(), reference=None))
    game.reset(options={"query": SEVEN})
    assert game.infos["agent_0"]["prompt"] == FRAME.format("Q: 3 + 4\nA:")


@pytest.mark.parametrize("command", [EvalCommand, PlayCommand, InfluenceCommand])
def test_a_foreign_model_takes_the_same_flags(
    command: Any, model: Path, settings: dict[str, Any]
) -> None:
    names = ("task", "system_prompt", "few_shot", "generation_prompt")
    given = command(model=str(model), **{name: settings[name] for name in names})
    config = TrainConfig(task=given.task, **given.chat)
    opened = open_agents(run=None, model=str(model), config=config, reference=None)
    text = opened.rules.prompts.build("pioneer", SEVEN).text
    assert text == FRAME.format("Q: 3 + 4\nA:")
    never = TrainConfig(task=given.task, **command(chat_template="never").chat)
    opened = open_agents(run=None, model=str(model), config=never, reference=None)
    assert opened.rules.prompts.build("pioneer", SEVEN).ids == tuple(letters("Q: 3 + 4\nA:"))


@pytest.mark.parametrize(
    "change",
    [
        {"system_prompt": "Subtract."},
        {"system_prompt": None},
        {"generation_prompt": ""},
        {"chat_template": "always"},
        {"few_shot": None},
    ],
)
def test_other_prompts_are_refused_on_resume(
    trained: Training, settings: dict[str, Any], change: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        training_of(
            trained.folder.path, **{**settings, "iterations": 2, "resume": True, **change}
        ).run()


def test_examples_that_have_changed_since_are_refused_on_resume(
    trained: Training, settings: dict[str, Any]
) -> None:
    examples, before = settings["few_shot"], settings["few_shot"].read_text()
    examples.write_text(json.dumps({"query": "1 + 1", "answer": 3}))
    try:
        with pytest.raises(ValueError, match="chat template"):
            training_of(trained.folder.path, **{**settings, "iterations": 2, "resume": True}).run()
    finally:
        examples.write_text(before)


def test_agents_with_different_templates_are_refused_where_one_is_used(
    model: Path, settings: dict[str, Any], tmp_path: Path
) -> None:
    other = chat_model(tmp_path / "other", INST)
    both = {**settings, "model": f"{model},{other}"}
    with pytest.raises(ValueError, match=r"must share a chat template: .*model' and .*other'"):
        session_of(**both)
    plain = ("system_prompt", "few_shot", "generation_prompt")
    alone = {name: value for name, value in both.items() if name not in plain}
    assert session_of(**alone, chat_template="never").rules.frame is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"chat_template": "sometimes"}, "chat_template must be one of auto, always, never"),
        ({"system_prompt": 3}, "system_prompt must be text, got 3"),
        ({"few_shot": 3}, "few_shot must be a path, got 3"),
        ({"generation_prompt": None}, "generation_prompt must be text, got None"),
    ],
)
def test_bad_settings_are_refused_at_once(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TrainConfig(**change)


def test_a_system_prompt_for_a_model_without_a_template_is_refused(tmp_path: Path) -> None:
    plain = chat_model(tmp_path / "plain", None)
    with pytest.raises(
        ValueError, match=r"^a system prompt cannot be used without .*the tokenizer has none"
    ):
        session_of(task="tests.cory_env.chats:Asked", model=str(plain), system_prompt="Add.")
