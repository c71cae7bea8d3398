"""What a run prints before it starts: what will be done, by which formulas, at what cost."""

from __future__ import annotations

from pathlib import Path

from agents.learners.combinations import read
from agents.memory import memory_line
from agents.methods import METHODS
from agents.models.adapters import AdapterModel
from agents.session import Session
from cory_env.rules import GameRules

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
    config = session.config
    assert config.iterations is not None and config.batch_size is not None
    exchange = METHODS[config.method].role_exchange
    roles = f", roles exchanged every {config.role_exchange_interval}" if exchange else ""
    lines = [
        f"{config.task} / {config.method} / {config.algorithm}: {METHODS[config.method].summary}",
        f"  model    {_model(session)}",
        f"  work     {config.iterations} iterations x {config.batch_size} responses = "
        f"{config.iterations * config.batch_size} scored responses{roles}",
        f"  settings seed {config.seed}, learning rate {config.learning_rate:g}, "
        f"{config.update_epochs} passes in minibatches of {config.minibatch_size or 'the batch'}, "
        f"temperature {config.temperature:g}",
        f"  learner  {_learner(session)}",
        f"  scored   by {config.reward or type(session.task).default_reward}",
        f"  paid     {_payoff_formula(session)}",
        f"  prompts  {_prompts(session.rules)}",
        f"  judged   on {_judged(session)}",
        f"  KL       {KL_SENTENCES[config.kl_estimator]}; weight {config.kl_coef} "
        f"{'fixed' if config.kl_target is None else f'adapting to {config.kl_target} nats'}, "
        f"{config.kl_scope} KL",
        f"  memory   {memory_line(session)}",
        f"  out      {out}",
    ]
    return "\n".join(lines)


def _model(session: Session) -> str:
    """What is trained, and how much of it."""
    config, agents = session.config, len(session.rules.agents)
    actor = next(iter(session.learners.values())).actor
    parameters = sum(p.numel() for p in actor.parameters())
    team = f"{agents} agent{'s' if agents > 1 else ''}"
    if not isinstance(actor, AdapterModel):
        return (
            f"{config.model}, {parameters / 1e6:.2f}M parameters an agent, {team} and a frozen "
            f"reference"
        )
    bits = "" if config.quantize == "none" else ", its weights in 4 bits"
    return (
        f"{config.model}, frozen{bits}; adapters of rank {config.lora_rank}, {parameters:,} "
        f"parameters an agent, {team}"
    )


def _learner(session: Session) -> str:
    """The settings that this learner reads, and which responses it compares."""
    config = session.config
    kind = type(next(iter(session.learners.values())))
    named = ", ".join(f"{name} {value}" for name, value in read(kind.traits, config).items())
    groups = config.groups
    compared = ""
    if groups.episodes > 1:
        inside = f" x {groups.nested} answers to each" if groups.nested > 1 else ""
        compared = (
            f"; {groups.queries(session.n_episodes)} queries an iteration, {groups.size} answers "
            f"to each{inside}"
        )
    extra = "; the game played once more without each answer" if kind.traits.counterfactual else ""
    return f"reads {named}{compared}{extra}"


def _prompts(rules: GameRules) -> str:
    """Whether the chat template is used, and with what."""
    if rules.frame is None:
        return "plain text, no chat template"
    chat = rules.chat
    given = [
        *([] if chat.system is None else ["a system prompt"]),
        *([_examples(len(chat.few_shot))] if chat.few_shot else []),
        *([f"answers begin with {chat.generation_prompt!r}"] if chat.generation_prompt else []),
    ]
    return "chats by the model's own template" + (f", with {', '.join(given)}" if given else "")


def _examples(number: int) -> str:
    return f"{number} example{'s' if number > 1 else ''}"


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
