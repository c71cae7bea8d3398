"""Build everything a run needs from its settings, and check all of it before any work is done."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
import yaml

from agents.actors import Actor, build_actors
from agents.allocator import keep_freed_memory
from agents.bridge.learner import Learner
from agents.bridge.policy import ResponsePolicy, TeamPolicy
from agents.bridge.stock import StockLearner
from agents.bridge.team import Team
from agents.bridge.vector_env import ResponseVectorEnv
from agents.config import TrainConfig, resolved
from agents.cost import Memory
from agents.distributed import ALONE, Processes
from agents.evaluation import evaluation_queries
from agents.learners import learner_class
from agents.learners.combinations import check_combination
from agents.maths.kl import ESTIMATORS_WITH_REF_HIDDEN
from agents.memory import check_before_loading, check_memory, foreseen
from agents.memory_advice import Foreseen
from agents.methods import METHODS
from agents.models import ActorCritic, LanguageModel, LoadedModel
from agents.models.load import load_model
from agents.models.positions import constant_positions
from agents.schedule import turn_order
from agents.sharing import shared_reward
from agents.streams import stream
from cory_env import make_task
from cory_env.chat import ChatSettings, load_few_shot
from cory_env.data_files import is_hub_data
from cory_env.episode import Episode
from cory_env.queries import QuerySource
from cory_env.records import Query
from cory_env.rewards.calling import CallSettings, call_with
from cory_env.rewards.specs import with_absolute_paths
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
    processes: Processes = ALONE
    """Those that share the work; each has a session of its own."""

    @property
    def n_episodes(self) -> int:
        """Episodes of an iteration."""
        assert self.config.batch_size is not None
        return self.config.batch_size // len(self.rules.agents)

    @cached_property
    def env(self) -> ResponseVectorEnv:
        """The episodes of an iteration, side by side. Made when first asked for: many take long."""
        return ResponseVectorEnv(game_runner(self.config, self.rules), self.n_episodes)

    @cached_property
    def foreseen(self) -> Foreseen:
        """What the estimate of the memory follows from."""
        return foreseen(self)

    @cached_property
    def memory(self) -> Memory:
        """What the run is expected to take at its peak."""
        return self.foreseen.memory

    def turn_order(self, iteration: int) -> tuple[str, ...]:
        """The agents by seat in an iteration."""
        exchange = METHODS[self.config.method].role_exchange
        interval = self.config.role_exchange_interval if exchange else None
        return turn_order(iteration, self.rules.agents, interval)

    def begin(self, iteration: int) -> None:
        """Fix what an iteration plays, and tell the learners that it begins."""
        assert self.config.iterations is not None
        groups = self.config.groups
        queries = self.queries.take(groups.queries(self.n_episodes))
        self.team.begin_iteration(iteration, self.config.iterations)
        self.env.begin(
            [query for query in queries for _ in range(groups.episodes)],
            self.turn_order(iteration),
            stream(self.config.seed, "permutation", iteration),
            block=groups.episodes,
        )


def resolve_config(config: TrainConfig, *, trains: bool = True) -> tuple[TrainConfig, Task]:
    """Build the task and fill the open settings with its defaults and the learner's.

    Args:
        config: as the user gave it.
        trains: False where agents only play: then the learner need not be there any more.
    """
    task = make_task(config.task, **_task_keywords(config))
    task.needed_reward()
    kind = learner_class(config.algorithm) if trains else None
    if kind is not None and issubclass(kind, StockLearner):
        config = kind.filled(config)
    traits = None if kind is None else kind.traits
    config = resolved(config, dict(task.training_defaults), traits)
    changes = {
        "model": _absolute(task.needed_model(config.model)),
        "data": _absolute_data(config.data, task),
        "reward": None if config.reward is None else with_absolute_paths(config.reward),
        "few_shot": None if config.few_shot is None else config.few_shot.resolve(),
        "reward_cache": None if config.reward_cache is None else config.reward_cache.resolve(),
        "max_response_tokens": config.max_response_tokens or task.max_response_tokens,
        "max_prompt_tokens": config.max_prompt_tokens or task.max_prompt_tokens,
    }
    return TrainConfig(**{**vars(config), **changes}), task


def _absolute(model: str) -> str:
    """Folders by their whole path: a run is opened from other working directories too."""
    names = [name.strip() for name in model.split(",")]
    return ",".join(str(Path(n).resolve()) if Path(n).is_dir() else n for n in names)


def _absolute_data(data: Path | None, task: Task) -> Path | None:
    """A path as a whole; the name of a hub's data set as it is."""
    if data is None or (task.takes_hub_data and is_hub_data(data)):
        return data
    return data.resolve()


def _task_keywords(config: TrainConfig) -> dict[str, object]:
    keywords: dict[str, object] = {}
    for part in (config.task_args or "").split(","):
        if not part.strip():
            continue
        name, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"task_args must be name=value joined by commas, got {part!r}")
        if "{" in value:  # a template, which YAML would take for something else
            keywords[name.strip()] = value.strip()
            continue
        try:
            keywords[name.strip()] = yaml.safe_load(value)
        except Exception as error:  # YAML's readers of single values raise a dozen kinds
            raise ValueError(f"task_args must be name=value, got {part!r}") from error
    for name in ("data", "reward"):
        if getattr(config, name) is not None:
            keywords[name] = getattr(config, name)
    return keywords


def build_session(config: TrainConfig, task: Task, processes: Processes = ALONE) -> Session:
    """Load the models and wire the parts.

    Args:
        config: from `resolve_config`.
        task: from `resolve_config`.
        processes: those that share the work.

    Raises:
        ValueError: one sentence naming the setting that does not fit.
    """
    kind = learner_class(config.algorithm)
    check_combination(kind, config)
    if issubclass(kind, StockLearner):
        kind.check(config, processes.size)
    assert config.batch_size is not None and config.eval_queries is not None
    # Before data and models, which may take minutes.
    check_before_loading(config, processes.device(config.device))
    # Before the models: data that cannot be read is refused at once.
    train_queries = list(task.queries("train"))
    held_out = evaluation_queries(task, "validation", config.eval_queries)
    loaded = _load_models(config, processes)
    first = next(iter(loaded.values()))
    set_threads(config, first)
    rules = game_rules(config, task, first, processes)
    _check_one_template(rules, loaded)
    check_context(rules, loaded)
    alone = alone_rules(rules)
    _check_queries(rules, [*train_queries, *held_out])
    _check_known_text(rules, first, train_queries[:64])
    actors = build_actors(config, loaded, rules.tokenizer.vocab_size)
    learners = {
        agent: _learner(config, rules, agent, actors[agent], kind, processes)
        for agent in rules.agents
    }
    policies = {agent: learner.policy for agent, learner in learners.items()}
    assert config.max_response_tokens is not None
    team_policy = TeamPolicy(
        policies, seed=config.seed, width=config.max_response_tokens, groups=config.groups
    )
    n_episodes = config.batch_size // len(rules.agents)
    n_queries = config.groups.queries(n_episodes)
    _check_permutable(config, min(n_queries, len(held_out)))
    _check_shares(config, n_episodes, processes)
    session = Session(
        config=config,
        task=task,
        rules=rules,
        team=Team(
            learners=learners,
            policy=team_policy,
            kl_scope=config.kl_scope or "own",
            groups=config.groups,
        ),
        learners=learners,
        loaded=loaded,
        queries=QuerySource(train_queries, config.seed),
        evaluation_runner=game_runner(config, rules),
        alone_runner=LockStepRunner(alone),
        evaluation_queries=held_out,
        evaluators={
            agent: response_policy(learner.actor, learner.reference, rules, processes=processes)
            for agent, learner in learners.items()
        },
        processes=processes,
    )
    check_memory(session)  # before the episodes are made, which may be too many
    session.team.env = session.env
    return session


def set_threads(config: TrainConfig, loaded: LoadedModel) -> None:
    """Take the threads that were asked for; for a small model one, unless asked otherwise.

    A large one also keeps the memory of its gradients from step to step.

    Threads that wait for each other on a busy core cost a small model seven times its own
    arithmetic; on idle cores a second one saves it a seventh.
    """
    small = sum(p.numel() for p in loaded.model.parameters()) < SMALL_MODEL
    if config.threads is not None or small:
        torch.set_num_threads(config.threads or 1)
    if not small:
        keep_freed_memory()


def response_policy(
    actor: ActorCritic,
    reference: LanguageModel,
    rules: GameRules,
    *,
    temperature: float = 1.0,
    keep_ref_hidden: bool = False,
    processes: Processes = ALONE,
) -> ResponsePolicy:
    """A policy that answers in a game."""
    return ResponsePolicy(
        actor=actor,
        reference=reference,
        action_space=rules.action_space,
        end_ids=rules.tokenizer.end_ids,
        temperature=temperature,
        keep_ref_hidden=keep_ref_hidden,
        processes=processes,
    )


def game_runner(config: TrainConfig, rules: GameRules) -> LockStepRunner:
    """The runner of the method's game."""
    method = METHODS[config.method]
    return LockStepRunner(rules, transfer=method.transfer, scores=method.scores)


def game_rules(
    config: TrainConfig, task: Task, loaded: LoadedModel, processes: Processes = ALONE
) -> GameRules:
    """The rules of the method's game, with the model's tokenizer."""
    method = METHODS[config.method]
    reward = call_with(task.needed_reward(), call_settings(config))
    return GameRules.make(
        task,
        tokenizer=loaded.text_tokenizer,
        n_agents=config.agents_in_game,
        knowledge_transfer=method.knowledge_transfer,
        reward_mixing=method.reward_mixing(config.agents_in_game, config.cooperation),
        max_response_tokens=config.max_response_tokens,
        max_prompt_tokens=config.max_prompt_tokens,
        reward=shared_reward(reward, processes),
        chat=chat_settings(config),
    )


def chat_settings(config: TrainConfig) -> ChatSettings:
    """How prompts become chats.

    Raises:
        ValueError: if the file of examples cannot be read.
    """
    return ChatSettings(
        mode=config.chat_template,
        system=config.system_prompt,
        few_shot=() if config.few_shot is None else load_few_shot(config.few_shot),
        generation_prompt=config.generation_prompt,
    )


def call_settings(config: TrainConfig) -> CallSettings:
    """How the reward is called."""
    return CallSettings(
        workers=config.reward_workers,
        batch_size=config.reward_batch_size,
        timeout=config.reward_timeout,
        retries=config.reward_retries,
        cache=config.reward_cache,
        progress=config.progress,
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
        reward=rules.reward,
        chat=rules.chat,
    )


def _load_models(config: TrainConfig, processes: Processes) -> dict[str, LoadedModel]:
    assert config.model is not None
    names = [name.strip() for name in config.model.split(",")]
    n = config.agents_in_game
    if len(names) not in (1, n):
        raise ValueError(f"model must name one model or {n}, one an agent, got {len(names)}")
    loaded: dict[str, LoadedModel] = {}
    bases: dict[str, LoadedModel] | None = {} if config.lora_rank else None
    for i in range(n):
        name = names[i] if len(names) > 1 else names[0]
        same = next((m for m in loaded.values() if m.source == name), None)
        if same is not None and bases is None:
            # Agents start as duplicates; reading the files again would give the same weights.
            loaded[f"agent_{i}"] = LoadedModel(
                copy.deepcopy(same.model), same.tokenizer, same.text_tokenizer, name
            )
            continue
        loaded[f"agent_{i}"] = load_model(
            name,
            seed=config.seed,
            dtype=config.dtype,
            device=processes.device(config.device),
            trust_remote_code=config.trust_remote_code,
            quantize=config.quantize,
            bases=bases,
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


def _check_one_template(rules: GameRules, loaded: dict[str, LoadedModel]) -> None:
    first = next(iter(loaded.values()))
    for agent, other in loaded.items():
        if rules.frame is not None and (
            getattr(other.tokenizer, "chat_template", None) != first.tokenizer.chat_template
        ):
            raise ValueError(
                f"models of one game must share a chat template: {first.source!r} and "
                f"{other.source!r} ({agent}) have different ones (never uses none)"
            )


def check_context(rules: GameRules, loaded: dict[str, LoadedModel]) -> None:
    """Refuse prompts and responses that together are longer than a model reads at a time.

    Raises:
        ValueError: naming the model.
    """
    needed = rules.max_prompt_tokens + rules.max_response_tokens
    for model in loaded.values():
        limit = getattr(model.model.config, "max_position_embeddings", None)
        if limit is not None and needed > limit:
            raise ValueError(
                f"max_prompt_tokens + max_response_tokens must fit the context of "
                f"{model.source!r}: expected at most {limit}, got {rules.max_prompt_tokens} + "
                f"{rules.max_response_tokens}"
            )
        same = constant_positions(model.model.config)
        if same is not None and needed > same:
            raise ValueError(
                f"max_prompt_tokens + max_response_tokens must be at most {same} for "
                f"{model.source!r}, whose rotary positions change in longer texts, so that what is "
                f"drawn would not be what is scored, got {rules.max_prompt_tokens} + "
                f"{rules.max_response_tokens}"
            )


def _check_queries(rules: GameRules, queries: Sequence[Query]) -> None:
    """Start an episode of every query: one that does not fit is named before work is lost."""
    task = rules.task
    scored = [task.scored_query(role, query) for query in queries for role in rules.roles]
    for _, reward in getattr(task.reward, "parts", [(1.0, task.reward)]):
        check = getattr(reward, "check_queries", None)  # not every reward has needs of that kind
        if check is not None:
            check(scored)
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


def _check_shares(config: TrainConfig, n_episodes: int, processes: Processes) -> None:
    if n_episodes < processes.size:
        raise ValueError(
            f"batch_size must give each of the {processes.size} processes an episode: expected at "
            f"least {processes.size * config.agents_in_game} responses, got {config.batch_size}"
        )


def _check_permutable(config: TrainConfig, n_queries: int) -> None:
    method = METHODS[config.method]
    if "permuted" in (method.transfer, method.scores) and n_queries < 2:
        needed = 2 * config.groups.episodes
        raise ValueError(
            f"method {config.method} permutes episodes: batch_size must give at least {needed} "
            f"episodes, {needed * config.agents_in_game} responses, and eval_queries must be at "
            f"least 2, got {config.batch_size} and {config.eval_queries}"
        )


def _learner(
    config: TrainConfig,
    rules: GameRules,
    agent: str,
    actor: Actor,
    kind: type[Learner],
    processes: Processes,
) -> Learner:
    policy = response_policy(
        actor.trained,
        actor.reference,
        rules,
        temperature=config.temperature,
        keep_ref_hidden=config.kl_estimator in ESTIMATORS_WITH_REF_HIDDEN,
        processes=processes,
    )
    return kind(agent=agent, policy=policy, reference=actor.reference, config=config)
