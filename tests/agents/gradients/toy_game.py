"""The real game, team and learners over a vocabulary so small that every episode can be played.

Three tokens, of which the last one ends a response, and responses of at most T of them. The
episodes are not simulated: they go through `LockStepRunner`, the vector environment, Tianshou's
Collector, the credit hook and `Team`. Only the numbers that decide each token are chosen, so that
the policies draw the responses that the script asks for.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from tianshou.data import Batch, Collector
from torch import Tensor

from agents.bridge.credit import CreditHook
from agents.bridge.learner import Learner, trimmed
from agents.bridge.policy import ResponsePolicy, TeamPolicy
from agents.bridge.team import Team
from agents.bridge.trainer import LazyBuffer, MeanReturnStats
from agents.bridge.vector_env import ResponseVectorEnv
from agents.config import TrainConfig
from agents.learners import PPO
from agents.models import ActorCritic, LanguageModel, LoadedModel
from agents.models.language_model import Scored
from agents.models.target import draw_weights
from agents.rollout import Prepared, Rollout
from agents.sampling import Measured, Sampled
from agents.session import game_rules, game_runner
from cory_env.mixing import MixingSpec, mixing
from cory_env.records import Query
from cory_env.rules import GameRules
from cory_env.runner import LockStepRunner
from cory_env.tasks.base import Task
from cory_env.tokens import TextTokenizer
from tests.agents.learners.toy import toy_model

LETTERS = "ab."
END = 2
QUERY = "ab"
COEFS = (0.5, 0.3, 0.2)
"""KL weight of agent_0, agent_1, agent_2: unlike, so that a mix-up shows."""
FIRST_SEED = 20
"""Agent k has the policy of seed FIRST_SEED + 3 k, the reference + 1 and the critic + 2."""
STRICT: dict[str, Any] = {
    "gamma": 1.0,
    "gae_lambda": 1.0,
    "whiten": "none",
    "vf_coef": 0.0,
    "max_grad_norm": None,
}
"""Where an estimate equals the gradient; the ratio is 1 because nothing has moved."""


def all_responses(longest: int) -> list[tuple[int, ...]]:
    """Every response of at most `longest` tokens: cut there, or ended by the end token."""
    found: list[tuple[int, ...]] = []
    for length in range(1, longest + 1):
        for tokens in itertools.product((0, 1), repeat=length - 1):
            found.append((*tokens, END))
    found += [tuple(t) for t in itertools.product((0, 1), repeat=longest)]
    return found


def text_of(response: Sequence[int]) -> str:
    """Letters of a response, without its end token."""
    return "".join(LETTERS[token] for token in response if token != END)


def toy_tokenizer() -> TextTokenizer:
    """One letter, one token; the full stop is the end token, and separates texts in prompts."""
    return TextTokenizer(
        vocab_size=3,
        end_ids=(END,),
        backend=None,
        encoder=lambda text, special: [LETTERS.index(letter) for letter in text],
        decoder=lambda ids: "".join(LETTERS[token] for token in ids),
        piece=lambda token: LETTERS[token],
    )


class ToyTask(Task):
    """The query alone, or the query and every earlier response between full stops."""

    name = "toy"
    default_model = "none"
    default_reward = "target"
    max_prompt_tokens = 12
    max_response_tokens = 2

    def queries(self, split: str) -> list[Query]:
        return [Query(QUERY)]

    def prompt(self, role: str, query: Query, earlier_responses: Sequence[str]) -> str:
        if not earlier_responses:
            return query.text
        return query.text + "." + ".".join(earlier_responses) + "."

    def tokenizer(self) -> TextTokenizer:
        return toy_tokenizer()


@dataclass(frozen=True)
class TableReward:
    """Arbitrary scores: that of a seat depends on its own and on all earlier responses.

    A reward sees the texts of all finished episodes, seat after seat, so it can look up what the
    earlier seats of the same episode said.
    """

    tables: tuple[NDArray[np.float64], ...]
    """Of seat j, [R] * (j + 1)."""
    number: dict[str, int]
    """Of a response by its text."""

    def __call__(self, queries: Sequence[Query], responses: Sequence[str]) -> list[float]:
        n = len(self.tables)
        said = [self.number[text] for text in responses]
        return [float(self.tables[i % n][tuple(said[i - i % n : i + 1])]) for i in range(len(said))]


def score_tables(
    n_agents: int, n_responses: int, *, own_only: bool = False, seed: int = 0
) -> tuple[NDArray[np.float64], ...]:
    """Arbitrary numbers; with `own_only` a score depends on the seat's own response alone."""
    rng = np.random.default_rng(seed)
    tables = [rng.normal(size=[n_responses] * (seat + 1)) for seat in range(n_agents)]
    if own_only:
        tables = [
            np.broadcast_to(rng.normal(size=n_responses), table.shape).copy() for table in tables
        ]
    return tuple(tables)


def zero_tables(n_agents: int, n_responses: int) -> tuple[NDArray[np.float64], ...]:
    """Scores of nothing, which leave the KL alone."""
    return tuple(0.0 * table for table in score_tables(n_agents, n_responses))


class ScriptedPolicy(ResponsePolicy):
    """Draws what the script says: the real sampler, fed the numbers that lead there."""

    script: Tensor | None = None
    """Responses of the coming rows, padded with -1, [B, T]; None: whatever is drawn."""

    def respond(
        self, prompts: NDArray[np.int64], uniforms: NDArray[np.float64]
    ) -> tuple[Sampled, Measured]:
        if self.script is None:
            return super().respond(prompts, uniforms)
        with torch.no_grad():
            shares = self.actor.distribution(
                torch.as_tensor(prompts), self.script, self.temperature
            ).exp()
        above = shares.cumsum(-1)
        ids = self.script.clamp(min=0).unsqueeze(-1)
        # The middle of the token's share of [0, 1).
        middle = above.gather(-1, ids) - shares.gather(-1, ids) / 2
        numbers = (middle / above[..., -1:]).squeeze(-1).numpy()
        return super().respond(prompts, numbers)


@dataclass(frozen=True)
class Game:
    """One game with its learners, wired as `agents.session` wires them."""

    rules: GameRules
    runner: LockStepRunner
    learners: dict[str, Any]
    team: Team
    order: tuple[str, ...]
    """Agents by seat."""
    responses: list[tuple[int, ...]]

    def play(self, episodes: Sequence[Sequence[int]]) -> dict[str, Prepared]:
        """Play episodes given by the response numbers of each seat; what each agent learns from.

        Returns:
            By agent, a row an episode, in their order. `team.rollouts` has the plain records.
        """
        padded = torch.full((len(self.responses), self.rules.max_response_tokens), -1)
        for row, response in enumerate(self.responses):
            padded[row, : len(response)] = torch.tensor(response)
        for seat, agent in enumerate(self.order):
            rows = torch.tensor([episode[seat] for episode in episodes])
            self.policy(agent).script = padded[rows]
        prepared = self._collect(len(episodes))
        for agent, batch in prepared.items():
            assert torch.equal(batch.response_ids, self.policy(agent).script), "not as scripted"
        return prepared

    def draw(self, n_episodes: int) -> tuple[dict[str, Prepared], list[tuple[int, ...]]]:
        """Play episodes that the policies draw from their own streams; also what was said."""
        for agent in self.order:
            self.policy(agent).script = None
        prepared = self._collect(n_episodes)
        number = {response: k for k, response in enumerate(self.responses)}
        said = [
            [number[tuple(t for t in row if t >= 0)] for row in prepared[a].response_ids.tolist()]
            for a in self.order
        ]
        return prepared, list(zip(*said, strict=True))

    def policy(self, agent: str) -> ScriptedPolicy:
        """The policy of an agent."""
        policy = self.learners[agent].policy
        assert isinstance(policy, ScriptedPolicy)
        return policy

    def watch(self, episodes: Sequence[Sequence[int]]) -> dict[str, Rollout]:
        """As `play`, without asking the learners what they make of it: the plain records."""
        with patch.object(type(self.learners[self.order[0]]), "prepare_team", lambda *_: {}):
            self.play(episodes)
        return self.team.rollouts

    def _collect(self, n_episodes: int) -> dict[str, Prepared]:
        env = ResponseVectorEnv(self.runner, n_episodes)
        self.team.env = env
        collector = Collector(
            self.team,
            env,
            LazyBuffer(n_episodes * len(self.order), n_episodes),
            on_episode_done_hook=CreditHook(env.agents),
            collect_stats_class=MeanReturnStats,
        )
        self.team.begin_iteration(1, 1)
        env.begin([Query(QUERY)] * n_episodes, self.order, np.random.default_rng(0))
        collector.reset()
        collector.collect(n_episode=n_episodes)
        batch: Batch
        batch, indices = collector.buffer.sample(0)
        prepared: dict[str, Prepared] = self.team._preprocess_batch(batch, None, indices)
        return prepared


def make_game(
    method: str = "solo",
    *,
    n_agents: int = 1,
    longest: int = 2,
    order: Sequence[int] | None = None,
    tables: tuple[NDArray[np.float64], ...] | None = None,
    reward_mixing: MixingSpec | None = None,
    near: float | None = None,
    kind: type[Learner] = PPO,
    **settings: Any,
) -> Game:
    """Build a game.

    Args:
        method: of `agents.methods`.
        n_agents: in the chain.
        longest: T.
        order: numbers of the agents by seat.
        tables: scores, see `score_tables`.
        reward_mixing: in place of the method's.
        near: policies at this share of the way from their references, instead of at the end.
        kind: class of the learners.
        settings: of `TrainConfig`, over STRICT.
    """
    responses = all_responses(longest)
    number = {text_of(response): k for k, response in enumerate(responses)}
    assert len(number) == len(responses), "texts must tell responses apart"
    tables = score_tables(n_agents, len(responses)) if tables is None else tables
    config = TrainConfig(
        method=method,
        n_agents=n_agents,
        max_response_tokens=longest,
        max_prompt_tokens=ToyTask.max_prompt_tokens,
        **{"learning_rate": 1e-3, "kl_coef": 0.5, "dtype": "float64", **STRICT, **settings},
    )
    task = ToyTask(reward=TableReward(tables, number))
    # Only its tokenizer is used; each agent has a model of its own.
    loaded = LoadedModel(_drawn_weights(0, near)[0], None, toy_tokenizer(), "toy")
    rules = game_rules(config, task, loaded)
    if reward_mixing is not None:
        rules = replace(rules, mixing=mixing(reward_mixing, n_agents))
    learners = {a: toy_learner(config, rules, k, near, kind) for k, a in enumerate(rules.agents)}
    policies = {agent: learner.policy for agent, learner in learners.items()}
    team_policy = TeamPolicy(policies, seed=0, width=longest)
    return Game(
        rules=rules,
        runner=game_runner(config, rules),
        learners=learners,
        team=Team(
            learners=learners,
            policy=team_policy,
            kl_scope=config.kl_scope or "own",
            groups=config.groups,
        ),
        order=tuple(rules.agents[k] for k in (order or range(n_agents))),
        responses=responses,
    )


def toy_weights(agent: int, near: float | None) -> tuple[Any, Any]:
    """Policy and reference of an agent, as plain models of the library, the caller's own."""
    policy, reference = copy.deepcopy(_drawn_weights(agent, near))
    return policy, reference


@functools.cache
def _drawn_weights(agent: int, near: float | None) -> tuple[Any, Any]:
    policy, reference = toy_model(FIRST_SEED + 3 * agent), toy_model(FIRST_SEED + 3 * agent + 1)
    with torch.no_grad():
        for model in (policy, reference):  # so that no token is certain
            model.get_output_embeddings().weight.mul_(0.4)
        if near is not None:
            for own, start in zip(policy.parameters(), reference.parameters(), strict=True):
                own.copy_(start + near * (own - start))
    return policy, reference


def nudge(model: torch.nn.Module, size: float) -> None:
    """Move every weight a little, as earlier optimizer steps would have; the same every time."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(size * torch.randn(weight.shape, generator=generator, dtype=weight.dtype))


def draw_critic(head: torch.nn.Linear, agent: int) -> None:
    """A value head that says something."""
    draw_weights(head, FIRST_SEED + 3 * agent + 2, std=0.5)
    torch.nn.init.constant_(head.bias, 0.1)


def toy_learner(
    config: TrainConfig, rules: GameRules, agent: int, near: float | None, kind: type[Learner]
) -> Any:
    """One agent's learner, with a critic that says something."""
    model, frozen = toy_weights(agent, near)
    actor = ActorCritic(model, 3).double().eval()
    draw_critic(actor.value_head, agent)
    reference = LanguageModel(frozen, 3).eval().requires_grad_(False)
    policy = ScriptedPolicy(
        actor=actor,
        reference=reference,
        action_space=rules.action_space,
        end_ids=rules.tokenizer.end_ids,
        temperature=config.temperature,
        keep_ref_hidden=True,
    )
    name = rules.agents[agent]
    learner = kind(agent=name, policy=policy, reference=reference, config=config)
    if config.kl_coef:
        learner.kl_controller.coef = COEFS[agent]
    return learner


# From episodes to gradients.


def every_episode(n_agents: int, n_responses: int) -> list[tuple[int, ...]]:
    """All combinations of responses, the last seat's number running fastest."""
    return list(itertools.product(range(n_responses), repeat=n_agents))


def flat(parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> Tensor:
    """One vector of gradients; a parameter that takes no part has a gradient of 0."""
    pairs = zip(parameters, gradients, strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for p, g in pairs])


def model_gradient(learner: Learner, value: Tensor, *, retain: bool = False) -> Tensor:
    """Gradient with respect to the language model's weights, without the value head's."""
    parameters = list(learner.actor.model.parameters())
    parts = torch.autograd.grad(value, parameters, allow_unused=True, retain_graph=retain)
    return flat(parameters, parts)


def rows_of(scored: Scored, rows: Tensor, width: int) -> Scored:
    """What a policy says about some responses only."""
    return Scored(
        logprobs=scored.logprobs[rows, :width],
        entropy=scored.entropy[rows, :width],
        kl=scored.kl[rows, :width],
        values=scored.values[rows, :width],
    )


def score(learner: Learner, batch: Rollout) -> Scored:
    """The learner's scoring pass over a batch."""
    return learner.score(batch)


def episode_losses(learner: Learner, batch: Prepared) -> list[Tensor]:
    """The learner's loss summed over the tokens of each episode, with gradient, a scalar a row.

    The learner averages over the tokens of a minibatch. A minibatch of one response averages over
    its length L, so the sum over its tokens is L times the loss: the learner's code runs unchanged,
    and its divisor is multiplied away.
    """
    scored = score(learner, batch)
    losses = []
    for row in range(len(batch)):
        rows = torch.tensor([row])
        part = trimmed(batch.select(rows))
        loss, _ = learner.loss(rows_of(scored, rows, part.response_ids.shape[1]), part)
        losses.append(int(part.mask.sum()) * loss)
    return losses


def expected_gradient(learner: Learner, batch: Prepared, weights: Tensor) -> Tensor:
    """Gradient of the learner's loss, each episode weighted with its probability [B]."""
    losses = torch.stack(episode_losses(learner, batch))
    return model_gradient(learner, (weights * losses).sum())
