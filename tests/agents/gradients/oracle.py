"""Objectives and surrogates written down from their formulas, over every episode of the toy.

Nothing here calls the code under test: models are the library's own, prompts are built from tokens,
and every formula is a plain sum. Shapes: n seats, R responses, T positions. A tensor of seat k has
k + 1 axes of R (the responses of the seats before, then its own); `wide` gives it all n.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.agents.gradients.toy_game import (
    COEFS,
    END,
    all_responses,
    draw_critic,
    flat,
    nudge,
    toy_weights,
)

QUERY_IDS = [0, 1]


@dataclass(frozen=True)
class Says:
    """What one seat may say, token by token; each [R] * (k + 1) + [T], 0 outside the mask."""

    logps: Tensor
    ref_logps: Tensor
    kl: Tensor
    """KL(policy || reference) of the whole vocabulary."""
    reverse_kl: Tensor
    """KL(reference || policy)."""
    entropy: Tensor
    values: Tensor
    """Of the critic, before the token."""


class Oracle:
    """Every episode of a game, with autograd back to the weights of each seat's model."""

    def __init__(
        self,
        n_agents: int = 1,
        *,
        longest: int = 2,
        order: Sequence[int] | None = None,
        transfer: bool = True,
        near: float | None = None,
        temperature: float = 1.0,
        moved: float = 0.0,
    ) -> None:
        """Run the models over everything; the arguments are those of `make_game`.

        Args:
            n_agents: n.
            longest: T.
            order: numbers of the agents by seat.
            transfer: later seats read the earlier responses.
            near: see `make_game`.
            temperature: of the distributions.
            moved: size of the `nudge` of every policy.
        """
        self.n, self.longest, self.transfer = n_agents, longest, transfer
        self.order = tuple(order or range(n_agents))
        self.responses = all_responses(longest)
        lengths = torch.tensor([len(r) for r in self.responses])
        self.mask = torch.arange(longest) < lengths.unsqueeze(-1)  # [R, T]
        self.lengths = lengths
        self.temperature = temperature
        self.models: list[Any] = []
        self.says: list[Says] = []
        for seat, agent in enumerate(self.order):
            model, reference = toy_weights(agent, near)
            if moved:
                nudge(model, moved)
            critic = torch.nn.Linear(8, 1).double()
            draw_critic(critic, agent)
            self.models.append(model)
            self.says.append(self._speak(seat, model, reference.requires_grad_(False), critic))

    # What can be said.

    def prompt(self, earlier: Sequence[int]) -> list[int]:
        """Tokens of the prompt after responses of these numbers."""
        ids = list(QUERY_IDS)
        for number in earlier:
            ids += [END, *(t for t in self.responses[number] if t != END)]
        return [*ids, END] if earlier else ids

    def _speak(self, seat: int, model: Any, reference: Any, critic: Any) -> Says:
        n_responses = len(self.responses)
        contexts = list(itertools.product(range(n_responses), repeat=seat))
        read = contexts if self.transfer else [()]
        parts = [self._after(self.prompt(context), model, reference, critic) for context in read]
        shape = [n_responses] * (seat + 1) + [self.longest]
        # Without transfer each context is the same prompt.
        columns = [
            list(column) * (len(contexts) // len(read)) for column in zip(*parts, strict=True)
        ]
        return Says(*(torch.stack(column).view(shape) for column in columns))

    def _after(self, prompt: list[int], model: Any, reference: Any, critic: Any) -> list[Tensor]:
        """The fields of `Says` for one prompt, each [R, T]."""
        ids = torch.zeros(len(self.responses), self.longest, dtype=torch.long)
        for row, response in enumerate(self.responses):
            ids[row, : len(response)] = torch.tensor(response)
        fed = torch.cat([torch.tensor([prompt] * len(ids)), ids[:, :-1]], dim=1)
        at = slice(len(prompt) - 1, None)
        logits = model(input_ids=fed).logits[:, at] / self.temperature
        with torch.no_grad():
            hidden = model.base_model(input_ids=fed).last_hidden_state[:, at]
            values = critic(hidden).squeeze(-1)
            ref = (reference(input_ids=fed).logits[:, at] / self.temperature).log_softmax(-1)
        own = logits.log_softmax(-1)
        chosen = torch.nn.functional.one_hot(ids, 3)
        columns = [
            (own * chosen).sum(-1),
            (ref * chosen).sum(-1),
            (own.exp() * (own - ref)).sum(-1),
            (ref.exp() * (ref - own)).sum(-1),
            -(own.exp() * own).sum(-1),
            values,
        ]
        return [column * self.mask for column in columns]

    # Sums over everything that can be said.

    def wide(self, tensor: Tensor | NDArray[np.float64], seat: int, *, tail: int = 0) -> Tensor:
        """A tensor of a seat over whole episodes, [R] * n and its last `tail` axes."""
        tensor = torch.as_tensor(tensor)
        head = tensor.ndim - tail
        shape = [*tensor.shape[:head], *[1] * (self.n - 1 - seat), *tensor.shape[head:]]
        sizes = [len(self.responses)] * self.n
        return tensor.view(shape).expand(*sizes, *tensor.shape[head:])

    def probability(self) -> Tensor:
        """Of each episode, [R] * n, with gradient."""
        logps = [self.wide(says.logps.sum(-1), seat) for seat, says in enumerate(self.says)]
        return torch.stack(logps).sum(0).exp()

    def scores(self, tables: Sequence[NDArray[np.float64]]) -> Tensor:
        """Of each seat in each episode, [R] * n + [n]."""
        return torch.stack([self.wide(t, seat) for seat, t in enumerate(tables)], dim=-1)

    def gradient(self, seat: int, value: Tensor) -> Tensor:
        """With respect to the weights of a seat's model; zero where it takes no part."""
        parameters = list(self.models[seat].parameters())
        if not value.requires_grad:
            return torch.cat([torch.zeros_like(p).flatten() for p in parameters])
        parts = torch.autograd.grad(value, parameters, allow_unused=True, retain_graph=True)
        return flat(parameters, parts)

    def reward_gradient(self, seat: int, payoffs: Tensor) -> Tensor:
        """Of E[payoff], where payoffs are [R] * n."""
        return self.gradient(seat, (self.probability() * payoffs).sum())

    def kl_gradient(self, seat: int, of: int | None = None) -> Tensor:
        """Of E[sum over the tokens of a seat of KL_t], that of the seat itself or of another."""
        kl = self.wide(self.says[seat if of is None else of].kl.sum(-1), seat if of is None else of)
        return self.gradient(seat, (self.probability() * kl).sum())

    def current(self, seat: int, field: str) -> Tensor:
        """Gradient of sum_t field_t alone, prefixes drawn by a policy that is held fixed."""
        value = self.wide(getattr(self.says[seat], field).sum(-1), seat)
        return self.gradient(seat, (self.probability().detach() * value).sum())

    def estimator_target(self, seat: int, estimator: str) -> Tensor:
        """What a KL estimator's part of the update is in expectation, by its own definition."""
        if estimator in ("exact", "k1"):
            return self.kl_gradient(seat)
        if estimator == "reference":  # later tokens only
            return self.kl_gradient(seat) - self.current(seat, "kl")
        assert estimator == "k3"
        return self.current(seat, "reverse_kl")

    def objective_gradient(
        self, seat: int, payoffs: Tensor, *, scope: str = "own", estimator: str = "exact"
    ) -> Tensor:
        """Of E[payoff] - coef * KL, the KL as the estimator has it; `team`: also of later seats.

        Args:
            seat: whose weights.
            payoffs: [R] * n.
            scope: kl_scope.
            estimator: kl_estimator.
        """
        total = self.reward_gradient(seat, payoffs)
        total = total - COEFS[self.order[seat]] * self.estimator_target(seat, estimator)
        if scope == "team":
            for later in range(seat + 1, self.n):
                total = total - COEFS[self.order[later]] * self.kl_gradient(seat, later)
        return total

    # Surrogates: what a biased estimate is, token by token.

    def penalty(self, seat: int, estimator: str) -> tuple[Tensor, Tensor]:
        """The KL of each token in the rewards (no gradient) and in the loss (with gradient)."""
        says = self.says[seat]
        ratio = says.ref_logps - says.logps
        none = torch.zeros_like(says.kl)
        in_reward = {"exact": says.kl, "reference": says.kl, "k1": -ratio, "k3": none}[estimator]
        in_loss = {"exact": says.kl, "k3": ratio.exp() - 1 - ratio}.get(estimator, none)
        wide = [self.wide(part * self.mask, seat, tail=1) for part in (in_reward, in_loss)]
        return wide[0].detach(), wide[1]

    def token_mask(self, seat: int) -> Tensor:
        """[R] * n + [T]."""
        shape = [1] * seat + list(self.mask.shape)
        sizes = [len(self.responses)] * (seat + 1)
        own = self.mask.view(shape).expand(*sizes, self.longest)
        return self.wide(own, seat, tail=1)

    def advantages(
        self,
        seat: int,
        payoffs: Tensor,
        *,
        estimator: str = "exact",
        gamma: float = 1.0,
        lam: float = 1.0,
        values: Tensor | None = None,
    ) -> Tensor:
        """A_t = sum over u >= t of (gamma lam)^(u-t) (r_u + gamma V_(u+1) - V_u), as a double sum.

        Args:
            seat: whose.
            payoffs: [R] * n.
            estimator: kl_estimator.
            gamma: discount.
            lam: trace decay.
            values: V, [R] * n + [T]; None: the critic's.
        """
        mask = self.token_mask(seat)
        values = self.wide(self.says[seat].values, seat, tail=1) if values is None else values
        values = values * mask
        rewards = -COEFS[self.order[seat]] * self.penalty(seat, estimator)[0]
        following = torch.cat([mask[..., 1:], torch.zeros_like(mask[..., :1])], dim=-1)
        rewards = rewards + payoffs.unsqueeze(-1) * (mask & ~following)
        next_values = torch.cat([values[..., 1:], torch.zeros_like(values[..., :1])], dim=-1)
        errors = (rewards + gamma * next_values - values) * mask
        columns = []
        for t in range(self.longest):
            decayed = [(gamma * lam) ** (u - t) * errors[..., u] for u in range(t, self.longest)]
            columns.append(torch.stack(decayed).sum(0))
        return (torch.stack(columns, dim=-1) * mask).detach()

    def true_values(self, seat: int, payoffs: Tensor, estimator: str = "exact") -> Tensor:
        """E[return-to-go | the prompt and the tokens so far], [R] * n + [T]; no gradient."""
        probability = self.probability().detach()
        to_go = self.advantages(seat, payoffs, estimator=estimator, values=self.zeros(seat))
        values = torch.zeros_like(to_go)
        groups: dict[tuple[Any, ...], list[tuple[int, ...]]] = {}
        for t in range(self.longest):
            for a in itertools.product(range(len(self.responses)), repeat=self.n):
                own = self.responses[a[seat]]
                if t < len(own):
                    read = a[:seat] if self.transfer else ()
                    groups.setdefault((t, read, own[:t]), []).append((*a, t))
        for members in groups.values():
            weights = torch.stack([probability[m[:-1]] for m in members])
            mean = (weights * torch.stack([to_go[m] for m in members])).sum() / weights.sum()
            for m in members:
                values[m] = mean
        return values

    def zeros(self, seat: int) -> Tensor:
        """A critic that says nothing."""
        return torch.zeros(self.token_mask(seat).shape, dtype=torch.float64)


@functools.cache
def oracle_of(n_agents: int = 1, **settings: Any) -> Oracle:
    """An oracle, built once for the same settings (an order is a tuple then)."""
    return Oracle(n_agents, **settings)


def clipped_surrogate(
    logps: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, clip: float
) -> Tensor:
    """min(rho A, clip(rho) A) of each token, to be maximised; same shape as its arguments.

    Where the clipped side is the smaller one nothing is left to differentiate, so it is a number.
    """
    ratio = (logps - old.detach()).exp()
    free = ratio * advantages
    bound = torch.where(advantages >= 0, 1.0 + clip, 1.0 - clip) * advantages
    cut = ((advantages >= 0) & (ratio > 1.0 + clip)) | ((advantages < 0) & (ratio < 1.0 - clip))
    return torch.where(cut, bound, free) * mask
