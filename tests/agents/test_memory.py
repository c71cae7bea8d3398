from __future__ import annotations

import json
import os
import re
import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import GPT2Config, LlamaConfig

import agents.memory as memory_module
from agents.config import TrainConfig
from agents.cost import LIVE_LOGITS
from agents.header import run_header
from agents.memory import (
    check_before_loading,
    kept_by,
    longest_prompt,
    main_memory,
    parabola,
    shape_from_config,
    shape_of,
    standing,
)
from agents.models.load import device_named
from agents.session import resolve_config
from agents.train import train
from tests.agents.runs import config, session_of
from tests.agents.tiny import VOCABULARY, tiny_actor, tiny_reference

Room = Callable[[float | None], None]


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Room:
    """Set how much memory there seems to be, bytes."""

    def there_are(number: float | None) -> None:
        monkeypatch.setattr(memory_module, "available", lambda place: number)

    return there_are


# Shapes.


def test_the_shape_of_a_published_model_from_its_configuration_alone() -> None:
    shape = shape_from_config(GPT2Config())
    # Known: GPT-2 small has 124,439,808 parameters. Its matrices: 12 layers of 768 * (3 * 768) for
    # queries, keys and values, 768^2 behind them, and twice 768 * 3072.
    assert shape.parameters == 124_439_808
    assert shape.trunk == 12 * 12 * 768**2
    assert (shape.layers, shape.hidden, shape.widest) == (12, 768, 3072)
    assert (shape.heads, shape.kv_heads, shape.head_width) == (12, 12, 64)
    assert shape.vocabulary == 50257
    assert shape.cached == 2 * 12 * 768


def test_grouped_heads_and_an_output_layer_of_its_own() -> None:
    shape = shape_from_config(
        LlamaConfig(
            vocab_size=100,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=3,
            num_attention_heads=8,
            num_key_value_heads=2,
            tie_word_embeddings=False,
        )
    )
    # Queries and output 32 * 32, keys and values 32 * 8 (2 heads of 4), three of 32 * 48.
    assert shape.trunk == 3 * (2 * 32 * 32 + 2 * 32 * 8 + 3 * 32 * 48)
    assert shape.parameters == shape.trunk + 2 * 100 * 32 + 7 * 32  # and the norms
    assert shape.cached == 2 * 3 * 2 * 4


def test_the_shape_of_a_loaded_model_is_that_of_its_configuration() -> None:
    model = tiny_actor("llama").model
    assert shape_of(model) == shape_from_config(model.config)


# What a forward pass keeps.


def test_a_parabola_through_three_lengths() -> None:
    # 5 + 2 n + 3 n^2 at 1, 2 and 4: 10, 21, 61.
    kept = parabola({1: 10, 2: 21, 4: 61})
    assert (kept.constant, kept.per_token, kept.per_pair) == (5, 2, 3)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_what_three_short_rows_keep_says_what_a_batch_keeps(family: str) -> None:
    actor = tiny_actor(family)
    own = {p.untyped_storage().data_ptr() for p in actor.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        actor.response_hidden(torch.zeros((6, 5), dtype=torch.int64), torch.zeros((6, 20)).long())
    measured = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    # Rotary angles are shared by the rows, which three lengths of one row cannot tell.
    assert kept_by(actor).of(6, 24) == pytest.approx(measured, rel=0.03)


def test_measuring_leaves_the_model_as_it_was() -> None:
    actor = tiny_actor("gpt2").train()
    state = torch.random.get_rng_state()
    kept_by(actor)
    assert actor.training
    assert all(p.grad is None for p in actor.parameters())
    assert torch.equal(torch.random.get_rng_state(), state)


def test_lower_precision_keeps_less_of_a_token_and_copies_of_the_weights() -> None:
    plain, lower = tiny_actor("llama"), tiny_actor("llama")
    lower.autocast = torch.bfloat16
    assert kept_by(lower).per_token < kept_by(plain).per_token
    # Two bytes of each number in a matrix.
    assert kept_by(lower).constant == pytest.approx(2 * shape_of(plain.model).trunk, rel=0.1)


# A run.


def test_an_estimate_counts_models_gradients_and_moments() -> None:
    session = session_of(task="target")
    agent = sum(p.numel() * 4 for p in session.learners["agent_0"].actor.parameters())
    plain = agent - 4 * (64 + 1)  # the reference has no value head
    device = session.memory.device
    assert device["references"] == plain
    assert device["moments"] == 2 * 2 * agent
    assert device["weights"] == 2 * agent


def test_adapters_on_one_base_need_no_reference_and_few_moments() -> None:
    pytest.importorskip("peft")
    session = session_of(task="target", lora_rank=2)
    found = session.memory
    base = sum(p.numel() * 4 for p in session.loaded["agent_0"].model.parameters())
    own = sum(p.numel() * 4 for p in session.learners["agent_0"].actor.parameters())
    assert found.device["references"] == 0
    assert found.device["moments"] == 2 * 2 * own
    assert base <= found.device["weights"] < base + 2 * own + 1


def test_the_longest_prompt_is_the_observers_with_the_longest_response() -> None:
    session = session_of(task="target", max_response_tokens=4, max_prompt_tokens=40)
    rules = session.rules
    query = max(session.task.queries("train"), key=lambda q: len(q.text))
    bare = len(rules.prompts.build("observer", query, [""]).ids)
    assert longest_prompt(session) == bare + 4


def test_no_prompt_is_longer_than_it_may_be() -> None:
    session = session_of(task="target", max_response_tokens=30, max_prompt_tokens=16)
    assert longest_prompt(session) == 16


def test_the_header_says_what_is_foreseen_and_what_there_is(room: Room, tmp_path: Path) -> None:
    room(24e9)
    session = session_of(task="target")
    line = next(x for x in run_header(session, tmp_path).splitlines() if "memory" in x)
    total = f"{session.memory.total / 1e9:.1f}"
    assert line.startswith(f"  memory   about {total} GB of 24.0 GB available on cpu, most in ")


def test_where_the_system_says_nothing_the_header_says_what_is_foreseen(
    room: Room, tmp_path: Path
) -> None:
    room(None)
    text = run_header(session_of(task="target"), tmp_path)
    assert re.search(r"memory   about [0-9.]+ GB on cpu, most in", text)


class LiveLogits(TorchDispatchMode):
    """Counts the bytes of tensors over a vocabulary that are alive at once, weights apart."""

    def __init__(self, vocabulary: int, weights: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.own = {weight.untyped_storage().data_ptr() for weight in weights}
        self.alive: dict[int, tuple[int, int]] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.shape[-1:] == (self.vocabulary,):
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in self.own and id(tensor) not in self.alive:
                    self.alive[id(tensor)] = (storage.data_ptr(), storage.nbytes())
                    weakref.finalize(tensor, self.alive.pop, id(tensor), None)
        self.peak = max(self.peak, sum(dict(self.alive.values()).values()))
        return result


def peak_of_logits(positions: int) -> int:
    """Bytes of logits that an agent's statistics and their gradient hold at most."""
    actor, reference = tiny_actor(), tiny_reference()
    rng = torch.Generator().manual_seed(0)
    hidden = torch.randn(positions, 16, generator=rng).requires_grad_()
    counted = LiveLogits(VOCABULARY, [*actor.parameters(), *reference.parameters()])
    with counted:
        found = actor.statistics(
            hidden,
            torch.randint(VOCABULARY, (positions,), generator=rng),
            0.7,
            reference=reference,
            ref_hidden=torch.randn(positions, 16, generator=rng),
        )
        (found.logprobs + found.entropy + found.kl).sum().backward()
    assert hidden.grad is not None
    return counted.peak


@pytest.mark.case(48)
def test_no_more_logits_are_alive_than_are_foreseen(monkeypatch: pytest.MonkeyPatch) -> None:
    piece = 5 * VOCABULARY * 4  # five positions
    monkeypatch.setattr("agents.models.language_model.LOGITS_BYTES", piece)
    few, many = peak_of_logits(20), peak_of_logits(200)
    assert few == many  # however many positions there are
    assert 3 * piece <= many <= LIVE_LOGITS * piece
    monkeypatch.setattr("agents.models.language_model.LOGITS_BYTES", 100 * piece)
    assert peak_of_logits(200) > LIVE_LOGITS * piece  # in one piece they would be more


# Refusals.


def test_too_little_memory_is_refused_before_the_folder_is_claimed(
    room: Room, tmp_path: Path
) -> None:
    room(3e8)
    with pytest.raises(ValueError, match="not enough memory foreseen") as refusal:
        train(config(tmp_path / "run", task="target"))
    message = str(refusal.value)
    assert "about 0.6 GB are needed (libraries 0.6 GB" in message
    assert "0.3 GB are available" in message
    assert "no setting changes that, it takes a smaller model or more memory" in message
    assert "memory_check=False" in message
    assert "\n" not in message
    assert not (tmp_path / "run").exists()


def test_a_batch_too_large_is_refused_before_its_episodes_are_made(
    room: Room, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(*_: object) -> None:
        raise AssertionError("20 million episodes were made")

    session = session_of(task="target")
    monkeypatch.setattr("agents.session.ResponseVectorEnv", made)
    room(64e9)
    with pytest.raises(ValueError, match="not enough memory foreseen") as refusal:
        train(config(tmp_path / "run", task="target", batch_size=40_000_000))
    found = re.search(r"enough would be batch_size (\d+);", str(refusal.value))
    assert found is not None, refusal.value
    # What is advised fits, and twice as much does not.
    for size, fits in ((int(found[1]), True), (2 * int(found[1]), False)):
        smaller = replace(session, config=replace(session.config, batch_size=size))
        assert (smaller.memory.total <= 64e9) is fits


def test_the_refusal_can_be_turned_off(room: Room) -> None:
    room(1.0)
    assert session_of(task="target", memory_check=False).memory.total > 1.0


def test_a_run_that_just_fits_is_not_refused(room: Room) -> None:
    room(None)
    needed = session_of(task="target").memory.total
    room(needed)
    session_of(task="target")
    room(needed - 1)
    with pytest.raises(ValueError, match="not enough memory"):
        session_of(task="target")


def large_folder(folder: Path) -> Path:
    """A folder that says it holds a model of 6.7 billion parameters, and does not."""
    LlamaConfig().save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("settings", "gigabytes", "advice"),
    [
        # 6.738 billion parameters of 4 bytes are 26.95 GB: two agents with gradient and two moments
        # (8 times), one reference: 9 times, and 0.56 GB of libraries.
        ({}, "243 GB", "lora_rank"),
        ({"method": "solo"}, "135 GB", "lora_rank"),  # 5 times
        ({"dtype": "bfloat16"}, "122 GB", "lora_rank"),
        ({"lora_rank": 8}, "27.5 GB", "dtype bfloat16"),  # the base once
    ],
)
def test_a_model_too_large_is_refused_from_its_configuration(
    tmp_path: Path, room: Room, settings: dict[str, Any], gigabytes: str, advice: str
) -> None:
    """The folder holds no weights: were they looked for, the sentence would be another."""
    room(20e9)
    model = str(large_folder(tmp_path / "model"))
    with pytest.raises(ValueError, match="not enough memory foreseen on cpu: at least") as refusal:
        train(config(tmp_path / "run", task="reviews", model=model, **settings))
    assert f"at least {gigabytes} are needed" in str(refusal.value)
    assert advice in str(refusal.value)


def test_two_models_count_apart(tmp_path: Path) -> None:
    small = LlamaConfig(hidden_size=64, intermediate_size=64, num_hidden_layers=1, vocab_size=100)
    large_folder(tmp_path / "large")
    small.save_pretrained(tmp_path / "small")
    one, other = (shape_from_config(c).parameters * 4 for c in (LlamaConfig(), small))
    names = f"{tmp_path}/large,{tmp_path}/small"
    resolved, _ = resolve_config(TrainConfig(task="target", model=names))
    parts = standing(resolved)
    assert parts["weights"] == one + other
    assert parts["references"] == one + other
    assert parts["moments"] == 2 * (one + other)


@pytest.mark.parametrize("content", ["{", "{}", json.dumps({"model_type": "nonesuch"})])
def test_what_cannot_be_read_is_left_to_the_loading(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    resolved, _ = resolve_config(TrainConfig(task="target", model=str(tmp_path)))
    assert sum(standing(resolved).values()) == 0


def test_a_device_that_is_not_there_is_named_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"device 'cuda' was asked for, but torch sees no CUDA"):
        train(config(tmp_path / "run", task="target", model="./absent", device="cuda"))


def test_a_device_beyond_the_last_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert device_named("cuda:1") == torch.device("cuda:1")
    sentence = r"device 'cuda:7' was asked for, but the last CUDA device here is cuda:1"
    with pytest.raises(ValueError, match=sentence):
        device_named("cuda:7")
    resolved, _ = resolve_config(TrainConfig(task="target", device="cuda:7"))
    with pytest.raises(ValueError, match=sentence):
        check_before_loading(resolved, resolved.device)


# What there is.

PAGE = os.sysconf("SC_PAGE_SIZE")
KB = 1024


def write_proc(proc: Path, *, spare: int, pages: int, group: str | None = None) -> None:
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(f"MemTotal:  99999 kB\nMemAvailable:  {spare} kB\n")
    (proc / "self" / "statm").write_text(f"5000 {pages} 200 1 0 3000 0\n")
    if group is not None:
        (proc / "self" / "cgroup").write_text(group)


def test_what_the_process_has_counts_as_available(tmp_path: Path) -> None:
    write_proc(tmp_path / "proc", spare=3000, pages=7)
    assert main_memory(tmp_path / "proc", tmp_path / "none") == 3000 * KB + 7 * PAGE


def test_the_tightest_control_group_counts(tmp_path: Path) -> None:
    write_proc(tmp_path / "proc", spare=900_000, pages=1, group="0::/batch/job\n")
    root = tmp_path / "cgroup"
    job = root / "batch" / "job"
    job.mkdir(parents=True)
    (job / "memory.max").write_text("max\n")
    (job / "memory.current").write_text("100\n")
    (job.parent / "memory.max").write_text("5000000\n")
    (job.parent / "memory.current").write_text("3000000\n")
    (job.parent / "memory.stat").write_text("anon 1\ninactive_file 400000\n")
    # 5,000,000 - 3,000,000, and 400,000 of cached files that would be given back.
    assert main_memory(tmp_path / "proc", root) == 2_400_000 + PAGE


def test_control_groups_of_the_first_version_count_too(tmp_path: Path) -> None:
    write_proc(
        tmp_path / "proc", spare=900_000, pages=1, group="4:cpu:/x\n3:memory,hugetlb:/docker/a\n"
    )
    folder = tmp_path / "cgroup" / "memory"  # in a container the group's own folder is the root
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text("1000000\n")
    (folder / "memory.usage_in_bytes").write_text("1200000\n")
    assert main_memory(tmp_path / "proc", tmp_path / "cgroup") == PAGE


def test_a_system_without_these_files_counts_all_its_memory(tmp_path: Path) -> None:
    expected = os.sysconf("SC_PHYS_PAGES") * PAGE
    assert main_memory(tmp_path / "none", tmp_path / "none") == expected


def test_processes_on_one_machine_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_module, "main_memory", lambda: 1000)
    assert memory_module.available(torch.device("cpu")) == 1000
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert memory_module.available(torch.device("cpu")) == 250


def test_a_gpu_counts_what_is_free_and_what_torch_already_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda place: (700, 1000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda place: 50)
    assert memory_module.available(torch.device("cuda:0")) == 750
