from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agents.models import gguf
from agents.models.gguf import convert_gguf, main
from agents.models.load import load_model
from tests.agents.models.gguf_files import TEMPLATE, tiny_llama, write_gguf


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(path, tiny_llama())
    return path


@pytest.fixture(scope="module")
def folder(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("converted") / "model"
    convert_gguf(file, path)
    return path


def test_the_folder_holds_the_weights_of_the_file(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    expected = tiny_llama()
    assert model.dtype == torch.float32
    for name, tensor in expected.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name
    ids = torch.arange(12).unsqueeze(0)
    with torch.no_grad():
        assert torch.equal(model(ids).logits, expected(ids).logits)


def test_the_output_layer_is_tied_again_and_stored_once(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert (folder / "model.safetensors").stat().st_size < 1.2 * 4 * model.num_parameters()


def test_the_tokenizer_merges_ends_and_keeps_the_chat_template(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    # As in the vocabulary that the file was given: ell is one of its first merges.
    assert tokenizer.tokenize("hello") == ["h", "ell", "o"]
    assert tokenizer.decode(tokenizer("a hello é\n").input_ids) == "a hello é\n"
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.chat_template == TEMPLATE


def test_nothing_says_quantised_so_the_folder_can_be_saved_again(
    folder: Path, tmp_path: Path
) -> None:
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(tmp_path / "again")


def test_our_own_loader_opens_it(folder: Path) -> None:
    loaded = load_model(str(folder))
    assert loaded.text_tokenizer.end_ids == (2,)
    assert loaded.text_tokenizer.decode(loaded.text_tokenizer.encode("hello")) == "hello"


def test_the_file_itself_as_a_model_gets_the_way_there(file: Path) -> None:
    with pytest.raises(ValueError, match=r"is a GGUF file: make a folder of it first, with python"):
        load_model(str(file))


def test_the_weights_can_be_stored_in_half_precision(file: Path, tmp_path: Path) -> None:
    convert_gguf(file, tmp_path / "model", dtype="bfloat16")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert model.dtype == torch.bfloat16
    expected = tiny_llama().model.norm.weight.to(torch.bfloat16)
    assert torch.equal(model.model.norm.weight, expected)


def test_a_missing_weight_is_named(tmp_path: Path) -> None:
    write_gguf(tmp_path / "holey.gguf", tiny_llama(), without="blk.1.ffn_up.weight")
    with pytest.raises(ValueError, match=r"lacks weights.*1 are missing.*layers\.1\.mlp\.up_proj"):
        convert_gguf(tmp_path / "holey.gguf", tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_what_is_no_gguf_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"absent\.gguf cannot be read: No such file"):
        convert_gguf(tmp_path / "absent.gguf", tmp_path / "model")
    (tmp_path / "text.gguf").write_text("not one")
    with pytest.raises(ValueError, match=r"text\.gguf must be a GGUF file"):
        convert_gguf(tmp_path / "text.gguf", tmp_path / "model")
    (tmp_path / "cut.gguf").write_bytes(b"GGUF\x03\x00\x00\x00")
    with pytest.raises(ValueError, match=r"cut\.gguf could not be read as a causal language model"):
        convert_gguf(tmp_path / "cut.gguf", tmp_path / "model")


def test_without_the_extra_it_says_which_package_is_missing(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf, "find_spec", lambda name: None if name == "accelerate" else name)
    with pytest.raises(ValueError, match=r"need the package accelerate: pip install"):
        convert_gguf(file, tmp_path / "model")


def test_an_unknown_type_is_refused_before_the_file_is_opened(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="dtype must be one of"):
        convert_gguf(tmp_path / "absent.gguf", tmp_path / "model", dtype="int4")


def test_the_command_converts_and_overwrites_nothing(
    file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    target = tmp_path / "model"
    monkeypatch.setattr("sys.argv", ["gguf", str(file), str(target)])
    main()
    assert f"--model {target}" in capsys.readouterr().out
    before = (target / "config.json").stat().st_mtime_ns
    with pytest.raises(SystemExit):
        main()
    assert "must not be there yet" in capsys.readouterr().err
    assert (target / "config.json").stat().st_mtime_ns == before
