"""What a run prints before it starts: what will be done, by which formulas, at what cost."""

from __future__ import annotations

from pathlib import Path

from agents.methods import METHODS
from agents.session import Session

FEW_QUERIES = 30
"""Evaluation queries below which the header warns."""

KL_SENTENCES = {
    "exact": "full KL, of later tokens in the reward-to-go and of the current token in the loss",
    "k1": "log-ratio of the drawn token, in the reward",
    "k3": "k3 of the drawn token, in the loss",
    "reference": "full KL in the reward only (the current token's KL gets no gradient)",
}


def run_header(session: Session, out: Path) -> str:
    """A few lines for the terminal."""
    config, rules = session.config, session.rules
    assert config.iterations is not None and config.batch_size is not None
    agents = len(rules.agents)
    learner = next(iter(session.learners.values()))
    parameters = sum(p.numel() for p in learner.actor.parameters())
    exchange = METHODS[config.method].role_exchange
    roles = f", roles exchanged every {config.role_exchange_interval}" if exchange else ""
    lines = [
        f"{config.task} / {config.method} / {config.algorithm}: {METHODS[config.method].summary}",
        f"  model    {config.model}, {parameters / 1e6:.2f}M parameters an agent, "
        f"{agents} agent{'s' if agents > 1 else ''} and a frozen reference",
        f"  work     {config.iterations} iterations x {config.batch_size} responses = "
        f"{config.iterations * config.batch_size} scored responses{roles}",
        f"  settings seed {config.seed}, learning rate {config.learning_rate:g}, "
        f"{config.update_epochs} passes in minibatches of {config.minibatch_size or 'the batch'}, "
        f"temperature {config.temperature:g}",
        f"  scored   by {config.reward or type(session.task).default_reward}",
        f"  paid     {_payoff_formula(session)}",
        f"  judged   on {_judged(session)}",
        f"  KL       {KL_SENTENCES[config.kl_estimator]}; weight {config.kl_coef} "
        f"{'fixed' if config.kl_target is None else f'adapting to {config.kl_target} nats'}, "
        f"{config.kl_scope} KL",
        f"  out      {out}",
    ]
    return "\n".join(lines)


def _judged(session: Session) -> str:
    n = len(session.evaluation_queries)
    few = ", too few to tell much" if n < FEW_QUERIES else ""
    return f"{n} validation quer{'y' if n == 1 else 'ies'} at temperature 1{few}"


def _payoff_formula(session: Session) -> str:
    method = METHODS[session.config.method]
    if method.mixing == "exact":
        weight = session.config.cooperation
        return f"own score + {weight:g} * the scores of those who act later"
    formula = {
        "own": "own score",
        "sum": "sum of all scores",
        "competitive": "own score - mean of the others' scores",
    }[method.mixing]
    return formula + (" (the others' of a permuted episode)" if method.scores == "permuted" else "")
