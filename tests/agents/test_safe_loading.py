"""Files made to do harm, in every place where something is read: at worst an error results.

Each carries a pickle, a tag or a module whose loading would create the file `harm`.
"""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from agents.checkpoint import load_checkpoint
from agents.command_line import settings_from_file
from agents.models.load import load_model
from agents.session import resolve_config
from agents.train import TrainResult, train
from cory_env.data_files import load_queries
from cory_env.tokens import as_tokenizer
from tests.agents.runs import config, reseal, session_of


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, harm: Path) -> None:
        self.harm = harm

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.harm,))


@pytest.fixture
def harm(tmp_path: Path) -> Path:
    return tmp_path / "harm"


def pickled(harm: Path) -> bytes:
    return pickle.dumps(Payload(harm))


def torch_saved(harm: Path) -> bytes:
    path = harm.with_name("payload.pt")
    torch.save({"weight": Payload(harm)}, path)
    return path.read_bytes()


KINDS: dict[str, Callable[[Path], bytes]] = {"pickle": pickled, "torch": torch_saved}


@pytest.mark.parametrize("kind", KINDS)
def test_the_payloads_would_do_harm(kind: str, harm: Path) -> None:
    data = harm.with_name("data")
    data.write_bytes(KINDS[kind](harm))
    if kind == "pickle":
        pickle.loads(data.read_bytes())
    else:
        torch.load(data, weights_only=False)
    assert harm.exists()


def sentence(load: Callable[[], object], otherwise: str) -> str:
    """The sentence of a refusal; only a ValueError is one."""
    try:
        load()
    except ValueError as error:
        return str(error)
    return otherwise


# Checkpoints and run folders.


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("checksums", ["old", "forged"])
@pytest.mark.parametrize(
    "name",
    ["agent_0.safetensors", "agent_1.optimizer.safetensors", "agent_0.json", "state.json"],
)
def test_a_checkpoint(
    name: str, checksums: str, kind: str, cory_run: TrainResult, tmp_path: Path, harm: Path
) -> None:
    path = tmp_path / "000004"
    shutil.copytree(cory_run.out / "checkpoints/000004", path)
    (path / name).write_bytes(KINDS[kind](harm))
    if checksums == "forged" and name != "state.json":
        reseal(path)
    with pytest.raises(ValueError, match=r"checkpoint .*000004 cannot be used: "):
        load_checkpoint(path, session_of().learners)
    assert not harm.exists()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name",
    ["config.json", "metrics.jsonl", "samples.jsonl", "warnings.jsonl", "checkpoints/latest"],
)
def test_a_run_folder(
    name: str, kind: str, cory_run: TrainResult, tmp_path: Path, harm: Path
) -> None:
    shutil.copytree(cory_run.out, tmp_path / "run")
    (tmp_path / "run" / name).write_bytes(KINDS[kind](harm))
    resumed = config(tmp_path / "run", resume=True, tensorboard=True)
    if name in ("samples.jsonl", "warnings.jsonl"):  # read only to be cut: nothing is left of it
        assert train(resumed).finished
    else:
        with pytest.raises(ValueError, match=r"resume|latest"):
            train(resumed)
    assert not harm.exists()


# Settings.

TAGS = [
    '!!python/object/apply:pathlib.Path.touch [!!python/object/apply:pathlib.Path ["{harm}"]]',
    '!!python/object/apply:os.system ["touch {harm}"]',
    "!!python/name:os.system",
    "!!python/module:antigravity",
]


@pytest.mark.parametrize("tag", TAGS)
def test_a_settings_file(tag: str, tmp_path: Path, harm: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(f"seed: {tag.format(harm=harm)}\n")
    with pytest.raises(ValueError, match=r"config .* is not valid"):
        settings_from_file(path)
    with pytest.raises(ValueError, match="task_args must be"):
        resolve_config(config(task_args=f"kappa={tag.format(harm=harm)}".replace(",", "")))
    assert not harm.exists()


# Models and tokenizers.


@pytest.fixture
def model(cory_run: TrainResult, tmp_path: Path) -> Path:
    """A model folder of ours, to be poisoned."""
    shutil.copytree(cory_run.out / "final/agent_0", tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name", ["model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"]
)
def test_a_pickle_under_the_name_of_another_file(
    name: str, kind: str, model: Path, harm: Path
) -> None:
    (model / name).write_bytes(KINDS[kind](harm))
    with pytest.raises(ValueError, match=r"model .* could not be loaded"):
        load_model(str(model))
    assert not harm.exists()


@pytest.mark.parametrize("kind", KINDS)
def test_pickled_weights_are_not_opened(kind: str, model: Path, harm: Path) -> None:
    for name in ("pytorch_model.bin", "adapter_model.bin", "training_args.bin", "optimizer.pt"):
        (model / name).write_bytes(KINDS[kind](harm))
    load_model(str(model))  # beside safetensors nobody looks at them
    (model / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="pickled weights are not opened"):
        load_model(str(model))
    assert not harm.exists()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shard", ["pytorch_model.bin", "shard.safetensors", "../shard.bin"])
def test_an_index_that_names_pickled_shards(shard: str, kind: str, model: Path, harm: Path) -> None:
    (model / shard).write_bytes(KINDS[kind](harm))
    (model / "model.safetensors").rename(model / "other.safetensors")
    index = {"metadata": {}, "weight_map": {"model.embed_tokens.weight": shard}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"model .*(could not be loaded|which are not opened)"):
        load_model(str(model))
    assert not harm.exists()


CODE = "from pathlib import Path\nPath({harm!r}).touch()\nclass Evil: pass\n"


@pytest.mark.parametrize("known_type", [True, False])
def test_code_that_comes_with_a_model_does_not_run(
    known_type: bool, model: Path, harm: Path
) -> None:
    (model / "evil.py").write_text(CODE.format(harm=str(harm)))
    own = json.loads((model / "config.json").read_text())
    own["auto_map"] = {
        "AutoConfig": "evil.Evil",
        "AutoModelForCausalLM": "evil.Evil",
        "AutoTokenizer": "evil.Evil",
    }
    if not known_type:
        own["model_type"] = "evil"
    (model / "config.json").write_text(json.dumps(own))
    if known_type:  # the library has a class of its own for it
        load_model(str(model))
    else:
        with pytest.raises(ValueError, match=r"model .* could not be loaded"):
            load_model(str(model))
    assert not harm.exists()


def test_code_that_comes_with_a_tokenizer_does_not_run(model: Path, harm: Path) -> None:
    (model / "evil.py").write_text(CODE.format(harm=str(harm)))
    own = json.loads((model / "tokenizer_config.json").read_text())
    own["auto_map"] = {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}
    (model / "tokenizer_config.json").write_text(json.dumps(own))
    load_model(str(model))
    own["tokenizer_class"] = "Evil"
    (model / "tokenizer_config.json").write_text(json.dumps(own))
    assert "could not be loaded" in sentence(lambda: load_model(str(model)), "could not be loaded")
    assert not harm.exists()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_tokenizer_folder(name: str, kind: str, model: Path, harm: Path) -> None:
    (model / name).write_bytes(KINDS[kind](harm))
    with pytest.raises(ValueError, match=r".+"):
        as_tokenizer(model)
    assert not harm.exists()


def test_remote_code_is_off_by_default() -> None:
    assert config().trust_remote_code is False


# Data sets.


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".txt", ".pkl", ".npy"])
@pytest.mark.parametrize(
    "content",
    [
        "pickle",
        "torch",
        b"\x00" * 100,
        b"\xff\xfe" + "query\nx\n".encode("utf-16-le"),
        b'{"query": ' + b"[" * 100_000,
        b'{"query": "' + b"x" * 300_000 + b'"}\n',
        b'query,answer\n"' + b"x" * 300_000 + b'",1\n',
        b'{"query": {"$ref": "file:///etc/passwd"}}\n',
        b'{"query": "a", "answer": 1e999}\n',
        b'query,__class__\n=cmd|"/c calc"!A1,x\n',
    ],
    ids=lambda content: str(content[:12]),
)
def test_a_data_file(content: str | bytes, suffix: str, tmp_path: Path, harm: Path) -> None:
    path = tmp_path / f"data{suffix}"
    path.write_bytes(KINDS[content](harm) if isinstance(content, str) else content)
    assert "data" in sentence(lambda: load_queries(path, "train"), "no error: data was read")
    assert not harm.exists()
