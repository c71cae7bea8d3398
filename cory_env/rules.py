"""The settings of a game, checked once; the one place for their defaults."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from cory_env.chat import ChatFrame, ChatSettings, chat_frame
from cory_env.mixing import Mixing, MixingSpec, mixing
from cory_env.prompts import PromptBuilder
from cory_env.records import Query
from cory_env.rewards.base import Reward, RewardSpec, make_reward
from cory_env.roles import agent_names, check_n_agents, role_names
from cory_env.tasks import make_task
from cory_env.tasks.base import Task
from cory_env.tokens import PAD, TextTokenizer, as_tokenizer, response_ids

ACTION_LEVELS = ("response", "token")


@dataclass(frozen=True, eq=False)
class GameRules:
    """Everything that does not change from episode to episode; build it with `make`.

    Attributes:
        task: queries, prompts and lengths.
        tokenizer: between text and tokens.
        n_agents: number of agents, of seats and of turns.
        knowledge_transfer: whether later seats read the earlier responses.
        mixing: from scores by seat to payoffs by seat.
        action_level: "response" or "token".
        max_response_tokens: T, end token included.
        max_prompt_tokens: longest prompt in tokens.
        reward: scores of responses.
        chat: whether and how prompts become chats.
        frame: what the model's chat template puts round them; None where it is not used.
    """

    task: Task
    tokenizer: TextTokenizer
    n_agents: int
    knowledge_transfer: bool
    mixing: Mixing
    action_level: str
    max_response_tokens: int
    max_prompt_tokens: int
    reward: Reward
    chat: ChatSettings
    frame: ChatFrame | None

    @classmethod
    def make(
        cls,
        task: str | Task = "target",
        *,
        tokenizer: Any = None,
        data: str | Path | None = None,
        action_level: str = "response",
        n_agents: int = 2,
        knowledge_transfer: bool = True,
        reward_mixing: MixingSpec = "sum",
        max_response_tokens: int | None = None,
        max_prompt_tokens: int | None = None,
        reward: RewardSpec | None = None,
        chat: ChatSettings | None = None,
    ) -> GameRules:
        """Check the settings and fill in the task's own where None is given.

        Args:
            task: a task's name, `module:name`, or a `Task`.
            tokenizer: anything that `as_tokenizer` takes.
            data: the user's own queries; only with a task given by name.
            action_level: "response" (an action is a whole response) or "token".
            n_agents: number of agents.
            knowledge_transfer: whether later seats read the earlier responses.
            reward_mixing: who is paid for whose score; see `cory_env.mixing`.
            max_response_tokens: T.
            max_prompt_tokens: longest prompt.
            reward: a name, a weighted sum or a callable.
            chat: use of the model's chat template, system prompt and examples; None: the template
                where the tokenizer has one and the task asks something.

        Raises:
            ValueError: for any setting that does not fit; the message names it.
        """
        if isinstance(task, Task):
            if data is not None:
                raise ValueError("data can only be given with a task's name, not with a Task")
        else:
            task = make_task(task, **({} if data is None else {"data": data}))
        if action_level not in ACTION_LEVELS:
            raise ValueError(
                f"action_level must be one of {list(ACTION_LEVELS)}, got {action_level!r}"
            )
        if not isinstance(knowledge_transfer, bool):
            raise ValueError(
                f"knowledge_transfer must be True or False, got {knowledge_transfer!r}"
            )
        check_n_agents(n_agents)
        chat = ChatSettings() if chat is None else chat
        if not isinstance(chat, ChatSettings):
            raise ValueError(f"chat must be ChatSettings or None, got {chat!r}")
        text_tokenizer = task.tokenizer() if tokenizer is None else as_tokenizer(tokenizer)
        text_tokenizer, frame = chat_frame(task, text_tokenizer, chat)
        return cls(
            task=task,
            tokenizer=text_tokenizer,
            n_agents=n_agents,
            knowledge_transfer=knowledge_transfer,
            mixing=mixing(reward_mixing, n_agents),
            action_level=action_level,
            max_response_tokens=_length(
                "max_response_tokens", max_response_tokens, task.max_response_tokens
            ),
            max_prompt_tokens=_length(
                "max_prompt_tokens", max_prompt_tokens, task.max_prompt_tokens
            ),
            reward=task.needed_reward() if reward is None else make_reward(reward),
            chat=chat,
            frame=frame,
        )

    @cached_property
    def agents(self) -> tuple[str, ...]:
        """The ids of the agents."""
        return agent_names(self.n_agents)

    @cached_property
    def roles(self) -> tuple[str, ...]:
        """The roles by seat."""
        return role_names(self.n_agents)

    @cached_property
    def prompts(self) -> PromptBuilder:
        """The builder of this game's prompts."""
        return PromptBuilder(self.task, self.tokenizer, self.max_prompt_tokens, self.frame)

    @property
    def observation_width(self) -> int:
        """L, the length of an observation: a prompt, and at token level the response so far."""
        room = self.max_response_tokens if self.action_level == "token" else 0
        return self.max_prompt_tokens + room

    @cached_property
    def observation_space(self) -> spaces.Box:
        """Token ids, left-padded with -1: int64 [L]."""
        high = self.tokenizer.vocab_size - 1
        return spaces.Box(PAD, high, (self.observation_width,), np.int64)

    @cached_property
    def action_space(self) -> spaces.MultiDiscrete[Any] | spaces.Discrete[Any]:
        """A response of T tokens, -1 after its end; or, at token level, one token."""
        if self.action_level == "token":
            return spaces.Discrete(self.tokenizer.vocab_size)
        size, length = self.tokenizer.vocab_size + 1, self.max_response_tokens
        return spaces.MultiDiscrete([size] * length, start=[PAD] * length)

    def check_query(self, query: Query) -> None:
        """Refuse a query that does not fit, before anybody writes.

        Raises:
            ValueError: if a prompt of some role is too long even with empty references.
        """
        for seat, role in enumerate(self.roles):
            self.prompts.build(role, query)
            if seat and self.knowledge_transfer:
                self.prompts.build(role, query, [""] * seat)

    def parse_action(self, action: Any) -> tuple[int, ...]:
        """Return the tokens that an action writes: a whole response, or one token.

        Raises:
            ValueError: if the action has the wrong shape, type or range.
        """
        array = np.asarray(action)
        shape = () if self.action_level == "token" else (self.max_response_tokens,)
        lowest, highest = (
            (0 if self.action_level == "token" else PAD),
            self.tokenizer.vocab_size - 1,
        )
        if array.shape != shape or not np.issubdtype(array.dtype, np.integer):
            raise ValueError(
                f"action must be integers of shape {shape} at {self.action_level} level, "
                f"got {array.dtype} of shape {array.shape}"
            )
        if array.min() < lowest or array.max() > highest:
            raise ValueError(
                f"action must lie in [{lowest}, {highest}], got {array.min()} to {array.max()}"
            )
        return response_ids(array.reshape(-1).tolist(), self.tokenizer.end_ids)


def _length(name: str, given: int | None, default: int) -> int:
    value = default if given is None else given
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
    return int(value)
