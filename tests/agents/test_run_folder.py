"""Tests of the run folder's contract: files, keys, types; and of determinism between runs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import AutoModelForCausalLM, AutoTokenizer

from agents.command_line import settings_from_file
from agents.config import TrainConfig
from agents.run_folder import RunFolder, next_numbered, versions
from agents.train import Training, TrainResult, train
from tests.agents.runs import (
    assert_same_tensors,
    config,
    lines,
    training_of,
    weights,
    without_seconds,
)

AGENTS = ("agent_0", "agent_1")
COUNTERS = ("episodes", "generated_tokens", "scored_responses", "optimizer_steps")
NUMBERS = (
    "score",
    "reward",
    "kl",
    "entropy",
    "response_tokens",
    "truncated",
    "policy_loss",
    "value_loss",
    "approx_kl",
    "clip_fraction",
    "explained_variance",
    "grad_norm",
)
EVALUATED = ("score", "hidden_score", "kl", "distinct_2", "response_tokens", "truncated")


def test_all_files_are_there(cory_run: TrainResult) -> None:
    out = cory_run.out
    for name in (
        "config.json",
        "metrics.jsonl",
        "eval_initial.json",
        "samples.jsonl",
        "checkpoints/000002/state.json",
        "checkpoints/000004/state.json",
        "checkpoints/latest",
        "final/agent_0/config.json",
        "final/agent_0/model.safetensors",
        "final/agent_0/tokenizer.json",
        "final/agent_0/tokenizer_config.json",
        "final/agent_1/model.safetensors",
        "best/model.safetensors",
        "best/README",
        "curves.png",
    ):
        assert (out / name).is_file(), name
    assert (out / "checkpoints/latest").read_text().strip() == "000004"
    assert list((out / "tensorboard").glob("events.out.tfevents.*"))
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.case(56, 72)
def test_metrics_have_their_names_and_types(cory_run: TrainResult) -> None:
    rows = lines(cory_run.out / "metrics.jsonl")
    assert rows == cory_run.metrics
    assert [row["iteration"] for row in rows] == [1, 2, 3, 4]
    training = {f"{a}/{name}" for a in AGENTS for name in (*NUMBERS, "role")}
    evaluation = {
        f"{kind}/{a}/{name}"
        for kind in ("eval", "observer_eval")
        for a in AGENTS
        for name in EVALUATED
    }
    always = {"iteration", "seconds", *COUNTERS} | training
    for row in rows:
        assert row.keys() == (always | evaluation if row["iteration"] in (2, 4) else always)
        for name in COUNTERS:
            assert type(row[name]) is int
        for name, value in row.items():
            if name.endswith("/role"):
                assert value in ("pioneer", "observer")
            elif name.endswith(("explained_variance", "hidden_score", "distinct_2")):
                assert value is None or math.isfinite(value)
            else:
                assert type(value) in (int, float) and math.isfinite(value), name
        for agent in AGENTS:
            assert 0 <= row[f"{agent}/truncated"] <= 1
            assert 1 <= row[f"{agent}/response_tokens"] <= 3
            assert row[f"{agent}/kl"] >= 0
            # Random weights are near uniform over twelve tokens.
            assert 0 < row[f"{agent}/entropy"] <= math.log(12)


@pytest.mark.case(72)
def test_counters_add_up(cory_run: TrainResult) -> None:
    # Four episodes of two responses; minibatches of 3 and 1, two passes, two agents.
    for i, row in enumerate(cory_run.metrics, start=1):
        assert row["episodes"] == 4 * i
        assert row["scored_responses"] == 8 * i
        assert row["optimizer_steps"] == 8 * i
    lengths = [4 * sum(row[f"{a}/response_tokens"] for a in AGENTS) for row in cory_run.metrics]
    assert [row["generated_tokens"] for row in cory_run.metrics] == pytest.approx(
        [sum(lengths[: i + 1]) for i in range(4)]
    )
    seconds = [row["seconds"] for row in cory_run.metrics]
    assert seconds == sorted(seconds) and seconds[0] > 0


@pytest.mark.case(56, 67)
def test_metrics_are_the_means_of_the_samples(cory_run: TrainResult) -> None:
    samples = lines(cory_run.out / "samples.jsonl")  # all episodes of these runs
    for row in cory_run.metrics:
        here = [s for s in samples if s["iteration"] == row["iteration"]]
        assert len(here) == 4
        for agent in AGENTS:
            for metric, key in (("score", "scores"), ("reward", "rewards")):
                mean = sum(s[key][agent] for s in here) / 4
                assert row[f"{agent}/{metric}"] == pytest.approx(mean)


def test_samples_say_who_said_what(cory_run: TrainResult) -> None:
    samples = lines(cory_run.out / "samples.jsonl")
    assert [s["iteration"] for s in samples] == [i for i in (1, 2, 3, 4) for _ in range(4)]
    for sample in samples:
        assert set(sample) >= {"query", "roles", "prompts", "responses", "scores", "rewards"}
        assert sorted(sample["roles"].values()) == ["observer", "pioneer"]
        for key in ("prompts", "responses", "scores", "rewards"):
            assert sorted(sample[key]) == list(AGENTS)
        assert all(sample["query"] in prompt for prompt in sample["prompts"].values())


def test_the_initial_evaluation(cory_run: TrainResult) -> None:
    initial = json.loads((cory_run.out / "eval_initial.json").read_text())
    assert initial == cory_run.initial
    assert initial.keys() == {
        f"{kind}/{a}/{name}"
        for kind in ("eval", "observer_eval")
        for a in AGENTS
        for name in EVALUATED
    }
    # Agents start as duplicates, at the reference, and answer with the same numbers.
    for name in EVALUATED:
        assert initial[f"eval/agent_0/{name}"] == initial[f"eval/agent_1/{name}"]
    assert initial["eval/agent_0/kl"] == pytest.approx(0.0, abs=1e-6)
    assert initial["eval/agent_0/hidden_score"] is None  # this task has no second scorer


def test_the_config_is_resolved_and_can_be_used_again(cory_run: TrainResult) -> None:
    stored = json.loads((cory_run.out / "config.json").read_text())
    fields = {k: v for k, v in stored.items() if k != "versions"}
    assert fields == cory_run.config.to_json()
    for name in ("model", "learning_rate", "kl_coef", "batch_size", "max_response_tokens"):
        assert stored[name] is not None
    assert {"python", "torch", "tianshou", "pettingzoo", "threads", "git"} <= set(
        stored["versions"]
    )
    again = TrainConfig(**settings_from_file(cory_run.out / "config.json"))
    assert again.out is None and not again.resume
    assert again.learning_rate == cory_run.config.learning_rate


def test_versions_name_what_is_installed() -> None:
    found = versions()
    assert str(found["torch"]).startswith(torch.__version__.split("+")[0])
    assert found["threads"] == torch.get_num_threads()


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Training:
    """A run whose agents are still in memory."""
    training = training_of(tmp_path_factory.mktemp("ended") / "run")
    training.run()
    return training


@pytest.mark.parametrize("agent", AGENTS)
def test_the_final_models_open_in_transformers(agent: str, ended: Training) -> None:
    folder = ended.folder.path / "final" / agent
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    actor = ended.session.learners[agent].actor.eval()
    prompt = "a d |"
    ids = tokenizer(prompt)["input_ids"]
    assert ids == ended.session.rules.tokenizer.encode_prompt(prompt)
    assert tokenizer.eos_token_id in ended.session.rules.tokenizer.end_ids
    with torch.no_grad():
        opened = model(input_ids=torch.tensor([ids])).logits
        trained = actor.model(input_ids=torch.tensor([ids])).logits
        reference = ended.session.learners[agent].reference.model(input_ids=torch.tensor([ids]))
    assert torch.equal(opened, trained)
    assert not torch.allclose(opened, reference.logits, atol=1e-3)
    generated = model.generate(torch.tensor([ids]), max_new_tokens=3, do_sample=False)
    assert generated.shape[1] > len(ids)


def test_best_is_the_best_evaluated_agent_and_says_so(ended: Training) -> None:
    config = ended.config
    assert config.kl_coef is not None
    values = {
        (row["iteration"], a): row[f"eval/{a}/score"] - config.kl_coef * row[f"eval/{a}/kl"]
        for row in ended.folder.metrics()
        for a in AGENTS
        if f"eval/{a}/score" in row
    }
    assert len(values) == 4
    iteration, agent = max(values, key=lambda key: values[key])
    readme = (ended.folder.path / "best/README").read_text()
    assert readme.startswith(f"{agent} after iteration {iteration}: ")
    assert f"{values[iteration, agent]:.4f}" in readme
    model = AutoModelForCausalLM.from_pretrained(ended.folder.path / "best")
    AutoTokenizer.from_pretrained(ended.folder.path / "best")
    if iteration == 4:
        final = AutoModelForCausalLM.from_pretrained(ended.folder.path / "final" / agent)
        assert_same_tensors(dict(model.state_dict()), dict(final.state_dict()))


def test_a_trained_agent_can_be_trained_again(cory_run: TrainResult, tmp_path: Path) -> None:
    again = train(
        config(tmp_path / "again", model=str(cory_run.out / "final/agent_0"), iterations=1)
    )
    # Its reference is now the trained model: where it ended before, it begins at KL 0.
    assert again.initial["eval/agent_0/kl"] == pytest.approx(0.0, abs=1e-6)
    last = cory_run.metrics[-1]
    assert again.initial["eval/agent_0/score"] == last["eval/agent_0/score"]


def test_a_model_for_each_agent(cory_run: TrainResult, tmp_path: Path) -> None:
    models = f"builtin:target, {cory_run.out / 'final/agent_1'}"
    run = train(config(tmp_path / "run", model=models, iterations=1))
    assert run.initial["eval/agent_0/score"] == cory_run.initial["eval/agent_0/score"]
    assert run.initial["eval/agent_1/score"] == cory_run.metrics[-1]["eval/agent_1/score"]
    assert run.initial["eval/agent_1/kl"] == pytest.approx(0.0, abs=1e-6)


# Determinism and budgets.


def test_the_same_seed_is_the_same_run(cory_run: TrainResult, tmp_path: Path) -> None:
    again = train(config(tmp_path / "run"))
    assert without_seconds(again.metrics) == without_seconds(cory_run.metrics)
    samples = [(r.out / "samples.jsonl").read_text() for r in (again, cory_run)]
    assert samples[0] == samples[1]
    assert_same_tensors(weights(again.out), weights(cory_run.out))


def test_another_seed_is_another_run(
    cory_run: TrainResult, run_of: Callable[..., TrainResult]
) -> None:
    other = run_of(seed=1, iterations=1)
    samples = [lines(r.out / "samples.jsonl")[:4] for r in (other, cory_run)]
    assert [s["query"] for s in samples[0]] != [s["query"] for s in samples[1]]
    assert [s["responses"] for s in samples[0]] != [s["responses"] for s in samples[1]]
    name = "agent_0/model.safetensors/model.embed_tokens.weight"
    one, two = weights(other.out / "final"), weights(cory_run.out / "final")
    assert not torch.equal(one[name], two[name])


def test_methods_meet_the_same_queries_at_the_same_number_of_episodes(
    run_of: Callable[..., TrainResult],
) -> None:
    options = {"iterations": 3, "role_exchange_interval": 1, "minibatch_size": None}
    solo = run_of(method="solo", batch_size=8, **options)
    cory = run_of(method="cory", batch_size=16, **options)

    def pioneer_prompts(run: TrainResult) -> list[Any]:
        return [
            (s["iteration"], s["prompts"][agent])
            for s in lines(run.out / "samples.jsonl")
            for agent, role in s["roles"].items()
            if role == "pioneer"
        ]

    assert pioneer_prompts(solo) == pioneer_prompts(cory)
    assert len(pioneer_prompts(solo)) == 24
    # And in the first iteration the same pioneer says the same.
    first = [
        [s["responses"]["agent_0"] for s in lines(r.out / "samples.jsonl") if s["iteration"] == 1]
        for r in (solo, cory)
    ]
    assert first[0] == first[1]


def test_an_independent_agent_is_plain_single_agent_training(
    run_of: Callable[..., TrainResult],
) -> None:
    # Half of the responses are agent_0's: same queries, same numbers, so it is solo, bit for bit.
    options = {"iterations": 3, "role_exchange_interval": 1}
    solo = run_of(method="solo", batch_size=4, **options)
    pair = run_of(method="independent", batch_size=8, **options)
    assert_same_tensors(weights(solo.out / "final/agent_0"), weights(pair.out / "final/agent_0"))
    for one, two in zip(solo.metrics, pair.metrics, strict=True):
        own = {k: v for k, v in one.items() if k.startswith(("agent_0/", "eval/agent_0/"))}
        assert own == {k: two[k] for k in own}
    # The other agent is another one: it drew other responses.
    first = pair.metrics[0]
    assert first["agent_0/policy_loss"] != first["agent_1/policy_loss"]


def test_tensorboard_has_the_same_numbers(cory_run: TrainResult) -> None:
    events = EventAccumulator(str(cory_run.out / "tensorboard"))
    events.Reload()
    tags = set(events.Tags()["scalars"])
    row = cory_run.metrics[-1]
    numbers = {k for k, v in row.items() if isinstance(v, int | float)}
    assert numbers - tags == set()
    for name in ("agent_0/score", "agent_1/kl"):
        logged = [(e.step, e.value) for e in events.Scalars(name)]
        assert [step for step, _ in logged] == [1, 2, 3, 4]
        assert [value for _, value in logged] == pytest.approx([r[name] for r in cory_run.metrics])
    held_out = [(e.step, e.value) for e in events.Scalars("eval/agent_0/score")]
    assert [step for step, _ in held_out] == [0, 2, 4]


def test_solo_has_no_observers_evaluation(run_of: Callable[..., TrainResult]) -> None:
    run = run_of(method="solo", iterations=3, role_exchange_interval=1)
    assert not any(k.startswith("observer_eval") for row in run.metrics for k in row)
    assert "eval/agent_0/score" in run.metrics[-1]
    assert (run.out / "curves.png").is_file()


# The folder itself.


@pytest.mark.parametrize("name", ["config.json", "notes.txt", ".hidden"])
def test_a_folder_with_something_in_it_is_refused_and_left_alone(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("{}")
    word = "another run" if name == "config.json" else "not empty"
    with pytest.raises(ValueError, match=rf"out .*{word}"):
        train(config(tmp_path))
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.check(config(tmp_path))
    folder.start(config(tmp_path))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoints", "config.json"]


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="out must be a folder, got the file"):
        train(config(tmp_path / "file"))


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"out .* cannot be written"):
        RunFolder(tmp_path / "file/run").start(config(tmp_path))


def test_numbered_folders_go_on_after_the_highest(tmp_path: Path) -> None:
    assert next_numbered(tmp_path, "target").name == "target-001"
    for name in ("target-002", "target-010", "target-x", "other-099", "target-1-099"):
        (tmp_path / name).mkdir()
    assert next_numbered(tmp_path, "target").name == "target-011"


def test_cut_after_keeps_the_beginning(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for i in (1, 2, 3):
        folder.log_metrics({"iteration": i, "x": "ä"})
    with folder.metrics_file.open("a") as file:
        file.write('{"iteration": 4')
    folder.cut_after(2)
    assert lines(folder.metrics_file) == [{"iteration": 1, "x": "ä"}, {"iteration": 2, "x": "ä"}]
    folder.cut_after(0)
    assert folder.metrics_file.read_text() == ""
