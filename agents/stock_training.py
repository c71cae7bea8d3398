"""The loop of a run whose updates a stock Tianshou algorithm makes, token by token.

All but collection and update is what every run has: evaluation, logs, guards, checkpoints.
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cached_property
from typing import Any

from agents.bridge.stock import PREFIX, StockIterations, StockLearner, StockTeam, TokenVectorEnv
from agents.bridge.vector_env import ResponseVectorEnv
from agents.curves import draw_curves
from agents.evaluation import Evaluated
from agents.guards import NonFiniteError
from agents.run_folder import RunFolder
from agents.session import Session, response_policy
from agents.training import Training

GREEDY_TEMPERATURE = 1e-4
"""At which a network of values is evaluated: it writes the token of the largest."""

UNKNOWN_TO_A_REPLAY = ("kl", "entropy")
"""Metrics of the policy that a run without a policy's KL leaves open."""


def is_stock(algorithm: str) -> bool:
    """Whether a name after `--algorithm` is that of a stock algorithm, which has this loop."""
    return algorithm.startswith(PREFIX)


class TokenSession(Session):
    """The parts of a run whose team plays token by token."""

    @cached_property
    def env(self) -> ResponseVectorEnv:
        """Where the team plays."""
        assert self.team.env is not None
        return self.team.env


class StockTraining(Training):
    """Tianshou's own trainer in place of ours."""

    def __init__(self, session: Session, folder: RunFolder) -> None:
        """Put the token-level game and the stock algorithms into a session.

        Args:
            session: whose learners are stock ones; it is left as it is.
            folder: claimed for the run.
        """
        learners: dict[str, StockLearner] = {}
        for agent, learner in session.learners.items():
            assert isinstance(learner, StockLearner)
            learners[agent] = learner
        first = next(iter(learners.values()))
        self._off_policy, self._greedy = first.off_policy, first.greedy
        env = TokenVectorEnv(session.rules, session.n_episodes)
        team = StockTeam(learners=learners, policy=session.team.policy, env=env)
        evaluators = session.evaluators
        if self._greedy:
            evaluators = {
                agent: response_policy(
                    x.actor, x.reference, session.rules, temperature=GREEDY_TEMPERATURE
                )
                for agent, x in learners.items()
            }
        parts = {f.name: getattr(session, f.name) for f in fields(Session)}
        super().__init__(TokenSession(**parts | {"team": team, "evaluators": evaluators}), folder)
        config = self.config
        assert config.iterations is not None and config.update_epochs is not None
        self.trainer = StockIterations(  # type: ignore[assignment]
            team=team,
            env=env,
            begin=self.session.begin,
            seed=config.seed,
            minibatch_size=config.minibatch_size,
            update_epochs=config.update_epochs,
            first_iteration=self.last_finished + 1,
            iterations=config.iterations,
        )

    # A replay's policies are known by their answers alone: no KL, no export, no checkpoint.

    def _play(self) -> Any:
        row, records, seen = super()._play()
        if self._off_policy:
            row |= {
                f"{a}/{name}": None for a in self.session.learners for name in UNKNOWN_TO_A_REPLAY
            }
        return row, records, seen

    def _evaluate(self) -> tuple[dict[str, Evaluated], dict[str, Evaluated]]:
        alone, observer = super()._evaluate()
        if not self._greedy:
            return alone, observer
        return _without_kl(alone), _without_kl(observer)

    def _keep_best(self, *args: Any) -> None:
        if not self._off_policy:
            super()._keep_best(*args)

    def _save(self) -> None:
        if not self._off_policy:
            super()._save()

    def _rescue(self, error: Exception) -> None:
        if not self._off_policy:
            super()._rescue(error)
        elif isinstance(error, NonFiniteError):
            self.folder.save_failed_batch(error)

    def _stopped(self) -> str:
        if not self._off_policy:
            return super()._stopped()
        why = f" ({self.tripped})" if self.tripped else ""
        return (
            f"stopped after iteration {self.last_finished}{why}; a run of {self.config.algorithm} "
            f"keeps no replay and cannot go on"
        )

    def _finish(self) -> None:
        if not self._off_policy:
            super()._finish()
            return
        draw_curves(self.folder.metrics(), self.session.rules.agents, self.folder.path)


def _without_kl(found: dict[str, Evaluated]) -> dict[str, Evaluated]:
    """A policy of the largest value has no KL worth the name."""
    return {
        agent: replace(e, evaluation=replace(e.evaluation, kl=None))  # type: ignore[arg-type]
        for agent, e in found.items()
    }
