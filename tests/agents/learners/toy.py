"""A learner over a vocabulary of three with hand-made rollouts."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any, TypeVar

import torch
from gymnasium import spaces
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from agents.bridge.learner import Learner
from agents.bridge.policy import ResponsePolicy
from agents.config import TrainConfig
from agents.learners import PPO
from agents.maths.kl import full_kl
from agents.models import ActorCritic, LanguageModel
from agents.models.language_model import Scored
from agents.models.target import draw_weights
from agents.rollout import Prepared, Rollout

L = TypeVar("L", bound=Learner)

END = 2
PROMPT = [0, 1]
RESPONSES = [[2], [0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
"""All responses of at most two tokens over three tokens, of which 2 ends."""


def toy_model(seed: int) -> GPT2LMHeadModel:
    """One layer over three tokens, float64 throughout (Llama's norm computes in float32)."""
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=3,
            n_embd=8,
            n_layer=1,
            n_head=2,
            n_positions=16,
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=END,
        )
    )
    draw_weights(model, seed, std=0.7)
    return model.double().eval()


def toy_learner(kind: type[L] = PPO, **settings: Any) -> L:  # type: ignore[assignment]
    """A learner whose policy is not its reference and whose critic says something."""
    config = TrainConfig(**{"learning_rate": 1e-3, "kl_coef": 0.5, **settings})
    actor = ActorCritic(toy_model(1), 3).double().eval()
    draw_weights(actor.value_head, 3, std=0.5)
    reference = LanguageModel(toy_model(2), 3).eval().requires_grad_(False)
    policy = ResponsePolicy(
        actor=actor,
        reference=reference,
        action_space=spaces.MultiDiscrete([4, 4], start=[-1, -1]),
        end_ids=(END,),
        temperature=config.temperature,
        keep_ref_hidden=True,
    )
    return kind(agent="agent_0", policy=policy, reference=reference, config=config)


def toy_rollout(
    learner: Learner, responses: list[list[int]], payoffs: list[float], temperature: float = 1.0
) -> Rollout:
    """What would have been recorded, had these responses been drawn."""
    n = len(responses)
    response_ids = torch.tensor([r + [-1] * (2 - len(r)) for r in responses])
    prompt_ids = torch.tensor([PROMPT] * n)
    mask = response_ids >= 0
    with torch.no_grad():
        scored = learner.actor.score(prompt_ids, response_ids, temperature)
        ref_hidden = learner.reference.response_hidden(prompt_ids, response_ids)
        ref = learner.reference.score(prompt_ids, response_ids, temperature)
        kl = full_kl(
            learner.actor.distribution(prompt_ids, response_ids, temperature),
            learner.reference.distribution(prompt_ids, response_ids, temperature),
        )
    return Rollout(
        prompt_ids=prompt_ids,
        response_ids=response_ids,
        logprobs=scored.logprobs,
        values=scored.values.masked_fill(~mask, 0.0),
        kl=kl.masked_fill(~mask, 0.0),
        entropy=scored.entropy.masked_fill(~mask, 0.0),
        ref_logprobs=ref.logprobs,
        ref_hidden=ref_hidden,
        payoffs=torch.tensor(payoffs, dtype=torch.float64),
        episode=torch.arange(n),
        seat=0,
    )


def made_rollout(**changes: Any) -> Rollout:
    """Numbers to calculate with by hand: two responses, of two tokens and of one."""
    values: dict[str, Any] = {
        "prompt_ids": torch.tensor([PROMPT, PROMPT]),
        "response_ids": torch.tensor([[0, 2], [2, -1]]),
        "logprobs": torch.tensor([[-1.0, -0.5], [-2.0, 0.0]], dtype=torch.float64),
        "values": torch.zeros(2, 2, dtype=torch.float64),
        "kl": torch.tensor([[0.2, 0.4], [0.6, 0.0]], dtype=torch.float64),
        "entropy": torch.ones(2, 2, dtype=torch.float64),
        "ref_logprobs": torch.tensor([[-1.5, -0.25], [-2.5, 0.0]], dtype=torch.float64),
        "ref_hidden": torch.zeros(2, 2, 8, dtype=torch.float64),
        "payoffs": torch.tensor([1.0, 3.0], dtype=torch.float64),
        "episode": torch.arange(2),
        "seat": 0,
    }
    return Rollout(**{**values, **changes})


def made_scored(log_probs: Tensor, response_ids: Tensor, values: Tensor) -> Scored:
    """A policy's view with given distributions, against a uniform reference."""
    mask = response_ids >= 0
    ids = response_ids.masked_fill(~mask, 0).unsqueeze(-1)
    return Scored(
        logprobs=log_probs.gather(-1, ids).squeeze(-1).masked_fill(~mask, 0.0),
        entropy=-(log_probs.exp() * log_probs).sum(-1),
        kl=(log_probs.exp() * (log_probs + math.log(log_probs.shape[-1]))).sum(-1),
        values=values,
    )


def prepared_of(rollout: Rollout, advantages: Tensor, returns: Tensor, sigma: float) -> Prepared:
    """A rollout with given targets."""
    own = {f.name: getattr(rollout, f.name) for f in fields(Rollout)}
    rows = torch.full((len(rollout),), sigma, dtype=torch.float64)
    return Prepared(**own, advantages=advantages, returns=returns, sigma=rows)
