"""Tests of agents/learners/combinations.py: what is refused, with which sentence, and when."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from agents.config import TrainConfig
from agents.learners import LEARNERS, learner_class
from agents.learners.combinations import payoff_matrix, refusal, team_weights
from agents.methods import METHODS
from agents.session import build_session, resolve_config
from agents.traits import LEARNER_SETTINGS
from tests.agents.runs import config, session_of
from tools import combinations

# Written down by hand: methods in which a learner is not defined.
TOGETHER = {"cory_own_reward", "independent", "competitive", "placebo_sum", "placebo_transfer"}
REFUSED: dict[str, set[str]] = {
    "mappo": TOGETHER,
    "happo": TOGETHER,
    "magrpo": TOGETHER,
    "counterfactual": {
        "cory_no_transfer",
        "cory_own_reward",
        "independent",
        "placebo_sum",
        "placebo_transfer",
    },
}


@pytest.mark.parametrize("learner", LEARNERS)
def test_where_each_is_defined(learner: str) -> None:
    refused = {m for m in METHODS if combinations.sentence(learner, m) is not None}
    assert refused == REFUSED.get(learner, set())


def test_the_page_has_the_tables_of_the_code() -> None:
    assert combinations.main(["--check"]) == 0


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"algorithm": "rloo", "group_size": 1}, "in a group of 1 there is nothing to compare"),
        ({"algorithm": "mappo", "method": "independent"}, "needs one return for all agents"),
        ({"algorithm": "happo", "method": "competitive"}, "needs one return for all agents"),
        ({"algorithm": "happo", "method": "placebo_transfer"}, "an agent reads answers of another"),
        ({"algorithm": "mappo", "method": "placebo_sum"}, "an agent is paid scores of another"),
        ({"algorithm": "mappo", "kl_scope": "own"}, "kl_scope must be team, got own"),
        ({"algorithm": "mappo", "kl_estimator": "k3"}, "no KL in the rewards"),
        ({"algorithm": "magrpo", "magrpo_pairing": "cross"}, "must be aligned"),
        ({"algorithm": "magrpo", "group_structure": "nested"}, "episodes share a response"),
        ({"algorithm": "grpo", "group_structure": "nested", "method": "solo"}, "needs 2 agents"),
        ({"group_structure": "nested", "method": "independent"}, "must be query"),
        ({"group_structure": "nested", "method": "placebo_transfer"}, "must be query"),
        ({"algorithm": "counterfactual", "method": "cory_no_transfer"}, "it never reads it"),
        ({"algorithm": "counterfactual", "method": "cory_own_reward"}, "pays nobody"),
        ({"algorithm": "rloo", "clip_coef": 0.1}, "does not read clip_coef, which must stay 0.2"),
        ({"raft_keep": 0.5}, "algorithm ppo: it does not read raft_keep"),
        ({"algorithm": "a2c", "grpo_std": False}, "does not read grpo_std"),
    ],
    ids=str,
)
def test_it_is_refused_before_any_work(
    settings: dict[str, Any], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_work(*_: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("agents.session._load_models", no_work)
    with pytest.raises(ValueError, match=sentence) as caught:
        build_session(*resolve_config(config(**{"batch_size": 16, **settings})))
    assert "\n" not in str(caught.value)


def test_what_is_about_others_does_not_matter_alone() -> None:
    for name, learner in LEARNERS.items():
        resolved, _ = resolve_config(config(method="solo", algorithm=name, kl_scope="own"))
        assert refusal(learner.traits, resolved) is None


def test_cross_pairs_need_agents_that_do_not_read_each_other() -> None:
    session = session_of(
        algorithm="magrpo", method="cory_no_transfer", magrpo_pairing="cross", batch_size=16
    )
    assert session.config.group_size == 4


def test_one_return_for_all_by_hand() -> None:
    assert team_weights(np.array([[1, 1], [1, 1]])) is not None
    weights = team_weights(np.array([[2.0, 0.5], [7.0, 0.5]]))  # what earlier seats scored is void
    assert weights is not None and weights.tolist() == [2.0, 0.5]
    assert team_weights(np.eye(2)) is None
    assert team_weights(np.array([[1.0, -1.0], [-1.0, 1.0]])) is None
    assert team_weights(np.array([[1.0, 0.5], [0.0, 1.0]])) is None


def test_exact_payoffs_are_one_return_at_cooperation_one_only() -> None:
    for cooperation, there in ((1.0, True), (0.5, False)):
        made = TrainConfig(method="cory_exact", cooperation=cooperation, n_agents=3)
        assert (team_weights(payoff_matrix(made)) is not None) == there


def test_every_learner_says_which_settings_it_reads() -> None:
    named = {name for cls in LEARNERS.values() for name in cls.traits.reads or ()}
    assert named == set(LEARNER_SETTINGS)
    fields = TrainConfig.__dataclass_fields__
    assert set(LEARNER_SETTINGS) <= set(fields)


def test_names_that_are_no_learner_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown algorithm 'sarsa'; known are a2c"):
        learner_class("sarsa")
    with pytest.raises(ValueError, match="must be a subclass of Learner"):
        learner_class("agents.config:TrainConfig")
