"""Build everything a run needs from its settings, and check all of it before any work is done."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import yaml

from agents.bridge.learner import Learner
from agents.bridge.policy import ResponsePolicy, TeamPolicy
from agents.bridge.team import Team
from agents.bridge.vector_env import ResponseVectorEnv
from agents.config import TrainConfig, resolved
from agents.evaluation import evaluation_queries
from agents.learners import LEARNERS
from agents.maths.kl import ESTIMATORS_WITH_REF_HIDDEN
from agents.methods import METHODS
from agents.models import ActorCritic, LanguageModel, LoadedModel
from agents.models.load import load_model
from agents.schedule import turn_order
from agents.streams import stream
from cory_env import make_task
from cory_env.episode import Episode
from cory_env.queries import QuerySource
from cory_env.records import Query
from cory_env.registry import resolve
from cory_env.rules import GameRules
from cory_env.runner import LockStepRunner
from cory_env.tasks.base import Task

SMALL_MODEL = 10_000_000
"""Parameters below which one thread of torch is the default."""


@dataclass(frozen=True)
class Session:
    """The parts of a run, wired together."""

    config: TrainConfig
    task: Task
    rules: GameRules
    env: ResponseVectorEnv
    team: Team
    learners: dict[str, Learner]
    loaded: dict[str, LoadedModel]
    queries: QuerySource
    evaluation_runner: LockStepRunner
    """The game that is trained in."""
    alone_runner: LockStepRunner
    """The game of one agent and the query-only prompt."""
    evaluation_queries: list[Query]
    evaluators: dict[str, ResponsePolicy]
    """The agents at temperature 1; they share the trained weights."""

    @property
    def n_episodes(self) -> int:
        """Episodes of an iteration."""
        return len(self.env)

    def turn_order(self, iteration: int) -> tuple[str, ...]:
        """The agents by seat in an iteration."""
        exchange = METHODS[self.config.method].role_exchange
        interval = self.config.role_exchange_interval if exchange else None
        return turn_order(iteration, self.rules.agents, interval)

    def begin(self, iteration: int) -> None:
        """Fix what an iteration plays, and tell the learners that it begins."""
        assert self.config.iterations is not None
        self.team.begin_iteration(iteration, self.config.iterations)
        self.env.begin(
            self.queries.take(self.n_episodes),
            self.turn_order(iteration),
            stream(self.config.seed, "permutation", iteration),
        )


def resolve_config(config: TrainConfig) -> tuple[TrainConfig, Task]:
    """Build the task and fill the open settings with its defaults."""
    task = make_task(config.task, **_task_keywords(config))
    config = resolved(config, dict(task.training_defaults))
    changes = {
        "model": _absolute(config.model or task.default_model),
        "data": None if config.data is None else config.data.resolve(),
        "max_response_tokens": config.max_response_tokens or task.max_response_tokens,
        "max_prompt_tokens": config.max_prompt_tokens or task.max_prompt_tokens,
    }
    return TrainConfig(**{**vars(config), **changes}), task


def _absolute(model: str) -> str:
    """Folders by their whole path: a run is opened from other working directories too."""
    names = [name.strip() for name in model.split(",")]
    return ",".join(str(Path(n).resolve()) if Path(n).is_dir() else n for n in names)


def _task_keywords(config: TrainConfig) -> dict[str, object]:
    keywords: dict[str, object] = {}
    for part in (config.task_args or "").split(","):
        if not part.strip():
            continue
        name, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"task_args must be name=value joined by commas, got {part!r}")
        try:
            keywords[name.strip()] = yaml.safe_load(value)
        except Exception as error:  # YAML's readers of single values raise a dozen kinds
            raise ValueError(f"task_args must be name=value, got {part!r}") from error
    for name in ("data", "reward"):
        if getattr(config, name) is not None:
            keywords[name] = getattr(config, name)
    return keywords


def build_session(config: TrainConfig, task: Task) -> Session:
    """Load the models and wire the parts.

    Args:
        config: from `resolve_config`.
        task: from `resolve_config`.

    Raises:
        ValueError: one sentence naming the setting that does not fit.
    """
    learner_class = resolve(config.algorithm, LEARNERS, "algorithm")
    if not (isinstance(learner_class, type) and issubclass(learner_class, Learner)):
        raise ValueError(f"algorithm {config.algorithm!r} must be a subclass of Learner")
    loaded = _load_models(config)
    first = next(iter(loaded.values()))
    set_threads(config, first)
    rules = game_rules(config, task, first)
    _check_context(rules, loaded)
    alone = alone_rules(rules)
    assert config.batch_size is not None and config.eval_queries is not None
    train_queries = list(task.queries("train"))
    held_out = evaluation_queries(task, "validation", config.eval_queries)
    _check_queries(rules, [*train_queries, *held_out])
    _check_known_text(rules, first, train_queries[:64])
    references = _references(config, loaded, rules)
    learners = {
        agent: _learner(config, rules, agent, loaded[agent], references[agent], learner_class)
        for agent in rules.agents
    }
    policies = {agent: learner.policy for agent, learner in learners.items()}
    assert config.max_response_tokens is not None
    team_policy = TeamPolicy(policies, seed=config.seed, width=config.max_response_tokens)
    n_episodes = config.batch_size // len(rules.agents)
    _check_permutable(config, min(n_episodes, len(held_out)))
    return Session(
        config=config,
        task=task,
        rules=rules,
        env=ResponseVectorEnv(game_runner(config, rules), n_episodes),
        team=Team(learners=learners, policy=team_policy, kl_scope=config.kl_scope),
        learners=learners,
        loaded=loaded,
        queries=QuerySource(train_queries, config.seed),
        evaluation_runner=game_runner(config, rules),
        alone_runner=LockStepRunner(alone),
        evaluation_queries=held_out,
        evaluators={
            agent: response_policy(learner.actor, learner.reference, rules)
            for agent, learner in learners.items()
        },
    )


def set_threads(config: TrainConfig, loaded: LoadedModel) -> None:
    """Take the threads that were asked for; for a small model one, unless asked otherwise.

    Threads that wait for each other on a busy core cost a small model seven times its own
    arithmetic; on idle cores a second one saves it a seventh.
    """
    small = sum(p.numel() for p in loaded.model.parameters()) < SMALL_MODEL
    if config.threads is not None or small:
        torch.set_num_threads(config.threads or 1)


def response_policy(
    actor: ActorCritic,
    reference: LanguageModel,
    rules: GameRules,
    *,
    temperature: float = 1.0,
    keep_ref_hidden: bool = False,
) -> ResponsePolicy:
    """A policy that answers in a game."""
    return ResponsePolicy(
        actor=actor,
        reference=reference,
        action_space=rules.action_space,
        end_ids=rules.tokenizer.end_ids,
        temperature=temperature,
        keep_ref_hidden=keep_ref_hidden,
    )


def game_runner(config: TrainConfig, rules: GameRules) -> LockStepRunner:
    """The runner of the method's game."""
    method = METHODS[config.method]
    return LockStepRunner(rules, transfer=method.transfer, scores=method.scores)


def game_rules(config: TrainConfig, task: Task, loaded: LoadedModel) -> GameRules:
    """The rules of the method's game, with the model's tokenizer."""
    method = METHODS[config.method]
    return GameRules.make(
        task,
        tokenizer=loaded.text_tokenizer,
        n_agents=config.agents_in_game,
        knowledge_transfer=method.knowledge_transfer,
        reward_mixing=method.reward_mixing(config.agents_in_game, config.cooperation),
        max_response_tokens=config.max_response_tokens,
        max_prompt_tokens=config.max_prompt_tokens,
    )


def alone_rules(rules: GameRules) -> GameRules:
    """The game of one agent and the query-only prompt, for the same task and tokenizer."""
    return GameRules.make(
        rules.task,
        tokenizer=rules.tokenizer,
        n_agents=1,
        reward_mixing="own",
        max_response_tokens=rules.max_response_tokens,
        max_prompt_tokens=rules.max_prompt_tokens,
    )


def _load_models(config: TrainConfig) -> dict[str, LoadedModel]:
    assert config.model is not None
    names = [name.strip() for name in config.model.split(",")]
    n = config.agents_in_game
    if len(names) not in (1, n):
        raise ValueError(f"model must name one model or {n}, one an agent, got {len(names)}")
    loaded: dict[str, LoadedModel] = {}
    for i in range(n):
        name = names[i] if len(names) > 1 else names[0]
        same = next((m for m in loaded.values() if m.source == name), None)
        if same is not None:
            # Agents start as duplicates; reading the files again would give the same weights.
            loaded[f"agent_{i}"] = LoadedModel(
                copy.deepcopy(same.model), same.tokenizer, same.text_tokenizer, name
            )
            continue
        loaded[f"agent_{i}"] = load_model(
            name,
            seed=config.seed,
            dtype=config.dtype,
            device=config.device,
            trust_remote_code=config.trust_remote_code,
        )
    _check_one_tokenizer(loaded)
    return loaded


def _check_one_tokenizer(loaded: dict[str, LoadedModel]) -> None:
    first = next(iter(loaded.values()))
    for agent, other in loaded.items():
        if (
            other.tokenizer.get_vocab() != first.tokenizer.get_vocab()
            or other.text_tokenizer.end_ids != first.text_tokenizer.end_ids
        ):
            raise ValueError(
                f"models of one game must share a tokenizer: {first.source!r} and "
                f"{other.source!r} ({agent}) have different ones"
            )


def _check_context(rules: GameRules, loaded: dict[str, LoadedModel]) -> None:
    needed = rules.max_prompt_tokens + rules.max_response_tokens
    for model in loaded.values():
        limit = getattr(model.model.config, "max_position_embeddings", None)
        if limit is not None and needed > limit:
            raise ValueError(
                f"max_prompt_tokens + max_response_tokens must fit the context of "
                f"{model.source!r}: expected at most {limit}, got {rules.max_prompt_tokens} + "
                f"{rules.max_response_tokens}"
            )


def _check_queries(rules: GameRules, queries: Sequence[Query]) -> None:
    """Start an episode of every query: one that does not fit is named before work is lost."""
    for query in queries:
        Episode(rules, query, rules.agents)


def _check_known_text(rules: GameRules, loaded: LoadedModel, queries: Sequence[Query]) -> None:
    """Refuse a model whose tokenizer cannot spell the task's queries: it could learn nothing."""
    unknown = getattr(loaded.tokenizer, "unk_token_id", None)
    if unknown is None or unknown in rules.tokenizer.end_ids:
        return  # byte-level tokenizers spell everything
    tokens = [token for query in queries for token in rules.tokenizer.encode(query.text)]
    if tokens.count(unknown) * 2 > len(tokens):
        raise ValueError(
            f"model {loaded.source!r} does not fit task {rules.task.name!r}: its tokenizer knows "
            f"less than half of the queries' tokens"
        )


def _check_permutable(config: TrainConfig, n_episodes: int) -> None:
    method = METHODS[config.method]
    if "permuted" in (method.transfer, method.scores) and n_episodes < 2:
        raise ValueError(
            f"method {config.method} permutes episodes: batch_size must give at least 2 episodes, "
            f"{2 * config.agents_in_game} responses, and eval_queries must be at least 2, got "
            f"{config.batch_size} and {config.eval_queries}"
        )


def _references(
    config: TrainConfig, loaded: dict[str, LoadedModel], rules: GameRules
) -> dict[str, LanguageModel]:
    """A frozen copy of each agent's initial model; agents that start alike share one."""
    by_source: dict[str, LanguageModel] = {}
    for model in loaded.values():
        if model.source not in by_source:
            frozen = copy.deepcopy(model.model).eval().requires_grad_(False)
            by_source[model.source] = LanguageModel(
                frozen, rules.tokenizer.vocab_size, autocast=config.autocast_dtype
            )
    return {agent: by_source[model.source] for agent, model in loaded.items()}


def _learner(
    config: TrainConfig,
    rules: GameRules,
    agent: str,
    loaded: LoadedModel,
    reference: LanguageModel,
    learner_class: type[Learner],
) -> Learner:
    actor = ActorCritic(
        loaded.model, rules.tokenizer.vocab_size, autocast=config.autocast_dtype
    )
    if config.gradient_checkpointing:
        loaded.model.gradient_checkpointing_enable({"use_reentrant": False})
    if config.compile:
        actor.compile_scoring()
    policy = response_policy(
        actor,
        reference,
        rules,
        temperature=config.temperature,
        keep_ref_hidden=config.kl_estimator in ESTIMATORS_WITH_REF_HIDDEN,
    )
    return learner_class(agent=agent, policy=policy, reference=reference, config=config)
