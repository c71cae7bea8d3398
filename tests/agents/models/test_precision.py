"""Lower precision, activations that are computed again, compiled passes: what they may change."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from agents.models import ActorCritic, LanguageModel
from agents.sampling import sample
from agents.train import train
from tests.agents.runs import config, session_of
from tests.agents.tiny import END, VOCABULARY, padded, tiny_actor, tiny_model

PROMPTS = padded([[1, 5, 6], [4, 2]], 3)
IDS = torch.tensor([[3, 4, END], [7, -1, -1]])
FAMILIES = pytest.mark.parametrize("family", ["llama", "gpt2"])


def gradients(actor: ActorCritic) -> list[Tensor]:
    scored = actor.score(PROMPTS, IDS, 1.0)
    (scored.logprobs.sum() + 0.3 * scored.entropy.sum() + scored.values.sum()).backward()
    return [p.grad for p in actor.parameters() if p.grad is not None]


@FAMILIES
def test_autocast_multiplies_in_half_and_keeps_weights_losses_and_gradients_whole(
    family: str,
) -> None:
    full = ActorCritic(tiny_model(family), VOCABULARY)
    half = ActorCritic(tiny_model(family), VOCABULARY, autocast=torch.bfloat16)
    seen: list[torch.dtype] = []
    layer = next(
        m for m in half.model.modules() if isinstance(m, torch.nn.LayerNorm | torch.nn.Linear)
    )
    layer.register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    one, two = full.score(PROMPTS, IDS, 1.0), half.score(PROMPTS, IDS, 1.0)
    assert seen
    assert two.logprobs.dtype == torch.float32
    assert torch.allclose(one.logprobs, two.logprobs, atol=0.05)
    assert not torch.equal(one.logprobs, two.logprobs)
    for a, b in zip(gradients(full), gradients(half), strict=True):
        assert b.dtype == torch.float32
        assert torch.allclose(a, b, atol=0.02 + 0.05 * float(a.abs().max()))
    assert all(p.dtype == torch.float32 for p in half.parameters())


def test_under_autocast_what_is_drawn_is_scored_nearly_the_same() -> None:
    actor = ActorCritic(tiny_model("llama"), VOCABULARY, autocast=torch.bfloat16)
    numbers = torch.rand(2, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    drawn = sample(actor, PROMPTS, numbers, end_ids=(END,), temperature=1.0)
    scored = actor.score(PROMPTS, drawn.response_ids, 1.0)
    assert (scored.logprobs - drawn.logprobs).abs().max() < 0.02


def test_a_run_takes_the_precision_for_agents_and_references() -> None:
    session = session_of(autocast="bfloat16")
    for learner in session.learners.values():
        assert learner.actor.autocast == learner.reference.autocast == torch.bfloat16
    assert session_of().team.learners["agent_0"].actor.autocast is None


@FAMILIES
def test_activations_that_are_computed_again_give_the_same_gradient(family: str) -> None:
    plain, sparing = (ActorCritic(tiny_model(family), VOCABULARY).train() for _ in range(2))
    calls = {"plain": 0, "sparing": 0}

    def count(name: str) -> Any:
        def hook(*_: Any) -> None:
            calls[name] += 1

        return hook

    for name, actor in (("plain", plain), ("sparing", sparing)):
        block = actor.model.base_model.get_submodule("layers.0" if family == "llama" else "h.0")
        inner = next(m for m in block.modules() if m is not block)
        inner.register_forward_hook(count(name))
    sparing.model.activation_checkpointing_enable({"use_reentrant": False})
    for a, b in zip(gradients(plain), gradients(sparing), strict=True):
        assert torch.allclose(a, b, atol=1e-6)
    assert calls == {"plain": 1, "sparing": 2}


@pytest.mark.case(11)
def test_checkpointing_is_on_in_the_update_and_the_run_is_the_same(tmp_path: Path) -> None:
    quick = {"iterations": 1, "dtype": "float64", "eval_queries": 2}
    one = train(config(tmp_path / "a", **quick)).metrics
    two = train(config(tmp_path / "b", gradient_checkpointing=True, **quick)).metrics
    for row in (*one, *two):
        row.pop("seconds")
    assert one == two
    session = session_of(gradient_checkpointing=True)
    for learner in session.learners.values():
        assert learner.actor.model.is_activation_checkpointing
        assert not learner.reference.model.is_activation_checkpointing


def test_a_compiled_pass_scores_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    # Traced as always, but run without the code generator, which takes most of a minute.
    traced = partial(torch.compile, backend="eager")
    monkeypatch.setattr(torch, "compile", traced)
    actor = ActorCritic(tiny_model("llama"), VOCABULARY)
    expected = actor.score(PROMPTS, IDS, 1.0)
    names = set(dict(actor.named_parameters()))
    actor.compile_scoring()
    found = actor.score(PROMPTS, IDS, 1.0)
    assert torch.allclose(expected.logprobs, found.logprobs, atol=1e-5)
    assert torch.allclose(expected.values, found.values, atol=1e-5)
    assert set(dict(actor.named_parameters())) == names  # checkpoints keep their form
    found.logprobs.sum().backward()
    assert all(p.grad is not None for p in actor.model.parameters())


def test_the_probe_allows_for_half_precision() -> None:
    assert LanguageModel(tiny_model("gpt2"), VOCABULARY, autocast=torch.bfloat16).autocast


def test_the_probe_asks_in_full_precision() -> None:
    # Large logits, as real models have them: in half precision they round by more than a fault
    # would show.
    model = tiny_model("llama")
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(300.0)  # type: ignore[union-attr]
    wrapped = LanguageModel(model, VOCABULARY, autocast=torch.bfloat16)
    assert wrapped.autocast == torch.bfloat16


def test_weights_that_are_no_numbers_are_said() -> None:
    model = tiny_model("gpt2")
    with torch.no_grad():
        model.transformer.wte.weight[0, 0] = float("nan")  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="logits that are not finite: its weights hold NaN"):
        LanguageModel(model, VOCABULARY)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_autocast_is_for_float32_weights(dtype: str) -> None:
    with pytest.raises(ValueError, match=f"autocast bfloat16 needs dtype float32, .* got {dtype}"):
        config(autocast="bfloat16", dtype=dtype)


@pytest.mark.parametrize("model", ["", "builtin:target,", " , "])
def test_an_empty_name_is_no_model(model: str) -> None:
    with pytest.raises(ValueError, match="model must name a model, or one an agent, got"):
        config(model=model)


class Casts(TorchDispatchMode):
    """Counts what is brought from single precision to bfloat16, by shape."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: Counter[tuple[int, ...]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and found.dtype == torch.bfloat16:
            self.shapes[tuple(found.shape)] += 1
        return found


@pytest.mark.parametrize("prompts", [[[1, 5], [3, 4]], [[1], [3, 4]]], ids=["whole", "padded"])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_weights_are_brought_to_the_lower_precision_once_for_all_tokens(
    family: str, prompts: list[list[int]]
) -> None:
    actor = tiny_actor(family)
    actor.autocast = torch.bfloat16
    with Casts() as casts:
        drawn = sample(
            actor, padded(prompts, 2), torch.rand(2, 6).double(), end_ids=(-5,), temperature=1.0
        )
    assert drawn.mask.all()  # six tokens each
    shapes = {tuple(p.shape) for p in actor.model.base_model.parameters() if p.ndim == 2}
    each = Counter(tuple(p.shape) for p in actor.model.parameters() if p.ndim == 2)
    counted = {shape: casts.shapes[shape] for shape in shapes if casts.shapes[shape]}
    assert counted and all(times <= each[shape] for shape, times in counted.items())
