"""How much memory a run will take and how much there is: the check before any work is done."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from huggingface_hub import try_to_load_from_cache
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from agents.config import TrainConfig
from agents.cost import (
    CPU_WASTE,
    CUDA_WASTE,
    LIBRARIES,
    Held,
    Kept,
    Load,
    Memory,
    ModelShape,
)
from agents.evaluation import CHUNK_EPISODES
from agents.maths.kl import ESTIMATORS_WITH_REF_HIDDEN
from agents.memory_advice import ADAPTERS, Foreseen, Steps, advice, gigabytes
from agents.models.language_model import LOGITS_BYTES, ActorCritic, fitting_positions
from agents.models.load import DTYPES, device_named
from agents.sampling import CHUNK_ROWS
from cory_env.rules import GameRules

if TYPE_CHECKING:
    from agents.session import Session

LONGEST_QUERIES = 64
"""Queries whose prompts are measured: the longest by letters."""


def shape_of(model: PreTrainedModel) -> ModelShape:
    """What the cost of a model depends on; its weights may lie on torch's meta device."""
    config = model.config.get_text_config()
    head = model.get_output_embeddings().weight
    looked_up = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    trunk = [p for p in model.parameters() if id(p) not in looked_up and p is not head]
    hidden = int(head.shape[1])
    heads = _largest(config, "num_attention_heads", 1)
    return ModelShape(
        parameters=sum(p.numel() for p in model.parameters()),
        trunk=sum(p.numel() for p in trunk if p.ndim > 1),
        layers=_largest(config, "num_hidden_layers", 1),
        hidden=hidden,
        widest=max(max(p.shape) for p in trunk),
        heads=heads,
        kv_heads=_largest(config, "num_key_value_heads", heads),
        head_width=_largest(config, "head_dim", hidden // heads),
        vocabulary=int(head.shape[0]),
    )


def _largest(config: PreTrainedConfig, name: str, otherwise: int) -> int:
    """A number of a configuration; of one for each layer, the largest."""
    value = getattr(config, name, None)
    return int(max(value) if isinstance(value, list | tuple) else value or otherwise)


def shape_from_config(config: PreTrainedConfig, trust_remote_code: bool = False) -> ModelShape:
    """The same without weights, from a model's `config.json`."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    return shape_of(model)


# What a forward pass keeps.

PROBES = (8, 16, 32)
"""Lengths of the three forward passes that a parabola is laid through."""


def kept_by(actor: ActorCritic) -> Kept:
    """Measure what autograd keeps of a forward pass, on one row of a few tokens.

    Architectures and their versions differ up to threefold here, so no formula is relied on.

    Args:
        actor: with its adapter and its precision. Measured without gradient checkpointing, which
            is off outside training.
    """
    compiled, actor._compiled = actor._compiled, []
    mode = actor.training
    actor.eval()
    try:
        return parabola({n: _kept_bytes(actor, n) for n in PROBES})
    finally:
        actor.train(mode)
        actor._compiled = compiled


def parabola(sizes: dict[int, int]) -> Kept:
    """The constant and the slopes per token and per pair of tokens behind three measurements.

    Args:
        sizes: bytes by the length of a row, three of them.
    """
    (a, short), (b, middle), (c, long) = sizes.items()
    first, second = (middle - short) / (b - a), (long - middle) / (c - b)
    per_pair = (second - first) / (c - a)
    per_token = first - per_pair * (a + b)
    return Kept(short - per_token * a - per_pair * a * a, per_token, per_pair)


def _kept_bytes(actor: ActorCritic, tokens: int) -> int:
    own = {p.untyped_storage().data_ptr() for p in actor.model.parameters()}
    found: dict[int, int] = {}
    alive: list[Tensor] = []  # else the next tensor might lie where the last one was

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    ids = torch.zeros((1, tokens), dtype=torch.int64, device=actor.device)
    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with torch.enable_grad(), hooks:
        actor.response_hidden(ids[:, :1], ids)
    return sum(found.values())


# A run.


def foreseen(session: Session) -> Foreseen:
    """What the peak of a run follows from: loaded weights are counted, activations measured."""
    learners = session.learners.values()
    actors = [learner.actor for learner in learners]
    widest = max(actors, key=lambda actor: _bytes(actor.model.parameters()))
    shared = _bytes(p for actor in actors for p in actor.model.parameters())
    own = _bytes(p for actor in actors for p in actor.parameters())
    saved = (t for actor in actors for t in actor.state_dict().values())
    references = (learner.reference.model for learner in learners)
    everything = (model for group in ((a.model for a in actors), references) for model in group)
    held = Held(
        weights=max(shared, own),
        references=_bytes(p for model in everything for p in model.parameters()) - shared,
        trained=tuple(_bytes(learner.parameters_in_training) for learner in learners),
        own=own,
        state=sum(t.numel() * t.element_size() for t in saved),
    )
    load = load_of(
        session.config,
        session.rules,
        prompt_tokens=longest_prompt(session),
        processes=session.processes.size,
    )
    shape, kept = shape_of(widest.model), kept_by(widest)
    return Foreseen(session.config, shape, held, load, kept, session.processes.size)


def _bytes(tensors: Iterable[Tensor]) -> int:
    """Of all tensors, each once."""
    return sum(t.numel() * t.element_size() for t in {id(t): t for t in tensors}.values())


def load_of(
    config: TrainConfig, rules: GameRules, *, prompt_tokens: int, processes: int = 1
) -> Load:
    """What of a run's settings decides its working memory.

    Args:
        config: resolved.
        rules: of the game.
        prompt_tokens: longest prompt of any seat.
        processes: that share the rows.
    """
    assert config.batch_size is not None and config.eval_queries is not None
    episodes = config.batch_size // len(rules.agents)
    rows = math.ceil(episodes / processes)
    minibatch = math.ceil(min(config.minibatch_size or episodes, episodes) / processes)
    response = rules.max_response_tokens
    fitting = max(fitting_positions(rules.tokenizer.vocab_size) // response, 1)
    parts = math.ceil(config.eval_queries / CHUNK_EPISODES)
    number = DTYPES[config.dtype].itemsize
    on_gpu = torch.device(config.device).type == "cuda"
    return Load(
        rows=rows,
        evaluated=math.ceil(config.eval_queries / parts / processes),
        minibatch=minibatch,
        micro=min(config.micro_batch_size or fitting, minibatch),
        prompt_tokens=prompt_tokens,
        response_tokens=response,
        weight_bytes=number,
        compute_bytes=number if config.autocast_dtype is None else config.autocast_dtype.itemsize,
        measured_rows=CHUNK_ROWS,
        logits_bytes=LOGITS_BYTES,
        keeps_ref_hidden=config.kl_estimator in ESTIMATORS_WITH_REF_HIDDEN,
        checkpointing=config.gradient_checkpointing,
        elsewhere=on_gpu,
        waste=CUDA_WASTE if on_gpu else CPU_WASTE,
    )


def longest_prompt(session: Session) -> int:
    """Tokens of the longest prompt, were every response that it quotes as long as it may be."""
    rules = session.rules
    queries = [*session.task.queries("train"), *session.evaluation_queries]
    queries.sort(key=lambda query: len(query.text), reverse=True)
    longest = 1
    for query in queries[:LONGEST_QUERIES]:
        for seat, role in enumerate(rules.roles):
            quoted = [""] * seat if rules.knowledge_transfer else []
            bare = len(rules.prompts.build(role, query, quoted).ids)
            longest = max(longest, bare + len(quoted) * rules.max_response_tokens)
    return min(longest, rules.max_prompt_tokens)


# Before the models are loaded.


def standing(config: TrainConfig) -> dict[str, float]:
    """What models, gradients and optimizers take, from the models' `config.json` alone.

    A lower bound: working memory comes on top. Models whose configuration is not here yet, built-in
    ones and adapters count as nothing.

    Args:
        config: resolved.
    """
    assert config.model is not None
    names = [name.strip() for name in config.model.split(",")]
    shapes = {name: _shape_before_loading(name, config.trust_remote_code) for name in names}
    per_agent = names * config.agents_in_game if len(names) == 1 else names
    number = DTYPES[config.dtype].itemsize
    once = float(sum(shape.parameters * number for shape in shapes.values() if shape))
    if config.lora_rank:  # one frozen base, and adapters too small to matter here
        return {"weights": once * (1 if config.quantize == "none" else 0.5 / number)}
    agents = float(sum(s.parameters * number for n in per_agent if (s := shapes[n])))
    return {"weights": agents, "references": once, "gradients": agents, "moments": 2 * agents}


def _shape_before_loading(name: str, trust_remote_code: bool) -> ModelShape | None:
    folder: Path | None = Path(name)
    if not Path(name).is_dir():
        if name.startswith(("builtin:", ".", "/", "~")):
            return None  # loading it says what is wrong, or it is tiny
        cached = try_to_load_from_cache(name, "config.json")
        folder = Path(cached).parent if isinstance(cached, str) else None
    if folder is None or not (folder / "config.json").is_file():
        return None
    try:
        config = AutoConfig.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=trust_remote_code
        )
        return shape_from_config(config, trust_remote_code)
    except Exception:  # loading the model says in a sentence what is wrong with it
        return None


def check_before_loading(config: TrainConfig, device: str) -> None:
    """Refuse a run that cannot fit whatever its batches, before weights are read.

    Args:
        config: resolved.
        device: of this process.

    Raises:
        ValueError: if the device is not there, or its memory is too small.
    """
    place = device_named(device)
    if config.memory_check:
        _refuse(_loading(config), place, "at least ", lambda needed: _lighter(config, needed))


def _loading(config: TrainConfig) -> Memory:
    parts = standing(config)
    host = {"libraries": float(LIBRARIES)} if any(parts.values()) else {}
    return Memory("loading", parts, host)


def _lighter(config: TrainConfig, needed: Callable[[Memory], float]) -> list[Steps]:
    """Settings that lower what models take, whatever the batches."""
    options: list[Steps] = []
    if not config.lora_rank:
        other = replace(config, lora_rank=1)
        options.append([(ADAPTERS, needed(_loading(other)))])
    if config.dtype != "bfloat16":
        other = replace(config, dtype="bfloat16")
        options.append([("dtype bfloat16", needed(_loading(other)))])
    return options


def check_memory(session: Session) -> None:
    """Refuse a run for which there is not enough memory.

    Raises:
        ValueError: one sentence with the estimate, what there is, and what to change.
    """
    if session.config.memory_check:
        _refuse(session.memory, place_of(session), "about ", session.foreseen.options)


def place_of(session: Session) -> torch.device:
    """Where the models are."""
    return next(iter(session.learners.values())).actor.device


def _parts_on(memory: Memory, place: torch.device) -> dict[str, float]:
    """What has to fit into the memory of a place: on a CPU, both kinds."""
    return {**memory.device, **(memory.host if place.type == "cpu" else {})}


def _refuse(
    memory: Memory,
    place: torch.device,
    about: str,
    options: Callable[[Callable[[Memory], float]], Iterable[Steps]],
) -> None:
    """Raise if an estimate does not fit; `options` are then asked for what other settings take."""
    room, shown = available(place), _parts_on(memory, place)
    needed = sum(shown.values())
    if room is None or needed <= room:
        return
    largest = sorted((n for n in shown if shown[n]), key=lambda name: -shown[name])[:4]
    parts = ", ".join(f"{name} {gigabytes(shown[name])}" for name in largest)
    changes = advice(options(lambda other: sum(_parts_on(other, place).values())), needed, room)
    raise ValueError(
        f"not enough memory foreseen on {place}: {about}{gigabytes(needed)} are needed ({parts}), "
        f"{gigabytes(room)} are available; {changes}; memory_check=False tries all the same"
    )


def memory_line(session: Session) -> str:
    """What the header says: the estimate, what there is, and what takes most."""
    memory, place = session.memory, place_of(session)
    room, shown = available(place), _parts_on(memory, place)
    needed = sum(shown.values())
    of = "" if room is None else f" of {gigabytes(room)} available"
    largest = [n for n in sorted(shown, key=lambda n: -shown[n])[:4] if shown[n] > needed / 20]
    parts = ", ".join(f"{name} {gigabytes(shown[name])}" for name in largest)
    return f"about {gigabytes(needed)}{of} on {place}, most in {PHASES[memory.phase]}: {parts}"


PHASES = {
    "generate": "drawing responses",
    "evaluate": "evaluation",
    "reference": "the reference's pass",
    "update": "updates",
    "save": "checkpoints",
}
"""Phase of an estimate -> its name for people."""


# What there is.


def available(place: torch.device) -> int | None:
    """Bytes this process may take in all, what it has already included; None where unknown."""
    if place.type == "cuda":
        free, _ = torch.cuda.mem_get_info(place)
        return int(free + torch.cuda.memory_reserved(place))
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # of this run on this machine
    room = main_memory()
    return None if room is None else room // processes


def main_memory(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes of main memory that this process may take, what it has already included.

    The least of what the machine has to spare and what the process's control groups (containers,
    batch systems) still allow.

    Args:
        proc: where Linux says how processes stand.
        cgroup: where it says what control groups may take.
    """
    try:
        lines = (proc / "meminfo").read_text().splitlines()
        values = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
        own = int((proc / "self" / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        spare = values["MemAvailable"]
    except (OSError, KeyError, ValueError, IndexError):
        return _all_of_it()
    return own + min([spare, *_allowed(proc, cgroup)])


def _all_of_it() -> int | None:
    """All memory of a machine that does not say what is free."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _allowed(proc: Path, cgroup: Path) -> list[int]:
    """What each control group above this process still allows."""
    found = []
    for folder, names in _groups(proc, cgroup):
        limit, used, cache = (_number(folder, name) for name in names)
        if limit is not None and used is not None:
            # Cached files that nobody reads are given back when memory is asked for.
            found.append(max(limit - used + (cache or 0), 0))
    return found


V2 = ("memory.max", "memory.current", "memory.stat:inactive_file")
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat:total_inactive_file")


def _groups(proc: Path, cgroup: Path) -> list[tuple[Path, tuple[str, str, str]]]:
    """Folders of the control groups of this process up to the root, of either version."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, names = cgroup, V2
        elif "memory" in controllers.split(","):
            root, names = cgroup / "memory", V1
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        found += [(root.joinpath(*parts[:n]), names) for n in range(len(parts), -1, -1)]
    return found


def _number(folder: Path, name: str) -> int | None:
    """A number in a file, or by its key in a file of many; None where there is none ("max")."""
    file, _, key = name.partition(":")
    try:
        text = (folder / file).read_text()
        if not key:
            return int(text)
        values: Mapping[str, str] = dict(line.split() for line in text.splitlines())
        return int(values[key])
    except (OSError, KeyError, ValueError):
        return None
