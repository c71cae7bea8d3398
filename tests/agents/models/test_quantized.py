"""Tests of agents/models/quantized.py: bases of 4 bits.

A CUDA device is asked for, but the library's numbers can be computed without one: where it is
installed, the tests of whole runs take the CPU as well.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import agents.models.load
from agents.evaluate import EvalCommand, evaluate
from agents.models import quantized
from agents.models.adapters import AdapterModel
from agents.models.load import load_model
from agents.models.quantized import check_quantize
from agents.models.target import random_target
from agents.train import train
from tests.agents.runs import assert_same_tensors, config, session_of, weights, without_seconds
from tests.agents.test_lora_runs import played, step_zero

FOUR_BITS: dict[str, Any] = {
    "lora_rank": 2,
    "learning_rate": 1e-2,
    "quantize": "4bit",
    "export": "adapter",
}


# Refusals: they need neither the device nor the library.


def test_without_a_cuda_device_four_bits_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"quantize 4bit needs a CUDA device: .* got cpu"):
        train(config(tmp_path / "run", **FOUR_BITS))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("missing", ["bitsandbytes", "accelerate"])
def test_a_missing_package_is_named(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(name: str) -> object:
        return None if name == missing else object()

    monkeypatch.setattr(quantized, "find_spec", found)
    with pytest.raises(ValueError, match=rf"needs {missing}, .*cory-env\[quantize\]"):
        check_quantize("4bit", torch.device("cuda"))


def test_other_ways_are_refused() -> None:
    with pytest.raises(ValueError, match="quantize must be none or 4bit, got '8bit'"):
        load_model("builtin:target", quantize="8bit")


def test_a_built_in_model_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents.models.load, "check_quantize", lambda *_: None)
    with pytest.raises(
        ValueError, match="needs a model folder or a hub name, got 'builtin:target'"
    ):
        load_model("builtin:target", quantize="4bit")


# The product, with numbers that are not packed.


def product(x: Tensor, weight: Tensor) -> Tensor:
    return quantized._Product.apply(x, weight)  # type: ignore[no-any-return]


def test_a_product_is_that_of_the_unpacked_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    # Packed as hundredths.
    packed = torch.tensor([[100, -200, 50], [0, 25, 300]])
    monkeypatch.setattr(quantized, "_unpacked", lambda w, dtype: w.to(dtype) / 100)
    x = torch.tensor([[1.0, 2.0, 4.0]], dtype=torch.float64, requires_grad=True)
    out = product(x, packed)
    assert out.tolist() == [[1 - 4 + 2, 0.5 + 12]]
    out.backward(torch.tensor([[1.0, 10.0]], dtype=torch.float64))
    assert x.grad is not None and x.grad.tolist() == [[1.0, -2 + 2.5, 0.5 + 30]]
    assert torch.autograd.gradcheck(lambda x: product(x, packed), (x,))
    with torch.no_grad():
        assert torch.equal(product(x, packed), out)


# Whole runs with the library's numbers.


@pytest.fixture(
    params=[
        pytest.param(
            "cpu",
            marks=pytest.mark.skipif(
                importlib.util.find_spec("bitsandbytes") is None, reason="needs bitsandbytes"
            ),
        ),
        pytest.param(
            "cuda",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
            ],
        ),
    ]
)
def settings(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """A run of adapters on a base of 4 bits."""
    if request.param == "cpu":
        monkeypatch.setattr(agents.models.load, "check_quantize", lambda *_: None)
    loaded = random_target(0)
    loaded.model.save_pretrained(tmp_path / "base")
    loaded.tokenizer.save_pretrained(tmp_path / "base")
    return {**FOUR_BITS, "model": str(tmp_path / "base"), "device": request.param}


@pytest.mark.case(2, 3)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("mode", ["eval", "train"])
def test_with_four_bits_the_policy_is_the_reference(
    dtype: str, mode: str, settings: dict[str, Any]
) -> None:
    session = session_of(**settings, dtype=dtype)
    for learner in session.learners.values():
        learner.actor.train(mode == "train")
    for ours, theirs, kl in step_zero(session).values():
        assert torch.equal(ours, theirs)
        assert float(kl.detach().abs().max()) == 0.0


def test_four_bits_stay_and_adapters_move(settings: dict[str, Any]) -> None:
    session = session_of(**settings)
    actors = [learner.actor for learner in session.learners.values()]
    assert all(isinstance(actor, AdapterModel) for actor in actors)
    base = actors[0].base  # type: ignore[union-attr]
    packed = [p for p in base.model.parameters() if p.dtype == torch.uint8]
    assert len(packed) == 2 * 7  # type: ignore[comparison-overlap]
    before, state = [a.checksum for a in actors], base.checksum  # type: ignore[union-attr]
    played(session, 1)
    assert all(a.checksum != b for a, b in zip(actors, before, strict=True))  # type: ignore[union-attr]
    base._sum = None  # type: ignore[union-attr]
    assert base.checksum == state  # type: ignore[union-attr]


def test_a_run_of_four_bits_resumes_and_is_judged(settings: dict[str, Any], tmp_path: Path) -> None:
    whole = train(config(tmp_path / "whole", **settings))
    train(config(tmp_path / "run", **settings, iterations=2))
    run = train(config(tmp_path / "run", **settings, resume=True))
    if settings["device"] == "cpu":  # kernels of a GPU may add in another order
        rows = [without_seconds(r.metrics)[2:] for r in (whole, run)]
        assert rows[0] == rows[1]
        assert_same_tensors(weights(whole.out / "final"), weights(run.out / "final"))
    rows_ = evaluate(
        EvalCommand(run=run.out, split="validation", queries=6, device=settings["device"])
    )
    assert rows_["agent_0"]["kl"] == pytest.approx(run.metrics[-1]["eval/agent_0/kl"], rel=1e-3)


@pytest.mark.case(32)
def test_training_goes_on_from_an_adapter_of_four_bits(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    run = train(config(tmp_path / "run", **settings, iterations=1))
    session = session_of(**{**settings, "model": str(run.out / "final" / "agent_1")})
    for ours, theirs, _ in step_zero(session).values():
        assert torch.equal(ours, theirs)
