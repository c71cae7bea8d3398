"""The settings of a training run: one dataclass, the only statement of each knob.

A field whose default is None takes the task's own value (`Task.training_defaults`), else the
general one in `GENERAL_DEFAULTS`. Command line, files and `config.json` are derived from here.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from agents.groups import Groups
from agents.guards import Bounds, check_stop_on
from agents.methods import METHODS
from agents.setting_types import check_type, converted
from agents.traits import Traits
from cory_env.chat import MODES

if TYPE_CHECKING:
    import torch

KLEstimator = Literal["exact", "k1", "k3", "reference"]
Whiten = Literal["batch", "minibatch", "none"]
KLScope = Literal["own", "team"]

GENERAL_DEFAULTS: dict[str, float | int | str] = {
    "iterations": 40,
    "batch_size": 128,
    "learning_rate": 2e-4,
    "kl_coef": 0.03,
    "kl_scope": "own",
    "update_epochs": 4,
    "eval_queries": 256,
    "eval_interval": 10,
}

PRESETS: dict[str, dict[str, float | int | str | None]] = {
    "paper_imdb": {  # CORY paper, table 1
        "iterations": 100,
        "batch_size": 512,
        "learning_rate": 1.41e-5,
        "kl_coef": 0.3,
        "kl_estimator": "reference",
        "update_epochs": 4,
        "gamma": 1.0,
        "gae_lambda": 0.95,
        "clip_coef": 0.2,
        "value_clip": 0.2,
        "vf_coef": 0.05,
        "max_grad_norm": None,
        "role_exchange_interval": 5,
    },
    "paper_gsm8k": {  # CORY paper, table 2
        "iterations": 100,
        "batch_size": 64,
        "learning_rate": 1e-4,
        "kl_coef": 0.01,
        "kl_estimator": "reference",
        "update_epochs": 4,
        "gamma": 1.0,
        "gae_lambda": 0.95,
        "clip_coef": 0.2,
        "value_clip": 0.2,
        "vf_coef": 0.05,
        "max_grad_norm": None,
        "role_exchange_interval": 5,
    },
}
"""The paper's values, for `--preset` or `TrainConfig(**PRESETS["paper_imdb"])`.

Its batches count queries, ours responses of both agents: 256 is 512 here.
"""

MAY_CHANGE_ON_RESUME = frozenset(
    {
        "iterations",
        "out",
        "resume",
        "resume_from",
        "progress",
        "tensorboard",
        "samples_per_iteration",
        "checkpoint_interval",
        "keep_checkpoints",
        "memory_check",
        "eval_interval",
        "export",
        "reward_workers",
        "reward_timeout",
        "reward_retries",
        "reward_cache",
        "stop_on",
        "guard_kl",
        "guard_length",
        "guard_entropy",
        "guard_repetition",
    }
)
"""Fields that do not touch what is learned."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Settings of `cory-train`. None means: the task's own value."""

    task: str = "target"
    """Task by name (reviews, sums, target, imdb, gsm8k, gsm_symbolic, or custom for your own data),
    or module:name of your own."""
    task_args: str | None = None
    """Keywords of the task as name=value, joined by commas, e.g. kappa=0.5 for target."""
    method: str = "cory"
    """Game to play: solo (one agent, plain training), cory, or one of cory_no_transfer,
    cory_no_exchange, cory_own_reward, independent, competitive, cory_exact, placebo_sum and
    placebo_transfer."""
    algorithm: str = "ppo"
    """Learner by name, or module:name of your own. Each agent for itself: ppo, a2c, reinforce,
    rloo, grpo, raft. Together: mappo, happo, magrpo, counterfactual. Of Tianshou, unmodified and
    token by token: tianshou:PPO, A2C, Reinforce, NPG, TRPO, DQN or DiscreteSAC after the colon."""
    model: str | None = None
    """builtin:NAME, a model folder, or a hub name. Several, one an agent, are joined by commas."""
    out: Path | None = None
    """Folder of the run. None: a new numbered folder under runs/."""
    resume: bool = False
    """Go on from the latest checkpoint in the folder of the run."""
    resume_from: int | None = None
    """With resume: go on from the checkpoint of this iteration; later ones are removed."""
    seed: int = 0
    """Names every random stream of the run. Any whole number from 0."""

    iterations: int | None = None
    """Iterations in all: collect one batch, then update every agent."""
    batch_size: int | None = None
    """Responses of all agents an iteration, a multiple of the number of agents."""
    minibatch_size: int | None = None
    """Responses of one agent in an optimizer step. None: all that it has."""
    micro_batch_size: int | None = None
    """Responses in one forward and backward pass; the gradients of a minibatch add up to the same.
    Lower: less memory. None: as many as their logits allow, usually all."""
    update_epochs: int | None = None
    """Passes over an agent's batch in each iteration. More: faster, and further off-policy."""
    group_size: int | None = None
    """Answers to each query in an iteration, which rloo, grpo, raft and magrpo compare. None: 4 for
    these, else 1."""
    group_structure: Literal["query", "nested"] = "query"
    """query: every answer of a group is read by one later agent. nested: by nested_size of them."""
    nested_size: int = 2
    """With group_structure nested: answers of the observer to each answer of the pioneer."""
    learning_rate: float | None = None
    """Step size of Adam."""
    learning_rate_schedule: Literal["constant", "linear"] = "constant"
    """Linear falls to 0 after the last iteration, which then cannot change on resume."""
    max_grad_norm: float | None = 1.0
    """Largest norm of a gradient; longer ones are shortened to it. None: no limit."""

    kl_coef: float | None = None
    """Weight of the divergence from the reference, per nat. Higher: stays closer to it."""
    kl_estimator: KLEstimator = "exact"
    """exact: the KL's true gradient. k1: log-ratio in the reward. k3: in the loss.
    reference: full KL in the reward only, as the paper does; lets the policy drift."""
    kl_scope: KLScope | None = None
    """own: each agent pays its own KL. team: also that of the agents who read it. None: team for
    mappo, else own."""
    kl_target: float | None = None
    """Nats per response towards which the weight of the KL adapts. None: fixed weight."""
    kl_horizon: int = 10_000
    """Responses over which an adaptive weight moves by at most 20 percent."""
    clip_coef: float = 0.2
    """Half-width of the policy-ratio clip."""
    value_clip: float | None = None
    """How far the critic may move from its old estimate, in units of the return. None: free."""
    vf_coef: float = 0.05
    """Weight of the value loss, mean((R - V)^2): half the paper's 0.1, whose loss has 1/2."""
    ent_coef: float = 0.0
    """Weight of an entropy bonus, per nat and token."""
    gamma: float = 1.0
    """Discount per token."""
    gae_lambda: float = 0.95
    """Trace decay of the advantages per token. Lower: less noise, more trust in the critic."""
    whiten: Whiten = "batch"
    """Over what advantages are whitened: an agent's batch, each minibatch, or not at all."""
    lambda_turn: float = 1.0
    """Trace decay of mappo from one agent's turn to the next. Lower: the pioneer is paid less by
    the observer's score itself and more by what the critic expected of it."""
    baseline_decay: float = 0.9
    """Weight of the old value in the moving baseline of reinforce and counterfactual."""
    grpo_std: bool = True
    """Divide grpo's advantages by the standard deviation of their group."""
    ratio_level: Literal["token", "sequence"] = "token"
    """Probability ratio that grpo clips: of each token, or of the whole response."""
    raft_keep: float = 0.25
    """Share of each group that raft keeps, at least one response."""
    magrpo_baseline: Literal["leave_one_out", "max", "mean"] = "leave_one_out"
    """Baseline of magrpo: mean or maximum of the group's other returns, or mean of all."""
    magrpo_pairing: Literal["aligned", "cross"] = "aligned"
    """aligned: a response is paid with those it was played with. cross: with all of its group; only
    where nobody reads another's response."""
    happo_order: Literal["observer_first", "pioneer_first"] = "observer_first"
    """Who is updated first by happo; the next is corrected for it."""
    temperature: float = 1.0
    """Of the sampling distribution, which is also the scored one."""

    n_agents: int | None = None
    """Agents in the chain; each reads all that came before. None: 2, or 1 for solo."""
    role_exchange_interval: int = 5
    """Iterations between role exchanges, in methods that have them."""
    cooperation: float = 1.0
    """Weight of the later agents' scores in cory_exact."""
    reward: str | None = None
    """Reward by name, module:name, either with arguments, such as classifier(path/to/folder), or a
    weighted sum such as "0.7*vader + 0.3*module:name"."""
    reward_workers: int = 1
    """Calls of the reward side by side, each in a thread of its own."""
    reward_batch_size: int | None = None
    """Responses in one call of the reward. None: all, shared evenly between the workers."""
    reward_timeout: float | None = None
    """Seconds after which a call of the reward has failed. None: never."""
    reward_retries: int = 0
    """How often a call of the reward that failed is repeated, after 0.5, 1, 2, ... seconds."""
    reward_cache: Path | None = None
    """File of scores: what it holds is not scored again; runs may share it."""
    data: Path | None = None
    """Your own data: a .txt, .jsonl, .csv or .parquet file, a folder of files that name their
    split, or for imdb, gsm8k and custom a hub name; docs/data.md has the columns."""
    chat_template: Literal["auto", "always", "never"] = "auto"
    """Use of the model's own chat template. auto: where the model has one and the task asks
    something; a task whose queries are beginnings to be continued uses it only with always."""
    system_prompt: str | None = None
    """Text of a system message. None: none of yours; the template may have its own."""
    few_shot: Path | None = None
    """Examples that stand before every question: .jsonl or .csv with query and answer."""
    generation_prompt: str = ""
    """Text that begins every answer and is no part of it, e.g. "Let's think step by step."."""
    max_response_tokens: int | None = None
    """Longest response, in tokens."""
    max_prompt_tokens: int | None = None
    """Longest prompt, in tokens; a longer one loses the left part of what it quotes."""

    eval_interval: int | None = None
    """Iterations between evaluations; the last iteration is always evaluated."""
    eval_queries: int | None = None
    """Validation queries of an evaluation."""
    checkpoint_interval: int = 10
    """Iterations between checkpoints; the last iteration always has one."""
    keep_checkpoints: int = 2
    """Checkpoints kept; older ones are removed, never the latest."""
    stop_on: str | None = None
    """Guards that end the run, joined by commas, or all: zero_reward_variance, all_truncated,
    short_responses, kl, entropy, repetition. None: they only warn."""
    guard_kl: float = Bounds.guard_kl
    """Warn when the KL exceeds this, nats a response."""
    guard_length: float = Bounds.guard_length
    """Warn when responses are shorter than this share of iteration 1's."""
    guard_entropy: float = Bounds.guard_entropy
    """Warn when the entropy per token is below this share of iteration 1's."""
    guard_repetition: float = Bounds.guard_repetition
    """Warn when different bigrams or responses are below this share of iteration 1's."""
    samples_per_iteration: int = 4
    """Episodes written to samples.jsonl in each iteration."""
    tensorboard: bool = True
    """Write TensorBoard files."""
    progress: bool = True
    """Show a progress bar with the time left."""
    threads: int | None = None
    """Threads of torch. None: 1 for models below 10 million parameters, else what torch chooses."""
    device: str = "cpu"
    """cpu, or cuda[:n]."""
    dtype: Literal["float32", "float64", "bfloat16"] = "float32"
    """Of the weights."""
    autocast: Literal["none", "bfloat16"] = "none"
    """Precision in which matrices are multiplied; weights and losses keep their own."""
    gradient_checkpointing: bool = False
    """Keep no activations of the layers but compute them again: less memory, a third more time."""
    compile: bool = False
    """Let torch compile the forward pass of the update; pays in long runs only."""
    memory_check: bool = True
    """Refuse a run for which too little memory is foreseen; the estimate may be 25 % off."""
    lora_rank: int | None = None
    """Train an adapter of this rank for each agent on one frozen base (extra lora). None or 0:
    train all weights."""
    lora_alpha: float | None = None
    """An adapter's output is multiplied by lora_alpha / lora_rank. None: twice the rank."""
    lora_targets: str = "auto"
    """Linear layers that get adapters, joined by commas, e.g. q_proj,v_proj; auto: all of attention
    and MLP."""
    quantize: Literal["none", "4bit"] = "none"
    """Keep the weights of the frozen base in 4 bits; needs lora_rank and a CUDA device."""
    export: Literal["merged", "adapter"] = "merged"
    """What final/ and best/ hold of an adapter: the whole model, or the adapter alone."""
    trust_remote_code: bool = False
    """Run the code that comes with a model. Leave off unless you trust its author."""

    def __post_init__(self) -> None:
        for name, kind in _TYPES.items():
            check_type(name, kind, getattr(self, name))
        for name in ("out", "data", "few_shot", "reward_cache"):
            if isinstance(getattr(self, name), str):  # as people write it in Python
                object.__setattr__(self, name, Path(getattr(self, name)))
        self._check_choices()
        self._check_precision()
        self._check_numbers()
        self._check_agents()
        self._check_adapters()

    def _check_choices(self) -> None:
        if self.model is not None and not all(name.strip() for name in self.model.split(",")):
            raise ValueError(f"model must name a model, or one an agent, got {self.model!r}")
        if self.method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}, got {self.method!r}")
        for name, choices in (
            ("kl_estimator", get_args(KLEstimator)),
            ("whiten", get_args(Whiten)),
            ("kl_scope", get_args(KLScope)),
            ("dtype", ("float32", "float64", "bfloat16")),
            ("autocast", ("none", "bfloat16")),
            ("learning_rate_schedule", ("constant", "linear")),
            ("chat_template", MODES),
            ("group_structure", ("query", "nested")),
            ("ratio_level", ("token", "sequence")),
            ("magrpo_baseline", ("leave_one_out", "max", "mean")),
            ("magrpo_pairing", ("aligned", "cross")),
            ("happo_order", ("observer_first", "pioneer_first")),
            ("quantize", ("none", "4bit")),
            ("export", ("merged", "adapter")),
        ):
            value = getattr(self, name)
            if value not in choices and not (value is None and name in _OPEN_CHOICES):
                raise ValueError(
                    f"{name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}"
                )

    def _check_precision(self) -> None:
        if self.autocast != "none" and self.dtype != "float32":
            raise ValueError(
                f"autocast {self.autocast} needs dtype float32, which it lowers in products, got "
                f"{self.dtype}"
            )

    def _check_numbers(self) -> None:
        for name, lowest in _AT_LEAST.items():
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= lowest):
                raise ValueError(f"{name} must be at least {lowest}, got {value}")
        for name in (
            "learning_rate",
            "temperature",
            "clip_coef",
            "max_grad_norm",
            "kl_target",
            "lora_alpha",
            "reward_timeout",
        ):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} must be positive, got {value}")
        if not math.isfinite(self.cooperation):
            raise ValueError(f"cooperation must be a finite number, got {self.cooperation}")
        for name in (
            "gamma",
            "gae_lambda",
            "lambda_turn",
            "baseline_decay",
            "raft_keep",
            "guard_length",
            "guard_entropy",
            "guard_repetition",
        ):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} must be in [0, 1], got {getattr(self, name)}")

        if self.kl_target is not None and self.kl_coef == 0:
            raise ValueError("kl_coef must be positive where kl_target adapts it: 0 never moves")
        check_stop_on(self.stop_on)
        if self.resume_from is not None and not self.resume:
            raise ValueError("resume_from needs resume: it names where a run goes on")

    def _check_agents(self) -> None:
        if self.method != "solo" and self.n_agents is not None and self.n_agents < 2:
            raise ValueError(
                f"n_agents must be at least 2 for method {self.method}, got {self.n_agents}"
            )
        if self.method == "solo" and self.n_agents not in (None, 1):
            raise ValueError(f"n_agents must be 1 for method solo, got {self.n_agents}")
        if self.batch_size is not None and self.batch_size % self.agents_in_game:
            raise ValueError(
                f"batch_size must be a multiple of the {self.agents_in_game} agents, "
                f"got {self.batch_size}"
            )

    def _check_adapters(self) -> None:
        if not self.lora_rank:
            for name, off in _NEED_LORA_RANK.items():
                if getattr(self, name) != off:
                    raise ValueError(
                        f"{name} needs lora_rank: it is about adapters, got {getattr(self, name)!r}"
                    )
        if self.quantize != "none" and self.export == "merged":
            raise ValueError(
                f"export must be adapter with quantize {self.quantize}: an adapter cannot be "
                f"merged into weights of 4 bits, got {self.export!r}"
            )

    @property
    def agents_in_game(self) -> int:
        """Number of agents of the method."""
        if METHODS[self.method].single_agent:
            return 1
        return 2 if self.n_agents is None else self.n_agents

    @property
    def groups(self) -> Groups:
        """How the episodes of an iteration belong together."""
        nested = self.nested_size if self.group_structure == "nested" else 1
        return Groups(size=self.group_size or 1, nested=nested)

    @property
    def guard_bounds(self) -> Bounds:
        """When the guards trip."""
        names = (field.name for field in dataclasses.fields(Bounds))
        return Bounds(**{name: getattr(self, name) for name in names})

    @property
    def autocast_dtype(self) -> torch.dtype | None:
        """What matrices are multiplied in; None: the weights' own."""
        import torch  # a second of work, which reading settings should not cost

        return None if self.autocast == "none" else torch.bfloat16

    def to_json(self) -> dict[str, Any]:
        """The settings as plain values."""
        values = dataclasses.asdict(self)
        return {k: str(v) if isinstance(v, Path) else v for k, v in values.items()}


_NEED_LORA_RANK = {
    "lora_alpha": None,
    "lora_targets": "auto",
    "quantize": "none",
    "export": "merged",
}
"""Settings of adapters -> what they are without any."""

_OPEN_CHOICES = frozenset({"kl_scope"})
"""Choices that may be left to the learner."""

_AT_LEAST = {
    "seed": 0,
    "group_size": 1,
    "nested_size": 2,
    "iterations": 1,
    "batch_size": 1,
    "minibatch_size": 1,
    "micro_batch_size": 1,
    "lora_rank": 0,
    "update_epochs": 1,
    "kl_coef": 0,
    "kl_horizon": 1,
    "value_clip": 0,
    "vf_coef": 0,
    "ent_coef": 0,
    "role_exchange_interval": 1,
    "reward_workers": 1,
    "reward_batch_size": 1,
    "reward_retries": 0,
    "max_response_tokens": 1,
    "max_prompt_tokens": 1,
    "eval_interval": 1,
    "eval_queries": 1,
    "checkpoint_interval": 1,
    "keep_checkpoints": 1,
    "resume_from": 1,
    "guard_kl": 0,
    "samples_per_iteration": 0,
    "threads": 1,
    "n_agents": 1,
}


def from_mapping(values: dict[str, Any]) -> dict[str, Any]:
    """Check the names and plain types of settings that come from a file.

    Raises:
        ValueError: naming the first unknown setting, or a value of the wrong kind.
    """
    known = {f.name: f for f in dataclasses.fields(TrainConfig)}
    result: dict[str, Any] = {}
    for raw, value in values.items():
        name = raw.replace("-", "_")
        if name not in known:
            raise ValueError(f"setting {raw!r} is not known; the settings are {', '.join(known)}")
        result[name] = converted(name, _TYPES[name], value)
    return result


_TYPES = {
    # A choice of words is text; "Literal['batch', ...]" would otherwise look like other types.
    f.name: "str | None"
    if str(f.type) == "KLScope | None"
    else "str"
    if "Literal" in str(f.type) or str(f.type) in ("KLEstimator", "Whiten")
    else str(f.type)
    for f in dataclasses.fields(TrainConfig)
}


def resolved(
    config: TrainConfig, task_defaults: dict[str, Any], learner: Traits | None = None
) -> TrainConfig:
    """Fill every open field (None) with the task's default, else the learner's, else the general.

    Args:
        config: as the user gave it.
        task_defaults: `Task.training_defaults`.
        learner: what the learner says of itself.

    Raises:
        ValueError: if a default names a field that does not exist, or the result is not valid.
    """
    learner = Traits() if learner is None else learner
    known = {f.name for f in dataclasses.fields(TrainConfig)}
    for whose, defaults in (("task", task_defaults), ("learner", learner.defaults)):
        if unknown := set(defaults) - known:
            raise ValueError(f"training_defaults of the {whose} name no setting: {sorted(unknown)}")
    defaults = {**GENERAL_DEFAULTS, "group_size": learner.group_size, **learner.defaults}
    defaults |= task_defaults
    changes: dict[str, Any] = {"n_agents": config.agents_in_game}
    for name, value in defaults.items():
        if getattr(config, name) is None:
            changes[name] = value
    if "batch_size" in changes:  # a default that is not whole groups of all agents is rounded up
        size = config.group_size or changes["group_size"]
        groups = dataclasses.replace(config, group_size=size).groups
        whole = config.agents_in_game * groups.episodes
        changes["batch_size"] = math.ceil(changes["batch_size"] / whole) * whole
    if "learning_rate" in changes:
        changes["learning_rate"] *= learner.rate
    filled = dataclasses.replace(config, **changes)
    if learner.single_pass and config.update_epochs is None:
        return dataclasses.replace(filled, **_in_one_pass(filled, config.minibatch_size))
    return filled


def _in_one_pass(config: TrainConfig, minibatch_size: int | None) -> dict[str, Any]:
    """As many optimizer steps as the defaults would take, but each response in one of them only.

    Args:
        config: filled, with the passes of a learner that goes over a batch several times.
        minibatch_size: as the user gave it, which stays.
    """
    assert config.batch_size is not None and config.update_epochs is not None
    own = config.batch_size // config.agents_in_game
    steps = config.update_epochs * math.ceil(own / min(config.minibatch_size or own, own))
    return {"update_epochs": 1, "minibatch_size": minibatch_size or math.ceil(own / steps)}
