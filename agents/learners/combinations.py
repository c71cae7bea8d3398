"""Which learner goes with which method and settings, and why not."""

from __future__ import annotations

import dataclasses

import numpy as np

from agents.bridge.learner import Learner
from agents.config import TrainConfig
from agents.methods import METHODS, Method
from agents.traits import LEARNER_SETTINGS, Traits
from cory_env.mixing import MatrixMixing, mixing


def check_combination(learner: type[Learner], config: TrainConfig) -> None:
    """Refuse a combination that is ill-defined, and settings that nobody would read.

    Args:
        learner: the class that `config.algorithm` names.
        config: resolved.

    Raises:
        ValueError: with the sentence that says why.
    """
    why = refusal(learner.traits, config) or unread(learner.traits, config)
    if why is not None:
        raise ValueError(f"algorithm {config.algorithm}: {why}")


def refusal(traits: Traits, config: TrainConfig) -> str | None:
    """Why a learner is not defined for a method and its groups; None: it is.

    Args:
        traits: of the learner.
        config: resolved, or with the open settings that do not matter here.
    """
    method = METHODS[config.method]
    alone = config.agents_in_game == 1  # then what is about other agents is void
    for rule in (_groups,) if alone else _RULES:
        why = rule(traits, method, config)
        if why is not None:
            return why
    return None


def _groups(traits: Traits, method: Method, config: TrainConfig) -> str | None:
    size = traits.group_size if config.group_size is None else config.group_size
    if size < traits.least_group:
        return (
            f"it compares answers to one query, and in a group of {size} there is nothing to "
            f"compare: group_size must be at least {traits.least_group}, got {size}"
        )
    if config.group_structure != "nested":
        return None
    if config.agents_in_game != 2:
        return (
            f"nested groups are several observers' answers to one answer of the pioneer: "
            f"group_structure nested needs 2 agents, got {config.agents_in_game}"
        )
    if not method.knowledge_transfer or method.transfer == "permuted":
        return (
            f"nested groups need an observer that reads the pioneer's answer to its own query, and "
            f"in method {config.method} it does not: group_structure must be query"
        )
    if method.scores == "permuted":
        return (
            f"nested groups pay the mean over the observer's answers, and method {config.method} "
            f"pays scores of other episodes: group_structure must be query"
        )
    if not traits.nested:
        return (
            "it joins the responses of whole episodes, and in nested groups episodes share a "
            "response: group_structure must be query"
        )
    return None


def _transfer(traits: Traits, method: Method, config: TrainConfig) -> str | None:
    if traits.plain_transfer and "permuted" in (method.transfer, method.scores):
        what = "reads answers" if method.transfer == "permuted" else "is paid scores"
        return (
            f"it joins the responses of one episode, and in method {config.method} an agent {what} "
            f"of another"
        )
    return None


def _return(traits: Traits, method: Method, config: TrainConfig) -> str | None:
    if traits.common_return and team_weights(payoff_matrix(config)) is None:
        return (
            f"it needs one return for all agents, and method {config.method} pays them differently "
            f"for the same scores"
        )
    return None


def _stream(traits: Traits, method: Method, config: TrainConfig) -> str | None:
    if not traits.one_stream:
        return None
    if config.kl_scope == "own" and config.kl_coef != 0:
        return (
            "its rewards are one stream, in which an agent also pays the KL of those who act after "
            "it: kl_scope must be team, got own"
        )
    if config.kl_estimator == "k3":
        return (
            "its rewards are one stream, and the estimator k3 has no KL in the rewards: "
            "kl_estimator must be exact, k1 or reference, got k3"
        )
    return None


def _counterfactual(traits: Traits, method: Method, config: TrainConfig) -> str | None:
    if not traits.counterfactual:
        return None
    if not method.knowledge_transfer:
        return (
            f"it asks what the observer would have scored without the pioneer's answer, and in "
            f"method {config.method} it never reads it"
        )
    if not np.triu(payoff_matrix(config), k=1).any():
        return (
            f"it takes away what later agents would have contributed, and method {config.method} "
            f"pays nobody for the scores of later agents"
        )
    return None


def _pairing(traits: Traits, method: Method, config: TrainConfig) -> str | None:
    reads = traits.reads is None or "magrpo_pairing" in traits.reads
    if reads and config.magrpo_pairing == "cross" and method.knowledge_transfer:
        return (
            f"magrpo_pairing cross pays an answer with answers it was not played with, and in "
            f"method {config.method} the observer's answers belong to what they read: "
            f"magrpo_pairing must be aligned"
        )
    return None


_RULES = (_groups, _transfer, _return, _stream, _counterfactual, _pairing)


def payoff_matrix(config: TrainConfig) -> np.ndarray:
    """W over the seats of a configuration's game, [N, N]."""
    spec = METHODS[config.method].reward_mixing(config.agents_in_game, config.cooperation)
    found = mixing(spec, config.agents_in_game)
    assert isinstance(found, MatrixMixing)
    return found.matrix


def team_weights(matrix: np.ndarray) -> np.ndarray | None:
    """The weights of the scores in a return that all agents share, [N]; None where there is none.

    A seat's payoff for earlier seats' scores has no influence on anything and does not count: only
    on and above the diagonal must the rows agree.
    """
    weights = np.diagonal(matrix)
    same = np.triu(matrix) == np.triu(np.broadcast_to(weights, matrix.shape))
    return weights if bool(same.all()) else None


# Settings.


def unread(traits: Traits, config: TrainConfig) -> str | None:
    """Why a setting has no business here: this learner does not read it; None: all is read."""
    if traits.reads is None:
        return None
    defaults = {f.name: f.default for f in dataclasses.fields(TrainConfig)}
    for name in LEARNER_SETTINGS:
        value = getattr(config, name)
        if name not in traits.reads and value != defaults[name]:
            return f"it does not read {name}, which must stay {defaults[name]}, got {value}"
    return None


def read(traits: Traits, config: TrainConfig) -> dict[str, object]:
    """The settings that a learner reads, with their values; of one that does not say, all."""
    names = [n for n in LEARNER_SETTINGS if traits.reads is None or n in traits.reads]
    return {name: getattr(config, name) for name in names}
