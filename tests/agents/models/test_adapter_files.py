"""Tests of agents/models/adapter_files.py and of load.py where a folder holds an adapter."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

import agents.models.load
from agents.models.adapter_files import BaseRecord, merge, put_on, read_adapter, write_adapter
from agents.models.adapters import AdapterModel
from agents.models.load import load_model
from agents.models.shared_base import AdapterShape, SharedBase
from agents.models.target import draw_weights
from tests.cases.models import KINDS, model_folder

IDS = torch.tensor([[3, 4, 5, 6]])


def logits(model: PreTrainedModel) -> Tensor:
    with torch.no_grad():
        return model(input_ids=IDS, attention_mask=torch.ones_like(IDS)).logits  # type: ignore[no-any-return]


def adapted(folder: Path, kind: str, targets: tuple[str, ...] = ("auto",)) -> tuple[Path, Tensor]:
    """A base folder, an adapter folder beside it, and the logits of both together."""
    base_folder = model_folder(folder / "base", kind)
    base = SharedBase(load_model(str(base_folder), dtype="float64").model)
    base.add("agent_0", AdapterShape(2, 6.0, targets), seed=1)
    draw_weights(base.tree("agent_0"), 4, std=0.4)
    record = BaseRecord(str(base_folder), 0, "float64", "none", base.checksum)
    (folder / "adapter").mkdir()
    write_adapter(folder / "adapter", base, "agent_0", record)
    with base.using("agent_0"):
        return folder / "adapter", logits(base.model)


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    return adapted(tmp_path, KINDS[0])[0]


def edit(folder: Path, file: str = "adapter_config.json", **changes: Any) -> None:
    settings = {**json.loads((folder / file).read_text()), **changes}
    (folder / file).write_text(json.dumps(settings))


def edit_numbers(folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    file = folder / "adapter_model.safetensors"
    save_file(change(load_file(file)), file)


# There and back.


@pytest.mark.parametrize("kind", KINDS)
def test_the_library_opens_what_is_written(kind: str, tmp_path: Path) -> None:
    from peft import PeftModel

    folder, said = adapted(tmp_path, kind)
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base").double()
    opened = PeftModel.from_pretrained(base, str(folder))
    assert torch.allclose(logits(opened), said, atol=1e-6, rtol=0)
    with opened.disable_adapter():
        assert not torch.allclose(logits(opened), said, atol=1e-2)
    # Without naming the base, too: its path is recorded.
    assert opened.peft_config["default"].base_model_name_or_path == str(tmp_path / "base")


@pytest.mark.parametrize(
    ("kind", "targets"),
    [
        ("byte_level", ("auto",)),
        ("byte_level", ("c_attn",)),
        ("sentencepiece", ("auto",)),
        ("sentencepiece", ("o_proj", "q_proj")),
    ],
)
def test_an_adapter_merged_or_beside_its_base_says_what_it_said(
    kind: str, targets: tuple[str, ...], tmp_path: Path
) -> None:
    folder, said = adapted(tmp_path, kind, targets)
    merged = load_model(str(folder), dtype="float64")
    assert merged.adapter is None and merged.source == str(folder)
    assert torch.allclose(logits(merged.model), said, atol=1e-10, rtol=0)
    bases: dict[str, Any] = {}
    apart = load_model(str(folder), dtype="float64", bases=bases)
    assert apart.adapter is not None and [m.model for m in bases.values()] == [apart.model]
    base = SharedBase(apart.model)
    put_on(base, "again", apart.adapter, trained=False)
    with base.using("again"):
        assert torch.equal(logits(base.model), said)
    if targets != ("auto",):
        assert base.short_targets("again") == list(targets)


def test_two_adapters_of_one_base_share_it(adapter: Path) -> None:
    other = Path(shutil.copytree(adapter, adapter.parent / "other"))
    bases: dict[str, Any] = {}
    one, two = (load_model(str(f), dtype="float64", bases=bases) for f in (adapter, other))
    plain = load_model(str(adapter.parent / "base"), dtype="float64", bases=bases)
    assert one.model is two.model is plain.model
    assert plain.adapter is None and one.adapter is not None


def test_a_layer_that_stands_alone_is_named_whole(tmp_path: Path) -> None:
    base = SharedBase(load_model(str(model_folder(tmp_path / "base", KINDS[1]))).model)
    base.add("one", AdapterShape(2, 4.0, ("model.layers.1.self_attn.q_proj",)))
    assert base.short_targets("one") == ["model.layers.1.self_attn.q_proj"]


def test_an_adapter_of_the_library_itself_is_opened(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    model = AutoModelForCausalLM.from_pretrained(model_folder(tmp_path / "base", KINDS[1]))
    layers = r".*layers\.1.*(q|v)_proj"
    foreign = get_peft_model(
        model, LoraConfig(r=4, lora_alpha=3, target_modules=layers, use_rslora=True)
    )
    with torch.no_grad():
        for name, weight in foreign.named_parameters():
            if ".lora_B." in name:
                weight.fill_(0.3)
    foreign.save_pretrained(tmp_path / "adapter")
    opened = load_model(str(tmp_path / "adapter"))
    assert torch.allclose(logits(opened.model), logits(foreign), atol=1e-5)
    files = read_adapter(tmp_path / "adapter")
    assert files.shape.targets == (
        "model.layers.1.self_attn.q_proj",
        "model.layers.1.self_attn.v_proj",
    )
    assert files.record is None


@pytest.mark.case(36)
def test_a_base_of_random_weights_is_drawn_again_from_its_own_seed(tmp_path: Path) -> None:
    base = SharedBase(load_model("builtin:target", seed=3).model)
    base.add("agent_0", AdapterShape(2, 4.0, ("auto",)))
    write_adapter(
        tmp_path, base, "agent_0", BaseRecord("builtin:target", 3, "float32", "none", base.checksum)
    )
    opened = load_model(str(tmp_path), seed=8).model.state_dict()
    drawn = load_model("builtin:target", seed=3).model.state_dict()
    assert all(torch.equal(tensor, drawn[name]) for name, tensor in opened.items())


def test_the_same_adapter_is_written_as_the_same_files(tmp_path: Path) -> None:
    folder, _ = adapted(tmp_path, KINDS[1])
    named = json.loads((folder / "adapter_config.json").read_text())["target_modules"]
    assert named == sorted(named) and len(named) == 7


def test_an_adapter_of_the_hub_is_fetched_and_opened(
    adapter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    class Hub:
        def model_info(self, name: str, timeout: float) -> object:
            files = [SimpleNamespace(rfilename=file.name) for file in adapter.iterdir()]
            return SimpleNamespace(siblings=files)

    def fetch(name: str, **options: Any) -> str:
        asked.append((name, options["allow_patterns"]))
        return str(adapter)

    monkeypatch.setattr(agents.models.load, "HfApi", Hub)
    monkeypatch.setattr(agents.models.load, "snapshot_download", fetch)
    opened = load_model("someone/adapter", dtype="float64", bases={})
    assert opened.source == "someone/adapter" and opened.adapter is not None
    assert asked == [("someone/adapter", ["adapter_config.json", "adapter_model.safetensors"])]


# Refusals.


def wrong_shape(numbers: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n: t.repeat(1, 2) if ".lora_A." in n else t for n, t in numbers.items()}


def without_one(numbers: dict[str, Tensor]) -> dict[str, Tensor]:
    return dict(list(sorted(numbers.items()))[1:])


def other_layer(numbers: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n.replace(".h.1.", ".h.7."): t for n, t in numbers.items()}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            wrong_shape,
            r"its transformer.h.0.attn.c_attn.lora_A.weight is \[2, 32\], the base needs",
        ),
        (without_one, "it lacks transformer.h.0.attn.c_attn.lora_A.weight"),
        (other_layer, "lora_targets .* got 'transformer.h.7.attn.c_attn'"),
    ],
)
def test_an_adapter_for_another_base_is_refused(
    change: Callable[[dict[str, Tensor]], dict[str, Tensor]], words: str, adapter: Path
) -> None:
    edit_numbers(adapter, change)
    with pytest.raises(ValueError, match=f"adapter is not for the base .*: {words}"):
        load_model(str(adapter))


def test_a_base_that_has_changed_is_refused(adapter: Path) -> None:
    model_folder(adapter.parent / "base", KINDS[0], seed=1)
    with pytest.raises(ValueError, match="not those that the adapter was trained on"):
        load_model(str(adapter), dtype="float64")
    load_model(str(adapter), dtype="float32")  # rounded weights cannot be compared


def test_another_base_named_in_its_settings_is_refused(adapter: Path) -> None:
    other = model_folder(adapter.parent / "other", KINDS[1])
    edit(adapter, base_model_name_or_path=str(other))
    with pytest.raises(ValueError, match="is not for the base"):
        load_model(str(adapter))


def test_a_base_that_has_moved_is_named_with_a_way_on(adapter: Path) -> None:
    (adapter.parent / "base").rename(adapter.parent / "elsewhere")
    with pytest.raises(ValueError, match=r"base could not be opened; .*base_model_name_or_path"):
        load_model(str(adapter))
    edit(adapter, base_model_name_or_path=str(adapter.parent / "elsewhere"))
    load_model(str(adapter), dtype="float64")


def test_an_adapter_on_an_adapter_is_refused(adapter: Path) -> None:
    edit(adapter, base_model_name_or_path=str(adapter))
    with pytest.raises(ValueError, match="is an adapter itself"):
        load_model(str(adapter))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"peft_type": "IA3"}, "must be of peft_type LORA, got 'IA3'"),
        ({"use_dora": True}, "must be plain LoRA; its use_dora is True"),
        ({"bias": "all"}, "its bias is 'all'"),
        ({"modules_to_save": ["lm_head"]}, "its modules_to_save is"),
        ({"rank_pattern": {"c_attn": 4}}, "its rank_pattern is"),
        ({"init_lora_weights": "pissa"}, "its init_lora_weights is 'pissa'"),
        ({"layer_replication": [[0, 2], [0, 2]]}, "its layer_replication is"),
        ({"r": 0}, "r must be a whole number from 1, got 0"),
        ({"r": True}, "r must be a whole number from 1, got True"),
        ({"lora_alpha": "x"}, "lora_alpha must be positive, got 'x'"),
        ({"lora_alpha": 0}, "lora_alpha must be positive, got 0"),
        ({"base_model_name_or_path": None}, "must name base_model_name_or_path"),
    ],
)
def test_other_adapters_are_refused(changes: dict[str, Any], words: str, adapter: Path) -> None:
    edit(adapter, **changes)
    with pytest.raises(ValueError, match=f"adapter.*{words}"):
        load_model(str(adapter))


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("adapter_config.json", "[]"),
        ("adapter_config.json", "{"),
        ("adapter_config.json", "[" * 100_000),
        ("base.json", '{"model": "x"}'),
        ("base.json", "7"),
        ("adapter_model.safetensors", "what"),
    ],
)
def test_damaged_files_are_named(file: str, content: str, adapter: Path) -> None:
    (adapter / file).write_text(content)
    with pytest.raises(ValueError, match="adapter folder"):
        load_model(str(adapter))


def test_pickled_numbers_are_never_opened(adapter: Path) -> None:
    weights = adapter / "adapter_model.safetensors"
    torch.save(load_file(weights), adapter / "adapter_model.bin")
    load_model(str(adapter), dtype="float64")  # beside safetensors nobody looks at them
    weights.unlink()
    with pytest.raises(ValueError, match="pickled weights are not opened"):
        load_model(str(adapter))


def test_merging_needs_whole_numbers_in_the_base(adapter: Path) -> None:
    apart = load_model(str(adapter), dtype="float64", bases={})
    for parameter in apart.model.parameters():  # as bitsandbytes keeps its weights
        parameter.requires_grad_(False)
    base = SharedBase(apart.model)
    assert apart.adapter is not None
    put_on(base, "agent_0", apart.adapter, trained=False)
    layer = next(iter(base.on("agent_0").values())).get_base_layer()
    layer.weight = torch.nn.Parameter(layer.weight.to(torch.uint8), requires_grad=False)
    with pytest.raises(ValueError, match="cannot be merged into a quantised base"):
        base.merged("agent_0").__enter__()


def test_merge_gives_a_model_without_an_adapter(adapter: Path) -> None:
    apart = load_model(str(adapter), dtype="float64", bases={})
    whole = merge(apart)
    assert whole.adapter is None and whole.tokenizer is apart.tokenizer
    assert not [n for n, _ in whole.model.named_modules() if "lora" in n]


def test_an_adapter_model_and_its_base_have_different_sums(adapter: Path) -> None:
    apart = load_model(str(adapter), dtype="float64", bases={})
    base = SharedBase(apart.model)
    assert apart.adapter is not None
    put_on(base, "agent_0", apart.adapter, trained=False)
    size = apart.text_tokenizer.vocab_size
    alone, own = AdapterModel(base, size, None), AdapterModel(base, size, "agent_0")
    assert alone.checksum != own.checksum
    before = own.checksum
    with torch.no_grad():
        next(own.adapter.parameters()).add_(1.0)
    assert own.checksum != before
