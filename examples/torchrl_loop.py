"""TorchRL's own PPO plays the token-level game: both agents learn `target`.

TorchRL's wrapper, collector, advantages and loss; nothing of `agents`. It needs the extra
`torchrl`. Run from the root of the repository: python -m examples.torchrl_loop
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import torch
from pettingzoo.utils import BaseWrapper
from tensordict import TensorDictBase
from tensordict.nn import InteractionType, TensorDictModule, TensorDictSequential
from torch import Tensor, nn
from torch.distributions import Categorical
from torchrl.collectors import Collector
from torchrl.envs import PettingZooWrapper, SerialEnv
from torchrl.modules import ProbabilisticActor
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from cory_env import cory_v0

AGENTS = ("agent_0", "agent_1")
GAMES, STEPS = 16, 24  # side by side, and of each in a batch: about 70 episodes


class ScoresOnly(BaseWrapper):
    """TorchRL makes a tensor of every info; those of the game that are text cannot be one."""

    @property
    def infos(self) -> dict[str, dict[str, float]]:
        """The score of each agent's response."""
        return {agent: {"score": info["score"]} for agent, info in self.env.infos.items()}


class Net(nn.Module):
    """A small language model, for the logits of the next token or for a value."""

    def __init__(self, vocabulary: int, outputs: int, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary + 1, width)
        self.read = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, outputs)

    def forward(self, observation: Tensor) -> Tensor:
        """Outputs behind the last token, [..., outputs], of observations [..., L]."""
        tokens = observation.flatten(0, -2) + 1  # the padding, -1 and on the left, becomes token 0
        last = self.read(self.embed(tokens))[0][:, -1]
        return self.head(last).unflatten(0, observation.shape[:-1])


def make_games(split: str, **game: Any) -> SerialEnv:
    """Games side by side, each agent a group of its own."""
    game = {"action_level": "token", "role_schedule": "alternate", "split": split, **game}

    def make_one() -> PettingZooWrapper:
        return PettingZooWrapper(ScoresOnly(cory_v0.env("target", **game)), use_mask=True)

    return SerialEnv(GAMES, make_one)


class Learner:
    """TorchRL's PPO of one agent."""

    def __init__(self, agent: str, vocabulary: int) -> None:
        self.agent = agent
        self.actor = ProbabilisticActor(
            TensorDictModule(
                Net(vocabulary, vocabulary), [(agent, "observation")], [(agent, "logits")]
            ),
            in_keys=[(agent, "logits")],
            out_keys=[(agent, "action")],
            distribution_class=Categorical,
            default_interaction_type=InteractionType.RANDOM,  # else a rollout takes the likeliest
            return_log_prob=True,
            log_prob_key=(agent, "log_prob"),
        )
        critic = TensorDictModule(Net(vocabulary, 1), [(agent, "observation")], [(agent, "value")])
        # lmbda=1: while the other agent writes, the critic is asked about observations that it
        # never learns from. deactivate_vmap: a recurrent net cannot be mapped.
        self.advantage = GAE(gamma=1.0, lmbda=1.0, value_network=critic, deactivate_vmap=True)
        self.loss = ClipPPOLoss(
            self.actor, critic, entropy_coeff=0.02, loss_critic_type="l2", normalize_advantage=True
        )
        own = ("reward", "done", "terminated", "value", "advantage", "value_target")
        keys = {name: (agent, name) for name in own}
        self.advantage.set_keys(**keys)
        self.loss.set_keys(**keys, action=(agent, "action"), sample_log_prob=(agent, "log_prob"))
        self.optimizer = torch.optim.Adam(self.loss.parameters(), lr=1e-2)

    def update(self, batch: TensorDictBase, epochs: int = 4) -> None:
        """Learn from a batch [games, steps]."""
        with torch.no_grad():
            self.advantage(batch)
        # The wrapper asks both agents at every step and plays the answer of the one whose turn it
        # is; the other's is no action. Its rows are dropped only here, after the advantages: the
        # pioneer is paid in a row of the observer's.
        acted = batch[batch[self.agent, "mask"].squeeze(-1)]
        for _ in range(epochs):
            losses = self.loss(acted)
            self.optimizer.zero_grad()
            sum(value for name, value in losses.items() if name.startswith("loss_")).backward()
            self.optimizer.step()


def mean_scores(batch: TensorDictBase) -> dict[str, float]:
    """Mean score of each agent over the episodes that ended in a batch."""
    ended = batch["next", "done"].squeeze(-1)
    return {a: float(batch["next", a, "info", "score"][ended].mean()) for a in AGENTS}


def main(iterations: int = 40, seed: int = 0, **game: Any) -> list[dict[str, float]]:
    """Train two agents, each paid the sum of the scores; returns their scores before and after."""
    warnings.filterwarnings("ignore", message="PettingZoo in TorchRL is tested")
    torch.manual_seed(seed)
    games, held_out = make_games("train", **game), make_games("validation", **game)
    games.set_seed(seed)
    held_out.set_seed(seed)
    vocabulary = int(games.full_action_spec[AGENTS[0], "action"].space.n)
    learners = [Learner(agent, vocabulary) for agent in AGENTS]
    policy = TensorDictSequential(*(learner.actor for learner in learners))

    def judged() -> dict[str, float]:
        with torch.no_grad():
            return mean_scores(held_out.rollout(3 * STEPS, policy, break_when_any_done=False))

    before = judged()
    collector = Collector(
        games,
        policy,
        frames_per_batch=GAMES * STEPS,
        total_frames=GAMES * STEPS * iterations,
        # The nets are read from the start at every token: they carry no state from step to step.
        auto_register_policy_transforms=False,
    )
    for batch in collector:
        for learner in learners:
            learner.update(batch)
    collector.shutdown()
    after = judged()
    for agent in AGENTS:
        print(f"{agent}: score {before[agent]:.2f} before, {after[agent]:.2f} after")
    return [before, after]


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
