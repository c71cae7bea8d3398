"""What a learner says of itself before any work is done: settings, groups, and where it fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

LEARNER_SETTINGS = (
    "clip_coef",
    "value_clip",
    "vf_coef",
    "ent_coef",
    "gamma",
    "gae_lambda",
    "lambda_turn",
    "whiten",
    "baseline_decay",
    "grpo_std",
    "ratio_level",
    "raft_keep",
    "magrpo_baseline",
    "magrpo_pairing",
    "happo_order",
)
"""Settings that some learners read and others do not."""

SMALL_STEPS = 1 / 3
"""Learning rate of a single pass in small steps, as a share of that of several passes over whole
batches; measured on `target`, where the whole rate drowns in noise."""


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Facts of a learner class. The defaults fit a learner that updates each agent for itself."""

    reads: frozenset[str] | None = None
    """Those of `LEARNER_SETTINGS` that it reads; others must keep their defaults. None: any."""
    defaults: Mapping[str, float | int | str] = field(default_factory=dict)
    """Its own defaults of open settings: before the general ones, behind the task's."""
    single_pass: bool = False
    """Whether its loss is right only for the policy that drew the batch. By default it then goes
    over the batch once, in as many optimizer steps as a learner of several passes takes, each on
    fewer responses."""
    rate: float = 1.0
    """What a default learning rate is multiplied with: steps on few responses are noisy."""
    group_size: int = 1
    """Default of the setting: answers to one query that are compared."""
    least_group: int = 1
    """Smallest group for which it is defined."""
    nested: bool = True
    """Whether it learns from nested groups."""
    plain_transfer: bool = False
    """Whether later agents must read, and be paid beside, the responses of their own episode."""
    common_return: bool = False
    """Whether all agents must be paid one return."""
    one_stream: bool = False
    """Whether all rewards of an episode are one stream, which has later agents' KL in it."""
    counterfactual: bool = False
    """Whether it asks what later agents would have scored without an agent's response."""
