"""What a run costs, by arithmetic: floating-point operations of an iteration and peak memory.

Plain numbers in, plain numbers out; `agents/memory.py` takes them from models and settings and asks
the machine. `docs/cost.md` compares the estimates with measurements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

LIBRARIES = 560_000_000
"""Bytes of a process that has imported everything and built a run of a tiny model."""
LIVE_LOGITS = 5
"""Tensors of a piece of logits that are alive at once: of the policy, of the reference, what the
gradient needs, the gradient."""
DRAW_BYTES = 36
"""Bytes a vocabulary entry and row while a token is drawn: two of float32, three of float64 and
what the last call still holds."""
CPU_WASTE = 0.8
"""Share of the working memory that the C library's allocator holds beyond it, all through the run:
tensors of changing sizes leave gaps. Measured, see `docs/cost.md`; with gaps made impossible
(`MALLOC_MMAP_THRESHOLD_=65536`) the rest of the estimate is exact to a few percent."""
CUDA_WASTE = 0.1
"""The same on a GPU; assumed, not measured."""


@dataclass(frozen=True)
class ModelShape:
    """A causal language model, as far as its cost goes."""

    parameters: int
    """Each once: an output layer tied to the embedding is not counted again."""
    trunk: int
    """Those in matrices that every token is multiplied with: not embeddings and output layer."""
    layers: int
    hidden: int
    widest: int
    """Largest side of a matrix in a layer, usually that of the feed-forward part."""
    heads: int
    kv_heads: int
    head_width: int
    vocabulary: int
    """Rows of the output layer."""

    @property
    def attention_width(self) -> int:
        """Width of the queries of all heads."""
        return self.heads * self.head_width

    @property
    def cached(self) -> int:
        """Numbers that the key-value cache keeps of a token."""
        return 2 * self.layers * self.kv_heads * self.head_width


# Floating-point operations.


@dataclass(frozen=True)
class Work:
    """One iteration, as far as its arithmetic goes."""

    episodes: int
    prompt_tokens: tuple[float, ...]
    """Mean length of a prompt, by seat."""
    response_tokens: float
    """Mean length of a response."""
    update_epochs: int = 4
    exact_kl: bool = True
    """Whether the loss needs the reference's distribution again."""
    checkpointing: bool = False
    """Whether activations are computed again instead of kept."""
    frozen_base: bool = False
    """Whether only adapters are trained: no gradient of the other matrices is computed."""


@dataclass(frozen=True)
class Flops:
    """Floating-point operations of an iteration, all agents together."""

    generate: float
    reference: float
    update: float

    @property
    def total(self) -> float:
        """The sum of the stages."""
        return self.generate + self.reference + self.update


def iteration_flops(shape: ModelShape, work: Work) -> Flops:
    """Operations of an iteration.

    A multiplication and its addition count as two. A matrix costs a token twice its entries forward
    and twice that backward (input and weights each); the output layer is applied at response
    positions only. A response's last token is never fed. Attention costs a token four times the
    width of its queries for each token that it sees.

    Source: Kaplan et al. 2020, "Scaling laws for neural language models", section 2.1; attention
    halved, since a token sees only what stands before it.
    """
    passes = (2.0 if work.frozen_base else 3.0) + (1.0 if work.checkpointing else 0.0)
    generate = reference = update = 0.0
    for prompt in work.prompt_tokens:
        fed = prompt + work.response_tokens - 1
        trunk = work.episodes * forward_flops(shape, fed)
        logits = work.episodes * work.response_tokens * 2.0 * shape.hidden * shape.vocabulary
        generate += trunk + logits
        reference += trunk + 2 * logits  # the policy's again, from the hidden states it kept
        head = (2.0 if work.frozen_base else 3.0) + (1.0 if work.exact_kl else 0.0)
        update += work.update_epochs * (passes * trunk + head * logits)
    return Flops(generate, reference, update)


def forward_flops(shape: ModelShape, tokens: float) -> float:
    """Operations of the trunk for one sequence."""
    seen = tokens * (tokens + 1) / 2
    return 2.0 * shape.trunk * tokens + 4.0 * shape.layers * shape.attention_width * seen


# Time on a device that was not measured.


@dataclass(frozen=True)
class Accelerator:
    """A named device by its data sheet, and what share of it is reckoned with."""

    name: str
    flops: float
    """A second, dense, in the precision of the weights."""
    bandwidth: float
    """Bytes a second."""
    memory: float
    """Bytes."""
    utilisation: float = 0.4
    """Share of `flops` that forward and backward passes reach."""
    bandwidth_share: float = 0.6
    """Share of `bandwidth` that a decoding step reaches."""
    seconds_per_layer: float = 0.7e-3
    """Launching a layer's kernels in a decoding step from Python: the floor for small models."""


A100 = Accelerator("NVIDIA A100 80 GB", flops=312e12, bandwidth=2.04e12, memory=80e9)
"""Source: its data sheet (bfloat16 without sparsity)."""


@dataclass(frozen=True)
class Seconds:
    """Time of an iteration by stage."""

    generate: float
    reference: float
    update: float

    @property
    def total(self) -> float:
        """The sum of the stages."""
        return self.generate + self.reference + self.update


def seconds_at(flops: Flops, rates: Mapping[str, float]) -> Seconds:
    """Time of an iteration from measured rates.

    Args:
        flops: of the iteration.
        rates: operations a second by stage: generate, reference, update.
    """
    return Seconds(
        generate=flops.generate / rates["generate"],
        reference=flops.reference / rates["reference"],
        update=flops.update / rates["update"],
    )


def seconds_on(
    device: Accelerator, shape: ModelShape, work: Work, *, weight_bytes: float = 2.0
) -> Seconds:
    """Time of an iteration on a device, estimated from its data sheet.

    Passes over whole sequences run at a share of the peak. A decoding step reads all weights and
    the cache once and launches every layer; the slower of the two counts.

    Args:
        device: with the shares that are reckoned with.
        shape: of the model.
        work: of an iteration.
        weight_bytes: of a parameter: 2 for bfloat16, about 0.55 for 4 bits with their scales.
    """
    flops = iteration_flops(shape, work)
    speed = device.flops * device.utilisation
    launch = shape.layers * device.seconds_per_layer
    generate = 0.0
    for prompt in work.prompt_tokens:
        mean_length = prompt + work.response_tokens / 2
        read = shape.parameters * weight_bytes + 2 * shape.cached * work.episodes * mean_length
        step = max(read / (device.bandwidth * device.bandwidth_share), launch)
        prefill = work.episodes * forward_flops(shape, prompt) / speed
        generate += work.response_tokens * step + prefill
    return Seconds(generate, flops.reference / speed, flops.update / speed)


# Memory.


@dataclass(frozen=True)
class Kept:
    """Bytes that autograd keeps of a forward pass over R rows of S tokens: c + R (a S + b S^2)."""

    constant: float
    """c: such as copies of the weights in a lower precision."""
    per_token: float
    """a."""
    per_pair: float
    """b: attention that keeps its whole matrix; 0 otherwise."""

    def of(self, rows: int, tokens: int) -> float:
        """Bytes for a batch."""
        return self.constant + rows * (self.per_token * tokens + self.per_pair * tokens**2)


@dataclass(frozen=True)
class Held:
    """Bytes that a run holds from beginning to end, gradients and optimizer apart."""

    weights: int
    """Of all agents."""
    references: int
    """Of all frozen models; 0 where the agents' own base serves."""
    trained: tuple[int, ...]
    """Of those that the optimizer moves, by agent."""
    own: int
    """Of those that belong to one agent alone, all agents: of a shared base, none."""
    state: int
    """Of those that a checkpoint writes, all agents: as `own`, but tied ones count twice."""


@dataclass(frozen=True)
class Load:
    """What decides a run's working memory."""

    rows: int
    """Responses of one agent in an iteration."""
    evaluated: int
    """Responses drawn at a time in an evaluation."""
    minibatch: int
    """Responses of one agent in an optimizer step."""
    micro: int
    """Responses in one forward and backward pass."""
    prompt_tokens: int
    """Longest prompt."""
    response_tokens: int
    """Longest response."""
    weight_bytes: int
    """Of a number in the weights' type."""
    compute_bytes: int
    """Of a number in the type matrices are multiplied in."""
    measured_rows: int
    """Responses measured against the reference at a time."""
    logits_bytes: int
    """Largest piece of logits."""
    keeps_ref_hidden: bool = True
    snapshot_bytes: int = 2**30
    """A copy of agents and moments is kept in main memory if it is at most this large."""
    checkpointing: bool = False
    elsewhere: bool = False
    """Whether the models lie on another device than main memory."""
    waste: float = CPU_WASTE
    """What the allocator holds beyond the working memory, as a share of it."""


@dataclass(frozen=True)
class Memory:
    """Bytes by what holds them, at the moment when most is held."""

    phase: str
    """generate, evaluate, reference, update or save."""
    device: Mapping[str, float]
    """Where the models are."""
    host: Mapping[str, float]
    """In main memory beside it; the same place when the models are on the CPU."""

    @property
    def on_device(self) -> float:
        """Bytes where the models are."""
        return sum(self.device.values())

    @property
    def total(self) -> float:
        """Bytes of both."""
        return self.on_device + sum(self.host.values())


def peak_memory(shape: ModelShape, held: Held, load: Load, kept: Kept) -> Memory:
    """Estimate the moment of a run at which it holds most.

    Args:
        shape: of the (largest) model.
        held: by weights of all kinds.
        load: batches and lengths.
        kept: by autograd of one forward pass without checkpointing.
    """
    return max(
        phases(shape, held, load, kept),
        key=lambda memory: memory.on_device if load.elsewhere else memory.total,
    )


def phases(shape: ModelShape, held: Held, load: Load, kept: Kept) -> list[Memory]:
    """The peaks of the parts of an iteration; see `peak_memory`."""
    moments = 2 * sum(held.trained)
    fixed = {
        "weights": held.weights,
        "references": held.references,
        "moments": moments,
        "rollout": _rollout_bytes(shape, load, len(held.trained)),
    }
    copy = held.state + moments
    snapshot = copy if 3 * held.own <= load.snapshot_bytes else 0
    working = {
        "generate": _drawing(shape, load, load.rows),
        "evaluate": _drawing(shape, load, load.evaluated),
        "reference": _measuring(shape, load),
        "update": _updating(shape, load, kept),
        "save": {},
    }
    fixed["allocator"] = load.waste * max(sum(parts.values()) for parts in working.values())
    gradients = float(sum(held.trained))
    found = []
    for name, parts in working.items():
        # Without a copy at hand a checkpoint lends what lies in main memory and copies the rest:
        # tied weights, which are written twice, or all that lies on another device.
        written = copy if load.elsewhere else held.state - held.own
        aside = max(snapshot, written) if name == "save" else snapshot
        held_then = {**fixed, "gradients": gradients, **parts}
        if name == "update" and load.micro >= load.minibatch:
            held_then = {**fixed, **_single_piece(shape, held, load, parts)}
        found.append(Memory(name, held_then, {"libraries": LIBRARIES, "snapshot": aside}))
    return found


def _rollout_bytes(shape: ModelShape, load: Load, agents: int) -> float:
    """What an iteration's responses leave: mostly the reference's hidden states, in three places.

    They lie in the buffer, in the batch read from it, and in the agent's own rows.
    """
    if not load.keeps_ref_hidden:
        return 0.0
    return 3.0 * agents * load.rows * load.response_tokens * shape.hidden * load.weight_bytes


def _drawing(shape: ModelShape, load: Load, rows: int) -> dict[str, float]:
    """Sampling with a cache: the prompts are read at once, then a token at a time."""
    tokens = load.prompt_tokens + load.response_tokens
    cache = rows * tokens * shape.cached * load.compute_bytes
    hidden = 2.0 * rows * load.response_tokens * shape.hidden * load.weight_bytes
    logits = float(DRAW_BYTES * rows * shape.vocabulary)
    scratch = max(logits, _forward_scratch(shape, load, rows * load.prompt_tokens))
    return {"cache": cache + hidden, "scratch": scratch}


def _measuring(shape: ModelShape, load: Load) -> dict[str, float]:
    """The reference's forward pass over some rows, then both models' logits piece by piece."""
    rows = min(max(load.rows, load.evaluated), load.measured_rows)
    tokens = load.prompt_tokens + load.response_tokens - 1
    logits = LIVE_LOGITS * _piece(shape, load, rows)
    return {"scratch": max(_forward_scratch(shape, load, rows * tokens), logits)}


def _updating(shape: ModelShape, load: Load, kept: Kept) -> dict[str, float]:
    """Forward and backward pass over a piece of a minibatch, with the logits of its responses."""
    rows = min(load.micro, load.minibatch)
    tokens = load.prompt_tokens + load.response_tokens - 1
    whole = kept.of(rows, tokens)
    if load.checkpointing:  # what enters each layer, and one layer in full
        entering = rows * tokens * shape.layers * shape.hidden * load.weight_bytes
        whole = kept.constant + entering + (whole - kept.constant) / shape.layers
    return {"activations": whole, "logits": LIVE_LOGITS * _piece(shape, load, rows)}


def _single_piece(
    shape: ModelShape, held: Held, load: Load, parts: Mapping[str, float]
) -> dict[str, float]:
    """An update without pieces: an agent's gradients come while its activations go.

    At its beginning only the output layer has a gradient; at its end the embedding's is added, in
    a tensor of its own.
    """
    own = max(held.trained)
    others = sum(held.trained) - own
    # Adapters leave the output layer alone.
    head = min(shape.vocabulary * shape.hidden * load.weight_bytes, own)
    first = {"gradients": float(others + head), **parts}
    last = {"gradients": float(others + own + head)}
    return max(first, last, key=lambda held: sum(held.values()))


def _piece(shape: ModelShape, load: Load, rows: int) -> float:
    """Bytes of the logits of some rows, if they are not cut into pieces."""
    return min(4.0 * rows * load.response_tokens * shape.vocabulary, load.logits_bytes)


def _forward_scratch(shape: ModelShape, load: Load, tokens: int) -> float:
    """A forward pass without gradient: one layer's temporary tensors."""
    return float(tokens * (4 * shape.hidden + 4 * shape.widest) * load.compute_bytes)
