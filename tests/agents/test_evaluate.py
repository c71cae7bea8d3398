"""Tests of agents/evaluate.py, play.py and trained.py: `cory-eval` and `cory-play`."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import agents.evaluate
import agents.play
from agents.config import TrainConfig
from agents.evaluate import EvalCommand, evaluate
from agents.models.load import load_model
from agents.play import PlayCommand, play
from agents.train import TrainResult, train
from tests.agents.runs import stopping_after, training_of

NAMES = ("score", "kl", "distinct_2", "response_tokens", "truncated")


@pytest.fixture
def run(cory_run: TrainResult, tmp_path: Path) -> Path:
    """A finished run, to write into."""
    return shutil.copytree(cory_run.out, tmp_path / "run")


def test_a_finished_run_is_judged_as_at_its_end(cory_run: TrainResult, run: Path) -> None:
    rows = evaluate(EvalCommand(run=run, split="validation", queries=6))
    last = cory_run.metrics[-1]
    assert set(rows) == {
        "agent_0", "agent_0 as observer", "agent_1", "agent_1 as observer",
    }  # fmt: skip
    for agent in ("agent_0", "agent_1"):
        assert rows[agent]["hidden_score"] is None  # this task has no second scorer
        for name in NAMES:
            # Weights in other places of the memory may round the last digit otherwise.
            alone, observer = rows[agent][name], rows[f"{agent} as observer"][name]
            assert alone == pytest.approx(last[f"eval/{agent}/{name}"], rel=1e-5), name
            assert observer == pytest.approx(last[f"observer_eval/{agent}/{name}"], rel=1e-5)
    written = json.loads((run / "eval_validation.json").read_text())
    assert written == {"split": "validation", "which": "final", "agents": rows}


def test_a_run_keeps_its_precision(run_of: Callable[..., TrainResult], tmp_path: Path) -> None:
    result = run_of(iterations=2, dtype="float64")
    rows = evaluate(
        EvalCommand(run=result.out, split="validation", queries=6, out=tmp_path / "e.json")
    )
    # Rounded to float32 the weights would give another KL by far more than this.
    assert rows["agent_0"]["kl"] == pytest.approx(
        result.metrics[-1]["eval/agent_0/kl"], rel=1e-12, abs=0
    )
    assert (tmp_path / "e.json").is_file()


def test_the_best_agent_is_one_row(run: Path) -> None:
    rows = evaluate(EvalCommand(run=run, which="best", queries=6))
    assert list(rows) == ["best"]


def test_a_foreign_model_has_no_kl_without_a_reference(tmp_path: Path) -> None:
    options: dict[str, Any] = {"model": "builtin:target", "task": "target", "queries": 6}
    rows = evaluate(EvalCommand(**options))
    assert rows["agent_0"]["kl"] is None
    assert rows["agent_0"]["response_tokens"] > 2
    short = evaluate(EvalCommand(**options, max_response_tokens=2))
    assert short["agent_0"]["response_tokens"] <= 2
    rows = evaluate(EvalCommand(**options, reference="builtin:target", out=tmp_path / "e.json"))
    assert rows["agent_0"]["kl"] == pytest.approx(0.0, abs=1e-6)


def test_the_table_is_printed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluate(EvalCommand(run=run, queries=3))
    shown = capsys.readouterr().out
    assert "agent_1 as observer" in shown and "KL (nats)" in shown


def failing(
    module: Any,
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> str:
    monkeypatch.setattr(sys, "argv", ["command", *arguments])
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        module.main()
    assert stop.value.code == 1
    shown = capsys.readouterr().err.strip()
    assert shown.startswith("error: ") and len(shown.splitlines()) == 1
    return shown


@pytest.mark.parametrize("module", [agents.evaluate, agents.play])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either --run with a run folder or --model"),
        (["--run", "a", "--model", "b"], "give either --run with a run folder or --model"),
        (["--run", "nowhere"], "must be a run folder with a config.json"),
        (["--model", "./nowhere", "--task", "target"], "there is no such folder"),
        (["--model", "builtin:target", "--task", "riddles"], "unknown task"),
        (
            ["--model", "builtin:target", "--task", "target", "--max-response-tokens", "500"],
            "max_prompt_tokens + max_response_tokens must fit the context of 'builtin:target': ",
        ),
    ],
)
def test_bad_input_ends_with_one_sentence(
    module: Any,
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert message in failing(module, arguments, monkeypatch, capsys)


def test_more_of_it(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*arguments: str) -> str:
        return failing(agents.evaluate, ["--run", str(run), *arguments], monkeypatch, capsys)

    assert "which must be final or best" in refused("--which", "worst")
    assert "split" in refused("--split", "training")
    assert "queries must be at least 1" in refused("--queries", "0")
    assert "must have the agents' tokenizer" in refused("--reference", "builtin:sums")


def test_an_unfinished_run_says_how_to_go_on(tmp_path: Path) -> None:
    training_of(tmp_path / "run", stopping_after(1)).run()
    with pytest.raises(ValueError, match=r"was not finished; go on with cory-train --resume"):
        evaluate(EvalCommand(run=tmp_path / "run"))


# cory-play


def test_a_run_plays_its_own_game(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert play(PlayCommand(run=run, query=("a d", "b c"))) == 2
    shown = capsys.readouterr().out
    assert "a d" in shown and "b c" in shown
    assert shown.index("pioneer") < shown.index("observer")
    capsys.readouterr()
    play(PlayCommand(run=run, query=("a d", "b c")))
    assert capsys.readouterr().out == shown  # the same seed
    play(PlayCommand(run=run, query=("a d", "b c"), seed=1))
    assert capsys.readouterr().out != shown


def test_the_turn_order_can_be_given(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    play(PlayCommand(run=run, query=("a d",), turn_order="agent_1,agent_0"))
    shown = capsys.readouterr().out
    assert shown.index("agent_1") < shown.index("agent_0")
    with pytest.raises(ValueError, match="turn_order"):
        play(PlayCommand(run=run, query=("a d",), turn_order="agent_1"))


def test_queries_of_the_task_or_typed_ones(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert play(PlayCommand(run=run, random=3)) == 3
    monkeypatch.setattr(sys, "stdin", io.StringIO("a d\n\nb c\n"))
    assert play(PlayCommand(model="builtin:target", task="target", n_agents=1)) == 2
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    shown = failing(agents.play, ["--run", str(run)], monkeypatch, capsys)
    assert "no query was given" in shown


def test_queries_that_are_given_need_no_data(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"model": "builtin:target", "task": "custom", "reward": "target"}
    options |= {"task_args": "observer_template={query} {references}", "max_prompt_tokens": 32}
    options["max_response_tokens"] = 8
    assert play(PlayCommand(**options, query=("a d", "b c"))) == 2
    monkeypatch.setattr(sys, "stdin", io.StringIO("a d\n"))
    assert play(PlayCommand(**options)) == 1
    assert capsys.readouterr().out.count("a d") >= 2
    with pytest.raises(ValueError, match=r"has no queries of its own: give data"):
        play(PlayCommand(**options, random=3))


def test_a_query_that_is_given_has_its_answer_from_the_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "test.csv"
    path.write_text("query,answer\na d,1\n")
    command = PlayCommand(
        model="builtin:target",
        task="custom",
        reward="exact_number",
        data=tmp_path,
        query=("a d",),
        n_agents=1,
        max_prompt_tokens=32,
        max_response_tokens=8,
    )
    assert play(command) == 1
    with pytest.raises(ValueError, match="exact_number needs queries with a number as answer"):
        play(replace(command, data=None))


def two_models(tmp_path: Path) -> str:
    """Two models of one tokenizer and different widths, as `--model` takes them."""
    from transformers import LlamaConfig, LlamaForCausalLM

    loaded = load_model("builtin:target")
    names = []
    for width in (16, 32):
        settings = {
            **loaded.model.config.to_dict(),
            "hidden_size": width,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "head_dim": width // 4,
        }
        torch.manual_seed(width)
        model = LlamaForCausalLM(LlamaConfig(**settings))
        folder = tmp_path / f"width_{width}"
        model.save_pretrained(folder)
        loaded.tokenizer.save_pretrained(folder)
        names.append(str(folder))
    return ",".join(names)


def test_agents_of_different_width_train_and_the_best_is_judged_by_its_own_reference(
    tmp_path: Path,
) -> None:
    names = two_models(tmp_path).split(",")
    best_of = set()
    for order in (names, names[::-1]):  # the better model sits in one seat, then in the other
        out = tmp_path / f"run_{len(best_of)}"
        config = TrainConfig(
            task="target",
            model=",".join(order),
            iterations=2,
            batch_size=16,
            eval_interval=2,
            eval_queries=108,
            learning_rate=1e-2,
            progress=False,
            tensorboard=False,
            out=out,
        )
        result = train(config)
        best = json.loads((out / "best" / "selection.json").read_text())
        best_of.add(best["agent"])
        rows = evaluate(EvalCommand(run=out, which="best", split="validation", queries=108))
        assert rows["best"]["kl"] == pytest.approx(best["kl"], rel=1e-4)
        rows = evaluate(EvalCommand(run=out, split="validation", queries=108))
        for agent in ("agent_0", "agent_1"):
            expected = result.metrics[-1][f"eval/{agent}/kl"]
            assert rows[agent]["kl"] == pytest.approx(expected, rel=1e-4)
    assert best_of == {"agent_0", "agent_1"}
