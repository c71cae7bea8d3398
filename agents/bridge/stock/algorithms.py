"""Tianshou's algorithms, unmodified, by name. A new one is a class and a line in `ALGORITHMS`.

What `TrainConfig` has no setting for stands here as a constant, with the reason where it is not
Tianshou's own default.
"""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
from tianshou.algorithm.algorithm_base import Algorithm
from tianshou.algorithm.modelfree import a2c, discrete_sac, dqn, npg, ppo, reinforce, trpo

from agents.bridge.stock.learner import PREFIX, StockLearner
from agents.bridge.stock.networks import TokenCritic, TokenQ
from agents.traits import SMALL_STEPS, Traits

Space = gym.spaces.Discrete[Any]

GAE = frozenset({"gamma", "gae_lambda"})
REPLAY = {"minibatch_size": 16}
"""Defaults with a replay: many steps on small samples."""


class PPO(StockLearner):
    """Clipped policy ratios; whitens over each minibatch."""

    traits = Traits(reads=GAE | {"clip_coef", "vf_coef", "ent_coef"}, nested=False)
    clips_gradient = True
    value_losses = ("vf_loss",)

    def build(self, action_space: Space) -> Algorithm[Any, Any]:
        """PPO."""
        return ppo.PPO(
            policy=self.token_policy(action_space),
            critic=TokenCritic(self.actor),
            optim=self.adam(),
            eps_clip=self.config.clip_coef,
            vf_coef=self.config.vf_coef,
            ent_coef=self.config.ent_coef,
            gamma=self.config.gamma,
            gae_lambda=self.config.gae_lambda,
            max_grad_norm=self.config.max_grad_norm,
        )


class A2C(StockLearner):
    """The policy gradient with a critic, in one pass of small steps."""

    traits = Traits(
        reads=GAE | {"vf_coef", "ent_coef"}, nested=False, single_pass=True, rate=SMALL_STEPS
    )
    clips_gradient = True
    value_losses = ("vf_loss",)

    def build(self, action_space: Space) -> Algorithm[Any, Any]:
        """A2C."""
        return a2c.A2C(
            policy=self.token_policy(action_space),
            critic=TokenCritic(self.actor),
            optim=self.adam(),
            vf_coef=self.config.vf_coef,
            ent_coef=self.config.ent_coef,
            gamma=self.config.gamma,
            gae_lambda=self.config.gae_lambda,
            max_grad_norm=self.config.max_grad_norm,
        )


class Reinforce(StockLearner):
    """The policy gradient of plain returns: no critic and no baseline."""

    traits = Traits(reads=frozenset({"gamma"}), nested=False, single_pass=True, rate=SMALL_STEPS)
    policy_loss = "loss"

    def build(self, action_space: Space) -> Algorithm[Any, Any]:
        """REINFORCE, returns as they are."""
        return reinforce.Reinforce(
            policy=self.token_policy(action_space), optim=self.adam(), gamma=self.config.gamma
        )


class NPG(StockLearner):
    """Natural policy gradient. The critic is the value head alone.

    Its critic's loss must not move what the policy shares with it: that would be a step outside the
    trust region.
    """

    traits = Traits(reads=GAE, nested=False, single_pass=True)
    twice_differentiated = True
    value_losses = ("vf_loss",)

    step: ClassVar[float] = 0.1
    """Length along the natural gradient; the default of 0.5 moves a small model by nats a step."""

    def build(self, action_space: Space) -> Algorithm[Any, Any]:
        """NPG."""
        return self._natural(npg.NPG, action_space, trust_region_size=self.step)

    def _natural(self, kind: Any, action_space: Space, **settings: Any) -> Algorithm[Any, Any]:
        # The reference as well: a KL of rounding would be all there is to learn from where payoffs
        # are equal, and the stock algorithm scales whatever there is to one.
        for model in (self.actor.model, self.reference.model):
            model.set_attn_implementation("eager")
        algorithm: Algorithm[Any, Any] = kind(
            policy=self.token_policy(action_space),
            critic=TokenCritic(self.actor, head_only=True),
            optim=self.adam(),
            gamma=self.config.gamma,
            gae_lambda=self.config.gae_lambda,
            **settings,
        )
        return algorithm


class TRPO(NPG):
    """NPG with a line search inside a bound on the KL of a step."""

    max_kl: ClassVar[float] = 0.03
    """Of a step, nats a token; the default of 0.01 is slow where iterations are few."""

    def build(self, action_space: Space) -> Algorithm[Any, Any]:
        """TRPO."""
        return self._natural(trpo.TRPO, action_space, max_kl=self.max_kl)


class DQN(StockLearner):
    """Q-learning: the model's logits are read as values of the next token."""

    traits = Traits(reads=frozenset({"gamma"}), nested=False, defaults=REPLAY, rate=SMALL_STEPS)
    off_policy = True
    greedy = True
    policy_loss = None
    value_losses = ("loss",)

    exploration: ClassVar[float] = 0.1
    """Share of random tokens while episodes are collected."""
    target_every: ClassVar[int] = 20
    """Steps between two copies to the target network; 0, the default, is none."""

    def build(self, action_space: Space) -> Algorithm[Any, Any]:
        """Double DQN with a target network."""
        # The flag that would choose between the two never reaches an agent's policy.
        policy = dqn.DiscreteQLearningPolicy(
            model=self.token_actor,
            action_space=action_space,
            eps_training=self.exploration,
            eps_inference=self.exploration,
        )
        return dqn.DQN(
            policy=policy,
            optim=self.adam(),
            gamma=self.config.gamma,
            n_step_return_horizon=self.turn,
            target_update_freq=self.target_every,
        )


class DiscreteSAC(StockLearner):
    """Soft actor-critic: two Q networks, copies of the model, beside the policy."""

    traits = Traits(reads=frozenset({"gamma"}), nested=False, defaults=REPLAY, rate=SMALL_STEPS)
    off_policy = True
    value_losses = ("critic1_loss", "critic2_loss")

    alpha: ClassVar[float] = 0.01
    """Weight of the entropy, a nat against a point of score; the default of 0.2 would pay more for
    random tokens than there is to earn."""
    tau: ClassVar[float] = 0.05
    """Share of the Q networks that their targets take over at a step; there are few of them."""

    def build(self, action_space: Space) -> Algorithm[Any, Any]:
        """Discrete SAC."""
        policy = discrete_sac.DiscreteSACPolicy(
            actor=self.token_actor, deterministic_eval=False, action_space=action_space
        )
        return discrete_sac.DiscreteSAC(
            policy=policy,
            policy_optim=self.adam(),
            critic=TokenQ(self.actor),
            critic_optim=self.adam(),
            gamma=self.config.gamma,
            n_step_return_horizon=self.turn,
            alpha=self.alpha,
            tau=self.tau,
        )


ALGORITHMS: dict[str, type[StockLearner]] = {
    "PPO": PPO,
    "A2C": A2C,
    "Reinforce": Reinforce,
    "NPG": NPG,
    "TRPO": TRPO,
    "DQN": DQN,
    "DiscreteSAC": DiscreteSAC,
}
"""Name after `--algorithm tianshou:` -> class."""


def stock_class(name: str) -> type[StockLearner]:
    """The class behind `tianshou:NAME`.

    Raises:
        ValueError: if there is none; the sentence lists those there are.
    """
    found = ALGORITHMS.get(name.removeprefix(PREFIX))
    if found is None:
        known = ", ".join(PREFIX + known for known in ALGORITHMS)
        raise ValueError(f"algorithm must be one of {known} where it is Tianshou's, got {name!r}")
    return found
