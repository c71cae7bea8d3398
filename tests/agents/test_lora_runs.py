"""Whole runs with adapters: what moves, what resumes, what is exported, what goes on from where."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from agents.config import TrainConfig
from agents.evaluate import EvalCommand, evaluate
from agents.header import run_header
from agents.identity import identity
from agents.learners import LEARNERS
from agents.models.adapters import AdapterModel
from agents.models.load import load_model
from agents.session import Session
from agents.train import TrainResult, train
from tests.agents.runs import (
    assert_same_tensors,
    config,
    learner_state,
    lines,
    reseal,
    session_of,
    stopping_after,
    training_of,
    weights,
    without_seconds,
)

LORA: dict[str, Any] = {"lora_rank": 2, "learning_rate": 1e-2}
IDS = torch.tensor([[1, 5, 6, 9]])


def actor_of(session: Session, agent: str) -> AdapterModel:
    actor = session.learners[agent].actor
    assert isinstance(actor, AdapterModel)
    return actor


def base_tensors(session: Session) -> dict[str, Tensor]:
    state = actor_of(session, "agent_0").base.model.state_dict()
    return {name: t.clone() for name, t in state.items() if ".lora_" not in name}


def played(session: Session, iterations: int) -> None:
    """Collect and update, without a folder."""
    from agents.bridge.trainer import IterationTrainer

    trainer = IterationTrainer(
        team=session.team,
        env=session.env,
        begin=session.begin,
        minibatch_size=session.config.minibatch_size,
        update_epochs=session.config.update_epochs or 1,
        first_iteration=1,
        iterations=iterations,
    )
    for _ in range(iterations):
        trainer.run_iteration()


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        return model(input_ids=IDS, attention_mask=torch.ones_like(IDS)).logits  # type: ignore[no-any-return]


# What moves.


@pytest.mark.case(33)
def test_every_adapter_moves_and_the_base_does_not() -> None:
    session = session_of(**LORA, iterations=1)
    base, before = base_tensors(session), learner_state(session)
    one, two = actor_of(session, "agent_0"), actor_of(session, "agent_1")
    assert one.base is two.base and one.base.model is session.loaded["agent_1"].model
    played(session, 1)
    after = learner_state(session)
    moved = [n for n in before if not torch.equal(before[n], after[n])]
    for agent in ("agent_0", "agent_1"):
        own = [n for n in before if n.startswith(f"{agent}/")]
        assert own and set(own) <= set(moved)
    assert not torch.equal(after["agent_0/value_head.weight"], after["agent_1/value_head.weight"])
    assert_same_tensors(base, base_tensors(session))  # to the bit


@pytest.mark.case(33)
@pytest.mark.parametrize("algorithm", [name for name in LEARNERS if name != "ppo"])
def test_every_learner_moves_adapters_only(algorithm: str) -> None:
    session = session_of(**LORA, algorithm=algorithm, batch_size=16, iterations=1)
    base, before = base_tensors(session), learner_state(session)
    played(session, 1)
    after = learner_state(session)
    for agent in ("agent_0", "agent_1"):
        adapter = [n for n in before if n.startswith(f"{agent}/adapter")]
        assert adapter and any(not torch.equal(before[n], after[n]) for n in adapter)
    assert_same_tensors(base, base_tensors(session))


@pytest.mark.case(33)
def test_an_agent_moves_by_its_own_update_only() -> None:
    session = session_of(**LORA, iterations=2)
    played(session, 1)
    for agent in ("agent_0", "agent_1"):
        learner = session.learners[agent]
        before = learner_state(session)
        learner.update_from(learner.prepare(session.team.rollouts[agent]), None, 1)
        after = learner_state(session)
        for name, tensor in before.items():
            if "optimizer" not in name:
                assert torch.equal(tensor, after[name]) != name.startswith(agent), name


@pytest.mark.case(35)
def test_exchanging_roles_leaves_every_parameter_list_as_it_is() -> None:
    session = session_of(**LORA, role_exchange_interval=1)

    def lists() -> dict[str, list[int]]:
        return {
            agent: [id(p) for g in learner.optim._optim.param_groups for p in g["params"]]
            for agent, learner in session.learners.items()
        }

    at_first = lists()
    for agent, learner in session.learners.items():
        own = {id(p) for p in learner.actor.parameters()}
        named = [id(p) for n, p in actor_of(session, agent).base.model.named_parameters()
                 if f".{agent}." in n]  # fmt: skip
        assert set(at_first[agent]) == own and len(own) == len(named) + 2
        assert own == {*named, *(id(p) for p in learner.actor.value_head.parameters())}
    orders = []
    for iteration in (1, 2, 3):
        orders.append(session.turn_order(iteration))
    played(session, 3)
    assert orders[0] == orders[2] != orders[1]
    assert lists() == at_first
    assert not set(at_first["agent_0"]) & set(at_first["agent_1"])


# What policy and reference are at the start.


def step_zero(session: Session) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """Each agent's log-probabilities, the reference's and the KL, on one prompt."""
    prompts, responses = torch.tensor([[-1, 5, 6], [1, 7, 8]]), torch.tensor([[3, 4], [9, -1]])
    found = {}
    for agent, learner in session.learners.items():
        hidden = learner.reference.response_hidden(prompts, responses)
        ours = learner.actor.score(
            prompts, responses, 1.0, reference=learner.reference, ref_hidden=hidden
        )
        theirs = learner.reference.score(prompts, responses, 1.0)
        found[agent] = (ours.logprobs, theirs.logprobs, ours.kl)
    return found


@pytest.mark.case(2, 3)
@pytest.mark.parametrize(
    "settings",
    [{}, {"dtype": "bfloat16"}, {"autocast": "bfloat16"}, {"gradient_checkpointing": True}],
)
def test_before_the_first_update_the_policy_is_the_reference(settings: dict[str, Any]) -> None:
    session = session_of(**LORA, **settings)
    for ours, theirs, kl in step_zero(session).values():
        assert torch.equal(ours, theirs)
        assert float(kl.detach().abs().max()) == 0.0


def test_agents_with_and_without_adapters_draw_the_same_first_responses(tmp_path: Path) -> None:
    samples = {}
    for name, settings in {"whole": {}, "adapters": LORA}.items():
        result = train(config(tmp_path / name, iterations=1, **settings))
        samples[name] = lines(result.out / "samples.jsonl")
    assert len(samples["whole"]) == 4 and samples["whole"] == samples["adapters"]


def test_gradient_checkpointing_changes_no_run(tmp_path: Path) -> None:
    runs = [
        train(config(tmp_path / str(on), iterations=2, dtype="float64", gradient_checkpointing=on,
                     **LORA))
        for on in (False, True)
    ]  # fmt: skip
    for row, other in zip(*(without_seconds(r.metrics) for r in runs), strict=True):
        for name, value in row.items():
            if isinstance(value, float):
                assert value == pytest.approx(other[name], rel=1e-7, abs=1e-9), name


# Checkpoints.


@pytest.mark.case(37)
def test_a_checkpoint_holds_adapters_and_heads_and_none_of_the_base(
    run_of: Callable[..., TrainResult],
) -> None:
    result = run_of(**LORA)
    saved = load_file(result.out / "checkpoints" / "000004" / "agent_0.safetensors")
    assert {"value_head.weight", "value_head.bias"} <= set(saved)
    assert saved["value_head.weight"].any()
    assert all(".lora_" in n for n in saved if not n.startswith("value_head"))
    # Rank 2; in two layers four matrices of 64 by 64 and three of 64 by 128; a head of 64 + 1.
    assert sum(t.numel() for t in saved.values()) == 2 * 2 * (4 * 128 + 3 * 192) + 65


@pytest.mark.case(37, 49)
def test_a_resumed_run_equals_one_that_was_not_interrupted(
    run_of: Callable[..., TrainResult], tmp_path: Path
) -> None:
    whole = run_of(**LORA)
    stopped = training_of(tmp_path / "run", stopping_after(2), **LORA).run()
    assert not stopped.finished
    resumed = train(config(tmp_path / "run", resume=True, **LORA))
    assert without_seconds(resumed.metrics) == without_seconds(whole.metrics)
    assert lines(resumed.out / "samples.jsonl") == lines(whole.out / "samples.jsonl")
    for name in ("final", "best", "checkpoints/000004"):
        assert_same_tensors(weights(resumed.out / name), weights(whole.out / name))


@pytest.mark.case(37, 51)
def test_a_checkpoint_that_lacks_a_head_is_refused(tmp_path: Path) -> None:
    result = train(config(tmp_path / "run", **LORA, iterations=2))
    folder = result.out / "checkpoints" / "000002"
    file = folder / "agent_1.safetensors"
    save_file({n: t for n, t in load_file(file).items() if "value_head" not in n}, file)
    reseal(folder)
    with pytest.raises(ValueError, match="the weights of agent_1 are those of another model"):
        train(config(tmp_path / "run", **LORA, iterations=3, resume=True))


@pytest.mark.parametrize(
    ("name", "value"), [("lora_rank", 3), ("lora_alpha", 1.0), ("lora_targets", "q_proj")]
)
def test_a_resume_keeps_the_adapters_settings(
    name: str, value: object, run_of: Callable[..., TrainResult]
) -> None:
    result = run_of(**LORA)
    with pytest.raises(ValueError, match=f"resume must keep {name}"):
        train(config(result.out, **{**LORA, name: value}, resume=True))


def test_a_checkpoint_belongs_to_one_base() -> None:
    # The base's name is the same, its weights are not: another seed draws others.
    sums = []
    for seed in (0, 0, 1):
        found = identity(session_of(**LORA, seed=seed))
        sums.append([v for k, v in found.items() if k.startswith("sha256 of the reference")])
    assert len(sums[0]) == 2 and sums[0] == sums[1] != sums[2]


# Exports.


def test_the_final_folders_are_whole_models_equal_to_the_adapters(
    run_of: Callable[..., TrainResult], tmp_path: Path
) -> None:
    merged = run_of(**LORA, dtype="float64")
    adapters = run_of(**LORA, dtype="float64", export="adapter")
    assert without_seconds(merged.metrics) == without_seconds(adapters.metrics)
    for agent in ("agent_0", "agent_1"):
        folder, beside = merged.out / "final" / agent, adapters.out / "final" / agent
        plain = AutoModelForCausalLM.from_pretrained(folder)
        assert not [n for n, _ in plain.named_modules() if "lora" in n]
        said = logits(load_model(str(beside), dtype="float64").model)
        assert torch.allclose(logits(plain), said, atol=1e-10, rtol=0)
        base = logits(load_model("builtin:target", dtype="float64").model)
        assert not torch.allclose(said, base, atol=1e-3)
        assert {f.name for f in beside.iterdir()} == {
            "adapter_config.json",
            "adapter_model.safetensors",
            "base.json",
            "tokenizer.json",
            "tokenizer_config.json",
        }
        assert json.loads((beside / "base.json").read_text())["model"] == "builtin:target"
    assert (adapters.out / "best" / "adapter_model.safetensors").is_file()


@pytest.mark.parametrize("which", ["final", "best"])
def test_adapters_are_judged_as_at_the_end_of_their_run(
    which: str, run_of: Callable[..., TrainResult], tmp_path: Path
) -> None:
    result = run_of(**LORA, dtype="float64", export="adapter")
    out = tmp_path / "eval.json"
    rows = evaluate(
        EvalCommand(run=result.out, which=which, split="validation", queries=6, out=out)
    )
    if which == "best":
        chosen = json.loads((result.out / "best" / "selection.json").read_text())
        expected = {n: chosen[n] for n in ("score", "kl")}
        rows = {"agent": rows["best"]}
        assert rows["agent"]["kl"] == pytest.approx(expected["kl"], rel=1e-12)
        assert rows["agent"]["score"] == expected["score"]
        return
    last = result.metrics[-1]
    for agent in ("agent_0", "agent_1"):
        for name in ("score", "kl", "response_tokens"):
            assert rows[agent][name] == pytest.approx(last[f"eval/{agent}/{name}"], rel=1e-12)
            assert rows[f"{agent} as observer"][name] == pytest.approx(
                last[f"observer_eval/{agent}/{name}"], rel=1e-12
            )


def test_one_adapter_is_judged_as_a_foreign_model(
    run_of: Callable[..., TrainResult], tmp_path: Path
) -> None:
    result = run_of(**LORA, dtype="float64", export="adapter")
    rows = evaluate(
        EvalCommand(
            model=str(result.out / "final" / "agent_0"),
            reference="builtin:target",
            task="target",
            queries=6,
        )
    )
    assert rows["agent_0"]["kl"] > 1e-4


# Going on.


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The adapters of a run."""
    out = tmp_path_factory.mktemp("started") / "run"
    return train(config(out, export="adapter", **LORA, lora_alpha=6.0)).out / "final"


@pytest.mark.case(32)
@pytest.mark.parametrize("both", [False, True])
def test_training_goes_on_from_an_adapter_with_a_frozen_copy_as_reference(
    both: bool, started: Path
) -> None:
    names = [str(started / f"agent_{i}") for i in range(2 if both else 1)]
    session = session_of(**LORA, model=",".join(names))
    fresh = session_of(**LORA)
    for agent, (ours, theirs, kl) in step_zero(session).items():
        assert torch.equal(ours, theirs)
        assert float(kl.detach().abs().max()) == 0.0
        # Switching the adapter off would be another model.
        assert not torch.allclose(theirs, step_zero(fresh)[agent][1], atol=1e-3)
    one, two = actor_of(session, "agent_0"), actor_of(session, "agent_1")
    assert one.base is two.base
    assert (one.checksum == two.checksum) == (not both)
    same = session.learners["agent_0"].reference is session.learners["agent_1"].reference
    assert same == (not both)
    before = [learner.reference.checksum for learner in session.learners.values()]  # type: ignore[operator]
    played(session, 1)
    after = [learner.reference.checksum for learner in session.learners.values()]  # type: ignore[operator]
    assert before == after
    assert not torch.equal(*step_zero(session)["agent_0"][:2])


@pytest.mark.case(32)
def test_an_adapter_that_went_on_is_for_the_first_base(started: Path, tmp_path: Path) -> None:
    start = str(started / "agent_1")
    result = train(config(tmp_path / "run", model=start, export="adapter", iterations=1, **LORA))
    settings = json.loads((result.out / "final" / "agent_0" / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == "builtin:target"
    assert settings["lora_alpha"] == 6.0  # the scale of the first
    assert result.initial["eval/agent_0/kl"] == pytest.approx(0.0, abs=1e-6)
    resumed = train(
        config(result.out, model=start, export="adapter", iterations=2, resume=True, **LORA)
    )
    whole = train(config(tmp_path / "whole", model=start, export="adapter", iterations=2, **LORA))
    assert without_seconds(resumed.metrics)[0]["iteration"] == 1
    assert_same_tensors(weights(resumed.out / "final"), weights(whole.out / "final"))


def test_without_a_rank_an_adapter_is_merged_and_all_is_trained(started: Path) -> None:
    session = session_of(model=str(started / "agent_0"))
    actor = session.learners["agent_0"].actor
    assert not isinstance(actor, AdapterModel)
    expected = load_model(str(started / "agent_0")).model.state_dict()
    got = actor.model.state_dict()
    assert set(got) == set(load_model("builtin:target").model.state_dict())
    assert all(torch.equal(got[name], expected[name]) for name in got)
    assert all(p.requires_grad for p in actor.model.parameters())
    for ours, theirs, _ in step_zero(session).values():
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"lora_rank": 4},
            "lora_rank must be 2, since training goes on from the adapter in .* got 4",
        ),
        ({"lora_alpha": 2.0}, "lora_alpha must be 6, since .* got 2"),
        ({"lora_targets": "q_proj"}, "lora_targets must be left out, since .* got 'q_proj'"),
    ],
)
def test_an_adapter_goes_on_as_it_is(settings: dict[str, Any], words: str, started: Path) -> None:
    with pytest.raises(ValueError, match=words):
        session_of(**{**LORA, **settings}, model=str(started / "agent_0"))


def test_agents_of_two_bases_have_one_each(tmp_path: Path) -> None:
    other = load_model("builtin:target", seed=5)
    other.model.save_pretrained(tmp_path)
    other.tokenizer.save_pretrained(tmp_path)
    session = session_of(**LORA, model=f"builtin:target,{tmp_path}")
    one, two = actor_of(session, "agent_0"), actor_of(session, "agent_1")
    assert one.base is not two.base
    played(session, 1)
    for agent in ("agent_0", "agent_1"):
        ours, theirs, _ = step_zero(session)[agent]
        assert not torch.equal(ours, theirs)


# Settings.


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"lora_rank": -1}, "lora_rank must be at least 0, got -1"),
        ({"lora_rank": 2.5}, "lora_rank must be a whole number, got 2.5"),
        ({"lora_rank": 2, "lora_alpha": 0.0}, "lora_alpha must be positive, got 0"),
        ({"lora_alpha": 4.0}, "lora_alpha needs lora_rank"),
        ({"lora_targets": "q_proj"}, "lora_targets needs lora_rank"),
        ({"export": "adapter"}, "export needs lora_rank"),
        ({"quantize": "4bit"}, "quantize needs lora_rank"),
        ({"quantize": "8bit", "lora_rank": 2}, "quantize must be one of none, 4bit, got '8bit'"),
        ({"export": "both", "lora_rank": 2}, "export must be one of merged, adapter, got 'both'"),
        ({"quantize": "4bit", "lora_rank": 2}, "export must be adapter with quantize 4bit"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        config(**settings)


def test_a_rank_beyond_the_model_is_refused_before_the_folder_is_claimed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"lora_rank must be at most 64, .* got 100"):
        train(config(tmp_path / "run", lora_rank=100))
    assert not (tmp_path / "run").exists()


def test_rank_zero_is_no_adapter() -> None:
    session = session_of(lora_rank=0)
    assert not isinstance(session.learners["agent_0"].actor, AdapterModel)


def test_the_header_says_what_is_trained(tmp_path: Path) -> None:
    text = run_header(session_of(**LORA), tmp_path)
    # 2 * 2 * (4 * 128 + 3 * 192) + 65 parameters.
    assert "builtin:target, frozen; adapters of rank 2, 4,417 parameters an agent, 2 agents" in text


def test_layers_are_named_by_comma() -> None:
    session = session_of(**LORA, lora_targets="q_proj, v_proj")
    names = set(session.learners["agent_0"].actor.state_dict())
    assert {n.split(".")[-3] for n in names if ".lora_" in n} == {"q_proj", "v_proj"}


@pytest.mark.slow
def test_adapters_learn(tmp_path: Path) -> None:
    settings = {"lora_rank": 8, "learning_rate": 5e-3, "iterations": 20, "eval_interval": 20}
    quiet = {"progress": False, "tensorboard": False}
    result = train(TrainConfig(**settings, **quiet, out=tmp_path / "run"))  # type: ignore[arg-type]
    for agent in ("agent_0", "agent_1"):
        before, after = result.initial[f"eval/{agent}/score"], result.metrics[-1]
        assert after[f"eval/{agent}/score"] >= before + 0.1, agent
        assert 0.1 < after[f"eval/{agent}/kl"] < 30
