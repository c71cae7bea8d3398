"""Multi-agent PPO: one stream of rewards over all turns, one value of what is to come.

    rewards       = each seat's score at the last token of its own response, and every token's KL
    value after a turn's last token = value before the next turn's first token
    advantages    = GAE over the whole stream, decay gae_lambda within a turn and lambda_turn
                    between turns
    loss          = as PPO's, each agent on its own tokens

The later agent has read all that was said, so its critic is a central one. What the pioneer gains
is the estimate E[observer's score | what the pioneer said] beside the score itself.

Source: Yu et al. 2022, "The Surprising Effectiveness of PPO in Cooperative Multi-Agent Games",
algorithm 1; the chain over turns as in Wang et al. 2025, "MARFT".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from agents.bridge.learner import Learner
from agents.learners.ppo import PPO
from agents.maths.returns import chained_gae
from agents.rollout import Prepared, Rollout
from agents.traits import Traits


class MAPPO(PPO):
    """PPO on the team's return, with the critic's word at the boundary between the turns."""

    traits: ClassVar[Traits] = Traits(
        reads=(PPO.traits.reads or frozenset()) | {"lambda_turn"},
        defaults={"kl_scope": "team"},
        nested=False,
        plain_transfer=True,
        common_return=True,
        one_stream=True,
    )

    @classmethod
    def prepare_team(
        cls, learners: Mapping[str, Learner], rollouts: Mapping[str, Rollout]
    ) -> dict[str, Prepared]:
        """Advantages along the whole episode."""
        order = sorted(rollouts, key=lambda agent: rollouts[agent].seat)
        team: list[MAPPO] = []
        for agent in order:
            learner = learners[agent]
            assert isinstance(learner, MAPPO)
            team.append(learner)
        played = [rollouts[agent] for agent in order]
        config = team[0].config
        found = chained_gae(
            [
                own.token_rewards(rollout, rollout.shares[:, rollout.seat])
                for own, rollout in zip(team, played, strict=True)
            ],
            [rollout.values for rollout in played],
            [rollout.mask for rollout in played],
            gamma=config.gamma,
            gae_lambda=config.gae_lambda,
            lambda_turn=config.lambda_turn,
        )
        ready = {
            agent: own.whitened(rollout, *targets)
            for agent, own, rollout, targets in zip(order, team, played, found, strict=True)
        }
        return {agent: ready[agent] for agent in learners}

    def prepare(self, rollout: Rollout) -> Prepared:
        """A turn by itself, as in a game of one."""
        return self.prepare_team({self.agent: self}, {self.agent: rollout})[self.agent]
