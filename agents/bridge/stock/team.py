"""The agents of a stock run together: their episodes, the KL they pay, what is logged of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tianshou.algorithm.multiagent.marl import (
    MapTrainingStats,
    MultiAgentOffPolicyAlgorithm,
    MultiAgentOnPolicyAlgorithm,
)
from tianshou.data import ReplayBuffer

from agents.bridge.learner import UpdateStats
from agents.bridge.policy import TeamPolicy
from agents.bridge.replay import Extra
from agents.bridge.stock.envs import TokenVectorEnv
from agents.bridge.stock.learner import StockLearner
from agents.bridge.team import Team
from agents.guards import NonFiniteError
from agents.maths.masking import masked_sum
from agents.models.language_model import counted, spread
from agents.rollout import Rollout
from agents.sampling import CHUNK_ROWS, trim_left


class StockTeam(Team):
    """A team whose updates Tianshou's own multi-agent algorithm makes."""

    def __init__(
        self, *, learners: Mapping[str, StockLearner], policy: TeamPolicy, env: TokenVectorEnv
    ) -> None:
        """Build the algorithms.

        Args:
            learners: by agent id, in the order of the reward's columns; all of one class.
            policy: of whole responses, which is evaluated.
            env: where they play.
        """
        super().__init__(learners=dict(learners), policy=policy, kl_scope="own")
        self.stock = dict(learners)
        self.env = env
        first = next(iter(learners.values()))
        self.off_policy = first.off_policy
        space: Any = env.runner.rules.action_space
        built: list[Any] = [learner.built(space) for learner in learners.values()]
        join: Any = MultiAgentOffPolicyAlgorithm if self.off_policy else MultiAgentOnPolicyAlgorithm
        # In a list: its agents' networks are already part of the team's policy.
        self._joined = [join(algorithms=built, env=env)]

    @property
    def algorithm(self) -> Any:
        """Tianshou's own, over those of the agents."""
        return self._joined[0]

    def collected(self, buffer: ReplayBuffer) -> None:
        """Read the iteration's episodes, and let each agent pay its KL in its rewards.

        Args:
            buffer: holds them, corrected by the credit hook; where nothing is replayed, it holds
                no others.
        """
        self.extra = Extra()
        if self.off_policy:
            self.rollouts = {a: self._unmeasured(a) for a in self.stock}
            return
        rows: Any
        rows, indices = buffer.sample(0)
        self.rollouts = {}
        paid = np.array(rows.rew, dtype=np.float64)
        for column, (agent, learner) in enumerate(self.stock.items()):
            mine = np.flatnonzero(rows.obs.agent_id == agent)
            rollout = self._measured(learner, rows[mine], column)
            self.rollouts[agent] = rollout
            coef = learner.kl_controller.coef
            # The rows of a turn stand in order, and so do the tokens of a rollout.
            k1 = counted(rollout.logprobs - rollout.ref_logprobs, rollout.mask)
            paid[mine, column] -= coef * k1.double().cpu().numpy()
        buffer.set_array_at_key(paid, "rew", index=indices)

    def _measured(self, learner: StockLearner, rows: Any, column: int) -> Rollout:
        """An agent's turns out of token rows, with what policy and reference say about them."""
        prompts, responses, starts = turns(rows, self._width)
        device = learner.actor.device
        prompt_ids = torch.as_tensor(prompts, device=device)
        response_ids = torch.as_tensor(responses, device=device)
        parts = [
            _chunk(learner, prompt_ids[chunk], response_ids[chunk])
            for chunk in torch.arange(len(prompt_ids), device=device).split(CHUNK_ROWS)
        ]
        logprobs, entropy, kl, ref_logprobs = (
            torch.cat(column) for column in zip(*parts, strict=True)
        )
        ends = np.append(starts[1:], len(rows)) - 1
        assert self.env is not None
        episodes = np.asarray(rows.info.env_id)[starts].astype(np.int64)
        return Rollout(
            prompt_ids=prompt_ids,
            response_ids=response_ids,
            logprobs=logprobs,
            values=torch.zeros_like(logprobs),
            kl=kl,
            entropy=entropy,
            ref_logprobs=ref_logprobs,
            ref_hidden=logprobs.new_zeros(*logprobs.shape, 0),
            payoffs=torch.as_tensor(np.asarray(rows.rew)[ends, column], device=device),
            episode=torch.as_tensor(episodes, device=device),
            seat=self.env.runner.episodes[0].turn_order.index(learner.agent),
        )

    def _unmeasured(self, agent: str) -> Rollout:
        """What a replay's iteration is logged from: the responses, and nothing about them."""
        assert self.env is not None
        found = [t for r in self.env.records() for t in r.turns if t.agent == agent]
        responses = torch.full((len(found), self._width), -1, dtype=torch.int64)
        for row, turn in zip(responses, found, strict=True):
            row[: len(turn.response_ids)] = torch.tensor(turn.response_ids, dtype=torch.int64)
        zeros = torch.zeros(responses.shape)
        return Rollout(
            prompt_ids=torch.zeros((len(found), 1), dtype=torch.int64),
            response_ids=responses,
            logprobs=zeros,
            values=zeros,
            kl=zeros,
            entropy=zeros,
            ref_logprobs=zeros,
            ref_hidden=zeros.new_zeros(*zeros.shape, 0),
            payoffs=torch.tensor([turn.payoff for turn in found], dtype=torch.float64),
            episode=torch.arange(len(found)),
            seat=self.env.runner.episodes[0].turn_order.index(agent),
        )

    @property
    def _width(self) -> int:
        assert self.env is not None
        return self.env.runner.rules.max_response_tokens

    def updated(self, found: list[MapTrainingStats], rows: int | None, passes: int) -> None:
        """Take down what the updates of an iteration did.

        Args:
            found: what Tianshou says of them.
            rows: tokens in a minibatch, of those that go over their batch; None: all.
            passes: over the batch.

        Raises:
            NonFiniteError: if weights are not finite any more; stock algorithms do not look.
        """
        self.check_finite()
        stats: dict[str | int, UpdateStats] = {}
        for agent, learner in self.stock.items():
            own = [s._agent_id_to_stats[agent] for s in found if agent in s._agent_id_to_stats]
            tokens = int(self.rollouts[agent].mask.sum())
            steps = passes * (1 if rows is None else minibatches(tokens, rows))
            if self.off_policy:  # a sample may hold no row of an agent, which then stays as it is
                steps = len(own)
            stats[agent] = learner.update_stats_of(own, steps)
            rollout = self.rollouts[agent]
            kl = float(masked_sum(rollout.kl, rollout.mask).mean())
            learner.kl_controller.update(kl, len(rollout))
        self.update_stats = stats

    def check_finite(self, cause: Exception | None = None) -> None:
        """Look at the weights, which stock algorithms do not.

        Args:
            cause: what was met before.

        Raises:
            NonFiniteError: naming the first agent whose weights are not finite.
        """
        for agent, learner in self.stock.items():
            if all(bool(torch.isfinite(p).all()) for p in learner.actor.parameters()):
                continue
            raise NonFiniteError(
                f"the update of {agent} in iteration {learner.iteration} diverged: its weights are "
                f"not finite; try a lower learning_rate, or a larger batch_size or minibatch_size",
                {"response_ids": self.rollouts[agent].response_ids},
                {"agent": agent, "iteration": learner.iteration},
            ) from cause


def minibatches(rows: int, size: int) -> int:
    """How many Tianshou makes of a batch: what is left over goes into the last."""
    return max(rows // size, 1)


def turns(rows: Any, width: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """One agent's finished turns out of its token rows.

    Args:
        rows: in the order in which they were written, environment by environment; `done` where a
            turn ends, R of them.
        width: T, longest response.

    Returns:
        Prompts, left-padded with -1, [B, L]; responses, padded with -1 on the right, [B, T]; and
        the first row of each turn, [B].
    """
    ended = np.asarray(rows.done, dtype=bool)
    turn = np.concatenate([[0], np.cumsum(ended)[:-1]]).astype(np.int64)
    starts = np.concatenate([[0], np.flatnonzero(ended)[:-1] + 1]).astype(np.int64)
    responses = np.full((len(starts), width), -1, dtype=np.int64)
    responses[turn, np.arange(len(ended)) - starts[turn]] = rows.act
    return np.asarray(rows.obs.obs)[starts], responses, starts


@torch.no_grad()
def _chunk(
    learner: StockLearner, prompt_ids: torch.Tensor, response_ids: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Log-probability, entropy, KL and the reference's log-probability; each [B, T]."""
    prompt_ids, mask = trim_left(prompt_ids), response_ids >= 0
    reference = learner.reference
    ref_hidden = reference.response_hidden(prompt_ids, response_ids)
    scored = learner.actor.score(
        prompt_ids, response_ids, 1.0, reference=reference, ref_hidden=ref_hidden
    )
    said = reference.statistics(
        counted(ref_hidden, mask), counted(response_ids, mask), 1.0, with_entropy=False
    )
    return scored.logprobs, scored.entropy, scored.kl, spread(said.logprobs, mask)
