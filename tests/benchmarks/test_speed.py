"""Tests of benchmarks/{floor,speed}.py: what is compared is the same work. No times."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2LMHeadModel

from agents.models import LanguageModel
from benchmarks import speed
from benchmarks.floor import PlainGPT2, Work, generate, iteration
from benchmarks.speed import SHAPES, Result, Settings, Shape, SpeedTask, report, stage_table

SMALL = Shape(2, 16, 2, 40, 4, 50, 1.1)


@pytest.fixture(scope="module", name="model")
def model_fixture(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("model")
    speed.write_model(folder, SMALL)
    return GPT2LMHeadModel.from_pretrained(folder).eval()


def test_the_floor_computes_what_the_model_computes(model: Any) -> None:
    plain = PlainGPT2(model)
    ids = torch.randint(0, 40, (3, 9), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = model(ids).logits
        assert torch.allclose(plain.logits(plain.hidden(ids)), expected, atol=1e-5)


def test_the_floor_draws_from_the_distributions_it_would_score(model: Any) -> None:
    plain = PlainGPT2(model)
    prompts = torch.randint(0, 40, (3, 5), generator=torch.Generator().manual_seed(2))
    ids, logps, values, wholes = generate(plain, Work(prompts, 4, 1, "exact", True))
    assert values.abs().max() == 0.0  # the value head starts at zero
    actor = LanguageModel(model, 40)
    with torch.no_grad():
        scored = actor.score(prompts, ids, 1.0)
    assert torch.allclose(scored.logprobs, logps, atol=1e-5)
    assert torch.allclose(wholes.exp().sum(-1), torch.ones(3, 4), atol=1e-5)


@pytest.mark.parametrize("estimator", ["exact", "reference"])
def test_with_and_without_the_fused_pass_the_floor_learns_the_same(
    estimator: str, model: Any
) -> None:
    prompts = torch.randint(0, 40, (3, 5), generator=torch.Generator().manual_seed(2))
    learnt = []
    for fused in (True, False):
        plain, reference = PlainGPT2(model), PlainGPT2(model)
        torch.manual_seed(0)
        stages = iteration(plain, plain.trained(), reference, Work(prompts, 4, 2, estimator, fused))
        assert set(stages) == {"generate", "reference", "update"}
        learnt.append(plain.weights["transformer.h.0.mlp.c_fc.weight"].detach())
    before = model.transformer.h[0].mlp.c_fc.weight
    assert not torch.equal(learnt[0], before)
    assert torch.allclose(*learnt, atol=1e-7)


def test_prompts_have_the_lengths_of_the_shape() -> None:
    task = SpeedTask(vocabulary=2048, observer_tokens=58)
    tokenizer, query = task.tokenizer(), task.queries("train")[0]
    response = " ".join(["w5"] * 16)
    assert len(tokenizer.encode(task.prompt("pioneer", query, []))) == 8
    assert len(tokenizer.encode(task.prompt("observer", query, [response]))) == 58


def test_an_iteration_of_the_product_is_one_of_training(tmp_path: Path) -> None:
    made = speed.product(tmp_path, SMALL)
    spent = speed.product_iteration(made)
    assert set(spent) == {*speed.STAGES}
    assert sum(spent.values()) == pytest.approx(2 * spent["total"])
    row = made.training.folder.metrics()[0]
    assert row["scored_responses"] == 2 * SMALL.queries and row["optimizer_steps"] == 2 * 4


def result(ratio: float, cpu: float) -> Result:
    stages = dict.fromkeys(speed.STAGES, 0.5)
    return Result(Settings("tiny"), stages, stages, (ratio - 1, ratio, ratio + 1), cpu, 64)


def test_the_table_has_the_ratios_and_the_responses_per_second() -> None:
    table = stage_table(result(1.5, 1.25))
    assert "median 1.500 (range 0.500-2.500), from CPU seconds 1.250" in table
    assert "128.0 responses/s of 64 an iteration" in table


@pytest.mark.parametrize(
    ("ratio", "cpu", "status"), [(1.09, 1.2, 0), (1.2, 1.09, 0), (1.2, 1.2, 1)]
)
def test_it_fails_above_its_limit(
    ratio: float,
    cpu: float,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(speed, "compare", lambda settings, rounds: result(ratio, cpu))
    monkeypatch.setattr(speed, "peak_alone", lambda shape, threads: 100.0)
    monkeypatch.setitem(SHAPES, "tiny", replace(SHAPES["tiny"], limit=1.1))
    assert report(["tiny"], 1, 1, more=False) == status
    assert ("FAILED: tiny" in capsys.readouterr().out) == bool(status)
