"""The response-level path and stock Tianshou PPO at token level are the same algorithm.

Conventions of the comparison: gamma 1, the same lambda, no KL in the reward, no entropy bonus, one
minibatch, advantages whitened over its tokens, value loss mean((R - V)^2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tianshou.algorithm.algorithm_base import Policy
from tianshou.data import Batch, Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv, PettingZooEnv
from tianshou.utils.torch_utils import policy_within_training_step

from agents.bridge.credit import CreditHook
from agents.bridge.learner import trimmed
from agents.bridge.stock import stock_ppo
from agents.bridge.trainer import IterationTrainer, MeanReturnStats
from agents.config import TrainConfig
from agents.session import Session, build_session, resolve_config
from cory_env import cory_v0
from cory_env.records import Query
from cory_env.tasks.target import TargetTask

VF_COEF, LAMBDA, N = 0.3, 0.9, 12
ORDERS = [("agent_0", "agent_1"), ("agent_1", "agent_0")]


class OneQuery(TargetTask):
    """The target task with a single query."""

    def __init__(self, query: Query) -> None:
        super().__init__()
        self._query = query

    def queries(self, split: str) -> list[Query]:
        return [self._query]


class Replay(Policy):
    """Writes given responses token by token, whoever acts."""

    def __init__(self, action_space: Any, tokens: Sequence[Sequence[int]]) -> None:
        super().__init__(action_space=action_space, action_bound_method=None)
        self.tokens = [list(t) for t in tokens]
        self.next = [0] * len(tokens)

    def forward(self, batch: Batch, state: Any = None, **kwargs: Any) -> Batch:
        running = [e for e, t in enumerate(self.tokens) if self.next[e] < len(t)]
        acts = [self.tokens[e][self.next[e]] for e in running]
        for e in running:
            self.next[e] += 1
        return Batch(act=np.array(acts), state=None)


def session_of(mixing_method: str) -> Session:
    config = TrainConfig(
        task="target",
        method=mixing_method,
        dtype="float64",
        batch_size=2 * N,
        kl_coef=0.0,
        gae_lambda=LAMBDA,
        vf_coef=VF_COEF,
        whiten="minibatch",
        max_grad_norm=None,
        eval_queries=4,
    )
    session = build_session(*resolve_config(config))
    generator = torch.Generator().manual_seed(3)
    for learner in session.learners.values():  # a critic of zeros would test half of GAE
        weight = learner.actor.value_head.weight
        with torch.no_grad():
            weight.copy_(torch.randn(weight.shape, generator=generator, dtype=weight.dtype))
    return session


def our_gradients(session: Session, order: Sequence[str]) -> dict[str, tuple[float, torch.Tensor]]:
    """Loss and gradient of each agent on freshly drawn episodes in a given turn order."""
    queries = session.queries.take(N)
    trainer = IterationTrainer(
        team=session.team,
        env=session.env,
        begin=lambda iteration: session.env.begin(queries, order),
        minibatch_size=None,
        update_epochs=1,
        first_iteration=1,
        iterations=1,
    )
    trainer._begin(1)
    collector = trainer.params.training_collector
    collector.reset()
    collector.collect(n_episode=N)
    batch, indices = collector.buffer.sample(0)
    prepared = session.team._preprocess_batch(batch, collector.buffer, indices)
    found = {}
    for agent, learner in session.learners.items():
        part = trimmed(prepared[agent])
        loss, _ = learner.loss(learner.score(part), learner.minibatch(part))
        found[agent] = (loss.item(), gradient(learner.actor, loss))
    return found


def gradient(module: torch.nn.Module, loss: torch.Tensor) -> torch.Tensor:
    parameters = list(module.parameters())
    parts = torch.autograd.grad(loss, parameters, allow_unused=True)
    return torch.cat(
        [
            (torch.zeros_like(p) if g is None else g).flatten()
            for p, g in zip(parameters, parts, strict=True)
        ]
    )


def stock_gradients(session: Session, order: Sequence[str], mixing: str) -> Any:
    """The same by stock PPO on the token-level environment, fed the very same tokens."""
    records = session.env.records()
    envs = [
        cory_v0.env(OneQuery(r.query), action_level="token", reward_mixing=mixing) for r in records
    ]
    wrapped = [PettingZooEnv(env) for env in envs]
    venv = DummyVectorEnv([lambda e=e: e for e in wrapped])
    algorithm = stock_ppo(
        [learner.actor for learner in session.learners.values()],
        wrapped[0],
        learning_rate=1e-3,
        gamma=1.0,
        gae_lambda=LAMBDA,
        vf_coef=VF_COEF,
        ent_coef=0.0,
        eps_clip=0.2,
    )
    tokens = [[i for turn in r.turns for i in turn.response_ids] for r in records]
    collector = Collector(
        Replay(wrapped[0].action_space, tokens),
        venv,
        VectorReplayBuffer(N * 6, N),
        on_episode_done_hook=CreditHook(list(session.learners)),
        collect_stats_class=MeanReturnStats,
    )
    options = {"options": {"turn_order": list(order)}}
    collector.reset(gym_reset_kwargs=options)
    collector.collect(n_episode=N, gym_reset_kwargs=options)
    found = {}
    for agent, learner in session.learners.items():
        ppo: Any = algorithm.get_algorithm(agent)

        def keep(loss: torch.Tensor, agent: str = agent, learner: Any = learner) -> None:
            found[agent] = (loss.item(), gradient(learner.actor, loss))

        ppo.optim.step = keep
    with policy_within_training_step(algorithm.policy):
        algorithm.update(buffer=collector.buffer, batch_size=None, repeat=1)
    return found


@pytest.mark.case(57)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("method", "mixing"), [("cory", "sum"), ("cory_own_reward", "own")])
def test_stock_ppo_has_the_same_loss_and_gradients(
    order: tuple[str, str], method: str, mixing: str
) -> None:
    session = session_of(method)
    ours = our_gradients(session, order)
    responses = [turn for record in session.env.records() for turn in record.turns]
    # The comparison is worth something only with early ends and cut responses among them.
    assert {turn.truncated for turn in responses} == {True, False}
    assert len({len(turn.response_ids) for turn in responses}) >= 2
    stock = stock_gradients(session, order, mixing)
    for agent in ("agent_0", "agent_1"):
        assert stock[agent][0] == pytest.approx(ours[agent][0], rel=1e-5)
        difference = (stock[agent][1] - ours[agent][1]).norm() / ours[agent][1].norm()
        assert float(difference) < 1e-5
        assert float(ours[agent][1].norm()) > 1e-3
