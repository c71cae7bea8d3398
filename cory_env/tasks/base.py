"""What a task is: queries by split, prompts by role, a reward, lengths and a tokenizer."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

from cory_env.data_files import SPLITS, check_split, load_queries
from cory_env.records import Query
from cory_env.rewards.base import Reward, RewardSpec, make_reward
from cory_env.tokens import TextTokenizer

__all__ = ["SPLITS", "Task", "check_split"]


class Task(abc.ABC):
    """A kind of query and how its responses are asked for and judged.

    A new task is one file with a subclass and one line in `cory_env.tasks.TASKS`, or a subclass
    anywhere that is named as `module:name`.

    Attributes:
        name: its key in TASKS.
        default_model: the model that learners use when the user names none; None: the user has to.
        default_reward: the reward's name in REWARDS; None: the user has to name one.
        completion: whether the query is a beginning that the response continues; such a query is
            not put into a chat template.
        max_prompt_tokens: longest prompt, special tokens included.
        max_response_tokens: longest response, end token included.
        takes_hub_data: whether `data` may name a data set of a hub.
        reward: scores of responses, by `scored_query`; None where the user has named none yet.
        hidden_reward: a second scorer that is only reported, never paid; or None.
        training_defaults: fields of the trainer's configuration for which this task wants other
            values.
        data: the user's own data, or None.
    """

    name: ClassVar[str]
    default_model: ClassVar[str | None]
    default_reward: ClassVar[str | None]
    completion: ClassVar[bool] = False
    takes_hub_data: ClassVar[bool] = False
    max_prompt_tokens: ClassVar[int]
    max_response_tokens: ClassVar[int]
    training_defaults: Mapping[str, float | int | str] = MappingProxyType({})
    reward: Reward | None
    hidden_reward: Reward | None = None
    data: Path | None = None
    reward_example: ClassVar[str] = "vader, exact_number or my_module:score"

    def __init__(self, *, data: str | Path | None = None, reward: RewardSpec | None = None) -> None:
        """Take the user's own queries and reward, where given.

        Raises:
            ValueError: if the reward cannot be read.
        """
        self.data = None if data is None else Path(data)
        chosen = self.default_reward if reward is None else reward
        self.reward = None if chosen is None else make_reward(chosen)

    @abc.abstractmethod
    def queries(self, split: str) -> Sequence[Query]:
        """Return the queries of a split: "train", "validation" or "test".

        Raises:
            ValueError: for another split.
        """

    @abc.abstractmethod
    def prompt(self, role: str, query: Query, earlier_responses: Sequence[str]) -> str:
        """Return what the agent of a role is asked.

        Args:
            role: "pioneer", "observer", "observer_1", ...
            query: the query.
            earlier_responses: texts that the role may read; empty gives the query-only prompt.
        """

    def tokenizer(self) -> TextTokenizer:
        """Return the task's own tokenizer.

        Raises:
            ValueError: if it has none, as it is here.
        """
        raise ValueError(
            f"task {self.name!r} has no tokenizer of its own: give tokenizer= a folder with "
            f"tokenizer.json or a loaded tokenizer"
        )

    def needed_reward(self) -> Reward:
        """Return the reward.

        Raises:
            ValueError: if the task has none of its own and the user named none.
        """
        if self.reward is None:
            raise ValueError(
                f"task {self.name!r} has no reward of its own: name one with reward (--reward), "
                f"such as {self.reward_example}"
            )
        return self.reward

    def needed_model(self, model: str | None) -> str:
        """Return the model that the user named, else the task's own.

        Raises:
            ValueError: if there is neither.
        """
        chosen = model or self.default_model
        if chosen is None:
            raise ValueError(
                f"task {self.name!r} has no model of its own: name one with model (--model), such "
                f"as ./folder, a hub name or builtin:reviews"
            )
        return chosen

    def scored_query(self, role: str, query: Query) -> Query:
        """Return the query by which that role's response is judged: the query itself."""
        return query

    def query_from_text(self, text: str) -> Query:
        """Make a query of a typed text; a task that can work out the answer adds it."""
        return Query(text)

    def user_queries(self, split: str) -> list[Query]:
        """Return the queries of the user's own file or folder.

        Raises:
            ValueError: if there is no such path or something in it is broken.
        """
        if self.data is None:
            raise ValueError(f"task {self.name!r} was made without data")
        return load_queries(self.data, split)
