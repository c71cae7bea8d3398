"""Tests of agents/models/adapters.py and shared_base.py: several agents on one frozen base."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from agents.models.adapters import AdapterActorCritic, AdapterModel, recompute_activations
from agents.models.shared_base import AdapterShape, SharedBase
from agents.models.target import draw_weights
from tests.agents.tiny import VOCABULARY, tiny_actor, tiny_model

FAMILIES = pytest.mark.parametrize("family", ["llama", "gpt2"])
AUTO = AdapterShape(rank=2, alpha=6.0, targets=("auto",))
PROMPTS, RESPONSES = torch.tensor([[-1, 5, 6], [1, 7, 8]]), torch.tensor([[3, 4, 2], [9, 2, -1]])


def shared(
    family: str = "llama", *names: str, dtype: torch.dtype = torch.float32
) -> tuple[SharedBase, dict[str, AdapterActorCritic], AdapterModel]:
    """A tiny base, an agent with a fresh adapter for each name, and the base alone."""
    base = SharedBase(tiny_model(family, dtype=dtype))
    for name in names:
        base.add(name, AUTO, seed=5)
    agents = {name: AdapterActorCritic(base, VOCABULARY, name) for name in names}
    return base, agents, AdapterModel(base, VOCABULARY, None).eval()


def stir(agent: AdapterModel, seed: int) -> None:
    """Give an agent numbers that say something."""
    draw_weights(agent, seed, std=0.4)


def base_tensors(base: SharedBase) -> dict[str, Tensor]:
    return {k: t.clone() for k, t in base.model.state_dict().items() if ".lora_" not in k}


def logprobs(model: AdapterModel | nn.Module) -> Tensor:
    result: Tensor = model.score(PROMPTS, RESPONSES, 1.0).logprobs  # type: ignore[operator]
    return result


# What a new adapter says.


@pytest.mark.case(2, 3)
@FAMILIES
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("mode", ["plain", "training", "recomputed", "autocast"])
def test_with_a_new_adapter_policy_and_reference_are_equal(
    family: str, dtype: torch.dtype, mode: str
) -> None:
    _, agents, reference = shared(family, "agent_0", "agent_1", dtype=dtype)
    if mode == "autocast":
        reference.autocast = torch.bfloat16
    for agent in agents.values():
        agent.train(mode in ("training", "recomputed"))
        if mode == "recomputed":
            agent.checkpoint_activations()
        if mode == "autocast":
            agent.autocast = torch.bfloat16
        assert torch.equal(logprobs(agent), logprobs(reference))
    plain = tiny_actor(family, dtype=dtype)
    if mode != "autocast":
        assert torch.equal(logprobs(reference), logprobs(plain))  # the base alone
    stir(agents["agent_0"], 1)
    assert not torch.equal(logprobs(agents["agent_0"]), logprobs(reference))
    assert torch.equal(logprobs(agents["agent_1"]), logprobs(reference))


@FAMILIES
def test_the_output_is_the_formula(family: str) -> None:
    # y = W x + alpha / r * B A x on one layer, with alpha / r = 6 / 2.
    base, agents, _ = shared(family, "agent_0", dtype=torch.float64)
    stir(agents["agent_0"], 1)
    path, layer = next(iter(base.on("agent_0").items()))
    numbers = base.tensors("agent_0")
    a, b = (numbers[f"base_model.model.{path}.lora_{side}.weight"] for side in "AB")
    x = torch.linspace(-1, 1, a.shape[1], dtype=torch.float64)
    with torch.no_grad(), base.using("agent_0"):
        got = layer(x)
    with torch.no_grad(), base.using(None):
        alone = layer(x)
    assert torch.allclose(got, alone + 3.0 * (b @ (a @ x)), atol=1e-12, rtol=0)
    assert not torch.allclose(got, alone)


def test_adapters_are_on_attention_and_mlp_and_on_nothing_else() -> None:
    base, agents, _ = shared("llama", "agent_0")
    names = ("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj")
    assert base.shape("agent_0").targets == names
    assert len(base.on("agent_0")) == 2 * 7
    # Rank 2; in two layers four matrices of 16 by 16 and three of 16 by 32; a head of 16 + 1.
    own = sum(p.numel() for p in agents["agent_0"].parameters())
    assert own == 2 * 2 * (4 * (16 + 16) + 3 * (16 + 32)) + 17
    base, _, _ = shared("gpt2", "agent_0")
    assert base.shape("agent_0").targets == ("c_attn", "c_fc", "c_proj")
    assert len(base.on("agent_0")) == 2 * 4  # c_proj is in attention and in the MLP


def test_named_layers_alone_get_adapters() -> None:
    base = SharedBase(tiny_model("llama"))
    base.add("agent_0", AdapterShape(2, 4.0, ("q_proj", "v_proj")))
    assert {path.rpartition(".")[2] for path in base.on("agent_0")} == {"q_proj", "v_proj"}


@pytest.mark.parametrize("name", ["query", "lm_head", "embed_tokens", "norm", ""])
def test_layers_that_are_not_there_are_named(name: str) -> None:
    base = SharedBase(tiny_model("llama"))
    with pytest.raises(ValueError, match=rf"lora_targets .* got '{name}'; its layers are .*q_proj"):
        base.add("agent_0", AdapterShape(2, 4.0, ("q_proj", name)))


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_rank_beyond_the_layers_is_refused_before_anything_is_changed(family: str) -> None:
    # Two layers of 16 units; the feed-forward part is wider on one side only.
    base = SharedBase(tiny_model(family))
    before = list(base.model.state_dict())
    shape = AdapterShape(17, 34.0, ("auto",))
    with pytest.raises(ValueError, match=r"lora_rank must be at most 16, .* \(.*\), got 17"):
        base.add("agent_0", shape)
    assert list(base.model.state_dict()) == before
    for agent in ("agent_0", "agent_1"):  # the second is put on layers that have one already
        base.add(agent, AdapterShape(16, 32.0, ("auto",)))
    with pytest.raises(ValueError, match="lora_rank must be at most 16"):
        base.add("agent_2", shape)


def test_layers_that_are_narrower_than_others_may_be_exceeded() -> None:
    settings = tiny_model("llama").config.to_dict() | {"num_key_value_heads": 1}
    model = LlamaForCausalLM(LlamaConfig(**settings))  # keys of one head: 8 of 16 units
    base = SharedBase(model)
    base.add("agent_0", AdapterShape(16, 32.0, ("k_proj", "q_proj")))
    with pytest.raises(ValueError, match=r"lora_rank must be at most 8, .*k_proj\), got 16"):
        base.add("agent_1", AdapterShape(16, 32.0, ("k_proj",)))


@pytest.mark.case(36)
def test_new_adapters_follow_from_the_seed_and_from_nothing_else() -> None:
    def drawn(seed: int, ran_before: int) -> tuple[str, str]:
        torch.manual_seed(ran_before)
        base = SharedBase(tiny_model("llama"))
        before = torch.random.get_rng_state()
        base.add("agent_0", AUTO, seed=seed)
        base.add("agent_1", AUTO, seed=seed)
        assert torch.equal(torch.random.get_rng_state(), before)  # nobody's stream is moved
        one, two = (AdapterModel(base, VOCABULARY, f"agent_{i}") for i in range(2))
        return one.checksum, two.checksum

    first = drawn(3, ran_before=0)
    assert first == drawn(3, ran_before=1)
    assert first[0] == first[1]  # agents start as duplicates
    assert first[0] != drawn(4, ran_before=0)[0]


def test_new_numbers_are_as_small_as_the_input_is_wide() -> None:
    base, _, _ = shared("llama", "agent_0")
    for name, numbers in base.tensors("agent_0").items():
        if ".lora_B." in name:
            assert not numbers.any()
        else:  # uniform within 1 / sqrt(inputs): of 32 draws some come near the bound
            bound = numbers.shape[1] ** -0.5
            assert 0.7 * bound < numbers.abs().max() <= bound


# Whose weights move.


@pytest.mark.case(33)
@FAMILIES
def test_an_update_moves_the_agents_own_adapter_only(family: str) -> None:
    base, agents, reference = shared(family, "agent_0", "agent_1")
    frozen, at_first = base_tensors(base), logprobs(reference)
    for moved, other in (("agent_0", "agent_1"), ("agent_1", "agent_0")):
        optimizer = torch.optim.SGD(agents[moved].parameters(), lr=1.0)
        kept = {n: p.detach().clone() for n, p in agents[other].named_parameters()}
        before = {n: p.detach().clone() for n, p in agents[moved].named_parameters()}
        scored = agents[moved].score(PROMPTS, RESPONSES, 1.0)
        (scored.logprobs.sum() + scored.values.sum()).backward()
        optimizer.step()
        for name, weight in agents[moved].named_parameters():
            # A gets no gradient while B is 0.
            assert torch.equal(weight, before[name]) == (".lora_A." in name), name
        for name, weight in agents[other].named_parameters():
            assert torch.equal(weight, kept[name]), name
    assert all(torch.equal(t, frozen[name]) for name, t in base_tensors(base).items())
    assert torch.equal(logprobs(reference), at_first)


@pytest.mark.case(33, 35)
def test_gradients_reach_an_adapter_whichever_was_used_last() -> None:
    base, agents, reference = shared("llama", "agent_0", "agent_1")
    for last in (agents["agent_0"], agents["agent_1"], reference):
        logprobs(last)
        for agent in agents.values():
            agent.zero_grad()
            logprobs(agent).sum().backward()
            grads = [p.grad for n, p in agent.named_parameters() if "adapter" in n]
            assert grads and all(grad is not None for grad in grads)
    base.add("late", AUTO, trained=False)
    trained = {n for n, p in base.model.named_parameters() if p.requires_grad}
    assert trained == {
        n for n, _ in base.model.named_parameters() if ".agent_0." in n or ".agent_1." in n
    }


def gradients(agent: AdapterActorCritic, loss: Tensor) -> dict[str, Tensor]:
    agent.zero_grad()
    loss.backward()
    return {n: p.grad.clone() for n, p in agent.named_parameters() if p.grad is not None}


@pytest.mark.case(33)
@FAMILIES
def test_activations_are_computed_again_with_the_same_adapter(family: str) -> None:
    _, agents, _ = shared(family, "agent_0", "agent_1", dtype=torch.float64)
    for i, agent in enumerate(agents.values()):
        stir(agent.train(), i)
    expected = gradients(agents["agent_0"], logprobs(agents["agent_0"]).sum())
    agents["agent_0"].checkpoint_activations()
    loss = logprobs(agents["agent_0"]).sum()
    with agents["agent_1"].base.using("agent_1"):  # a backward pass while another one is chosen
        got = gradients(agents["agent_0"], loss)
    assert got.keys() == expected.keys() and len(got) > 10
    for name, grad in got.items():
        assert torch.allclose(grad, expected[name], atol=1e-12, rtol=0), name
    assert not [p for p in agents["agent_1"].adapter.parameters() if p.grad is not None]


def test_activations_are_really_computed_again() -> None:
    base, agents, _ = shared("llama", "agent_0")
    calls = []
    layer = next(iter(base.on("agent_0").values()))
    layer.register_forward_hook(lambda *_: calls.append(1))
    agents["agent_0"].train().checkpoint_activations()
    logprobs(agents["agent_0"]).sum().backward()
    assert len(calls) == 2


def test_a_whole_model_recomputes_to_the_same_gradients() -> None:
    actor = tiny_actor("llama", dtype=torch.float64).train()
    logprobs(actor).sum().backward()
    expected = [p.grad.clone() for p in actor.parameters() if p.grad is not None]
    actor.zero_grad()
    recompute_activations(actor.model)
    logprobs(actor).sum().backward()
    got = [p.grad for p in actor.parameters() if p.grad is not None]
    assert all(torch.allclose(a, b, atol=1e-12, rtol=0) for a, b in zip(got, expected, strict=True))


@pytest.mark.slow
def test_a_compiled_base_follows_the_choice() -> None:
    base, agents, reference = shared("llama", "agent_0", "agent_1", dtype=torch.float64)
    for i, agent in enumerate(agents.values()):
        stir(agent, i)
    models = (agents["agent_0"], agents["agent_1"], reference)
    expected = [logprobs(model) for model in models]
    for model in models:
        model._compiled = [torch.compile(base.model.base_model, dynamic=True, backend="eager")]
    for _ in range(2):
        for model, said in zip(models, expected, strict=True):
            assert torch.allclose(logprobs(model), said, atol=1e-12, rtol=0)
    assert not torch.allclose(expected[0], expected[1])


# No forward without a choice.


def test_a_forward_that_chooses_no_adapter_fails() -> None:
    base, agents, reference = shared("llama", "agent_0")
    ids = torch.tensor([[1, 5, 6]])
    for used in (agents["agent_0"], reference):
        logprobs(used)
        with pytest.raises(RuntimeError, match="must choose its adapter"):
            base.model(input_ids=ids, attention_mask=torch.ones_like(ids))


def test_choices_may_be_nested_and_end_with_an_error() -> None:
    base, agents, reference = shared("llama", "agent_0", "agent_1")
    stir(agents["agent_0"], 1)
    ids = torch.tensor([[1, 5, 6]])

    def inside() -> Tensor:
        return base.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits

    with torch.no_grad(), base.using("agent_0"):
        own = inside()
        with base.using(None):
            alone = inside()
        with pytest.raises(KeyError), base.using(None):
            raise KeyError
        logprobs(reference)
        assert torch.equal(inside(), own) and not torch.equal(own, alone)


# What belongs to an agent.


def test_the_state_of_an_agent_is_its_adapter_and_its_head() -> None:
    _, agents, reference = shared("llama", "agent_0", "agent_1")
    names = set(agents["agent_0"].state_dict())
    assert names == set(agents["agent_1"].state_dict())  # no agent's name in it
    assert {n for n in names if not n.startswith("adapter.model.layers.")} == {
        "value_head.weight",
        "value_head.bias",
    }
    assert len(names) == 2 + 2 * 14
    assert not reference.state_dict()
    own = {id(p) for p in agents["agent_0"].trainable_parameters()}
    assert not own & {id(p) for p in agents["agent_1"].trainable_parameters()}


def test_a_loaded_state_is_what_the_base_computes_with() -> None:
    _, agents, _ = shared("llama", "agent_0", "agent_1")
    stir(agents["agent_0"], 1)
    agents["agent_1"].load_state_dict(agents["agent_0"].state_dict())
    assert torch.equal(logprobs(agents["agent_1"]), logprobs(agents["agent_0"]))


def test_half_precision_bases_have_adapters_of_full_precision() -> None:
    _, agents, _ = shared("llama", "agent_0", dtype=torch.bfloat16)
    assert {p.dtype for p in agents["agent_0"].parameters()} == {torch.float32}


def test_the_mode_of_an_agent_is_the_mode_of_the_base() -> None:
    base, agents, _ = shared("llama", "agent_0")
    agents["agent_0"].train()
    assert base.model.training
    agents["agent_0"].eval()
    assert not base.model.training


# Merging.


@FAMILIES
@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 1e-4), (torch.float64, 1e-10)])
def test_merged_weights_give_the_logits_of_the_adapter(
    family: str, dtype: torch.dtype, near: float
) -> None:
    base, agents, _ = shared(family, "agent_0", "agent_1", dtype=dtype)
    for i, agent in enumerate(agents.values()):
        stir(agent, i)
    frozen = base_tensors(base)
    ids = torch.tensor([[1, 5, 6, 9]])

    def logits(model: PreTrainedModel) -> Tensor:
        with torch.no_grad():
            return model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits

    found = {}
    for name in agents:
        with base.using(name):
            found[name] = logits(base.model)
        with base.merged(name) as plain:
            assert not [n for n, _ in plain.named_modules() if "lora" in n or "base_layer" in n]
            assert torch.allclose(logits(plain), found[name], atol=near, rtol=0)
    assert not torch.allclose(found["agent_0"], found["agent_1"], atol=1e-2)
    with pytest.raises(KeyError), base.merged("agent_0"):
        raise KeyError
    after = base_tensors(base)  # to the bit, also after an error
    assert all(torch.equal(t, frozen[name]) for name, t in after.items())
    with base.using("agent_0"):
        assert torch.equal(logits(base.model), found["agent_0"])


def test_a_dissolved_base_is_a_plain_model_that_can_be_trained() -> None:
    base, agents, _ = shared("gpt2", "agent_0", dtype=torch.float64)
    stir(agents["agent_0"], 1)
    said = logprobs(agents["agent_0"]).detach()
    model = base.dissolve("agent_0")
    assert set(model.state_dict()) == set(tiny_model("gpt2").state_dict())
    assert all(p.requires_grad for p in model.parameters())
    plain = tiny_actor("gpt2")
    plain.model = model
    assert torch.allclose(logprobs(plain), said, atol=1e-10, rtol=0)


# Refusals.


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found: Any = importlib.util.find_spec

    def without(name: str, package: str | None = None) -> Any:
        return None if name == "peft" else found(name, package)

    monkeypatch.setattr("agents.models.shared_base.find_spec", without)
    with pytest.raises(ValueError, match=r"need the package peft.*cory-env\[lora\]"):
        SharedBase(tiny_model("llama"))
