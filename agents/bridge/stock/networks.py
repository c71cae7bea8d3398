"""A language model in the shapes in which Tianshou's algorithms call their networks."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tianshou.data import Batch
from torch import Tensor, nn

from agents.bridge.stock.cache import TurnCache
from agents.models.language_model import ActorCritic, LanguageModel
from agents.sampling import trim_left


def observed(obs: Any) -> NDArray[np.int64]:
    """The tokens of an observation as they lie in the buffer, [B, L], in either of its shapes."""
    while isinstance(obs, Batch):  # with an action mask: agent_id, mask and obs; without: the array
        obs = obs.obs
    return np.asarray(obs)


def token_ids(obs: Any, device: torch.device) -> Tensor:
    """The tokens of an observation, [B, L'], without the columns that are padding everywhere."""
    return trim_left(torch.as_tensor(observed(obs), device=device))


def last_hidden(model: LanguageModel, ids: Tensor) -> Tensor:
    """Hidden state after the last token of each row, [B, H]; ids left-padded with -1, [B, L]."""
    return model.response_hidden(ids, ids.new_full((len(ids), 1), -1))[:, 0]


def _single(logits: Tensor) -> Tensor:
    """In single precision where they are in half: Tianshou goes to numpy, which has no bfloat16."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def categorical(logits: Tensor) -> torch.distributions.Categorical:
    """The distribution of the next token."""
    return torch.distributions.Categorical(logits=logits)


class TokenActor(nn.Module):
    """Logits of the next token, in the form Tianshou's policies call: obs -> (logits, state).

    Its parameters are those that the logits depend on, and no others: natural gradients
    differentiate with respect to every one of them.
    """

    def __init__(self, model: ActorCritic) -> None:
        super().__init__()
        self.network = model.model
        self._whole = [model]  # in a list: its value head is no parameter of the actor
        self._cache: TurnCache | None = None

    def forward(self, obs: Any, state: Any = None, info: Any = None) -> tuple[Tensor, Any]:
        """Logits [B, V] and the state, which is passed through."""
        model = self._whole[0]
        if self._cache is None:
            return _single(model.logits(last_hidden(model, token_ids(obs, model.device)))), state
        with torch.no_grad():  # the stock Collector leaves gradients on
            slots = np.asarray(info.env_id).astype(np.int64)
            return _single(model.logits(self._cache.hidden(observed(obs), slots))), state


@contextmanager
def turns_kept(actors: Sequence[TokenActor], n_envs: int) -> Iterator[None]:
    """Let actors keep keys and values from step to step while episodes are collected.

    Nothing may move their weights inside; what was kept is dropped at the end.

    Args:
        actors: of the agents.
        n_envs: environments; `info.env_id` of a row says which it is.
    """
    for actor in actors:
        actor._cache = TurnCache(actor._whole[0], n_envs)
    try:
        yield
    finally:
        for actor in actors:
            actor._cache = None


class TokenCritic(nn.Module):
    """Value before the next token, in the form Tianshou's algorithms call: obs -> values."""

    def __init__(self, model: ActorCritic, *, head_only: bool = False) -> None:
        """Share an agent's model.

        Args:
            model: with its value head.
            head_only: whether its loss moves the head and leaves what the actor shares alone.
        """
        super().__init__()
        self.model = model
        self._head_only = head_only

    def forward(self, obs: Any, **kwargs: Any) -> Tensor:
        """Values [B, 1]."""
        ids = token_ids(obs, self.model.device)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self._head_only):
            hidden = last_hidden(self.model, ids)
        return self.model.values(hidden).unsqueeze(-1)


class TokenQ(nn.Module):
    """Value of each next token, in the form Tianshou's critics are called: obs -> [B, V].

    A network of its own: a copy of the agent's, whose logits are read as values.
    """

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = LanguageModel(copy.deepcopy(model.model), model.vocab_size)

    def forward(self, obs: Any, **kwargs: Any) -> Tensor:
        """Values [B, V]."""
        return _single(
            self.model.logits(last_hidden(self.model, token_ids(obs, self.model.device)))
        )
