"""One episode, pure: whose turn it is, what each agent sees, when it ends, what each is paid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cory_env.mixing import Scores
from cory_env.prompts import Prompt
from cory_env.records import EpisodeRecord, Query, Turn
from cory_env.rewards.base import LARGEST, RewardError, allowed
from cory_env.roles import check_turn_order
from cory_env.rules import GameRules


class Episode:
    """A query answered by each agent once, in turn order.

    The game goes: read `observe(agent)`, `submit` an action, until `over`; then `settle` with one
    score for each seat. Scores come from outside, so that one reward call can serve many episodes.
    """

    def __init__(self, rules: GameRules, query: Query, turn_order: Sequence[str]) -> None:
        """Begin.

        Args:
            rules: the game's settings.
            query: what everybody answers.
            turn_order: the agents by seat.

        Raises:
            ValueError: if the order is not a permutation of the agents, or the query does not fit.
        """
        self.rules = rules
        self.query = query
        self.turn_order = check_turn_order(turn_order, rules.agents)
        self._turns: list[Turn] = []
        self._partial: list[int] = []
        self._references: tuple[str, ...] | None = None
        self._prompts: dict[int, Prompt] = {}
        self._queries_only: dict[int, Prompt] = {}
        rules.check_query(query)

    @property
    def over(self) -> bool:
        """Whether every agent has had its turn."""
        return len(self._turns) == self.rules.n_agents

    @property
    def touched(self) -> bool:
        """Whether any action has been taken."""
        return bool(self._turns or self._partial)

    @property
    def settled(self) -> bool:
        """Whether scores and payoffs are known."""
        return self.over and self._turns[-1].score is not None

    @property
    def seat(self) -> int:
        """The seat that acts, or that acted last."""
        return min(len(self._turns), self.rules.n_agents - 1)

    @property
    def agent(self) -> str:
        """The agent that acts, or that acted last."""
        return self.turn_order[self.seat]

    @property
    def role(self) -> str:
        """The role of that agent."""
        return self.rules.roles[self.seat]

    @property
    def roles(self) -> dict[str, str]:
        """Role by agent."""
        names = dict(zip(self.turn_order, self.rules.roles, strict=True))
        return {agent: names[agent] for agent in self.rules.agents}

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The finished turns by seat."""
        return tuple(self._turns)

    @property
    def partial_response(self) -> str:
        """The text of the unfinished turn so far (token level)."""
        return self._text(self._partial)

    def prompt(self) -> Prompt:
        """Return the prompt of the turn that goes on, or was the last."""
        return self._prompt(self.seat)

    def observe(self, agent: str) -> tuple[int, ...]:
        """Return the tokens that an agent sees: at most L of them, unpadded.

        An agent whose turn has not come sees the bare query; afterwards it goes on seeing its
        prompt. At token level its own response so far follows the prompt.

        Raises:
            ValueError: if there is no such agent.
        """
        if agent not in self.turn_order:
            raise ValueError(f"agent must be one of {list(self.rules.agents)}, got {agent!r}")
        seat = self.turn_order.index(agent)
        if seat > self.seat:
            if seat not in self._queries_only:
                role = self.rules.roles[seat]
                self._queries_only[seat] = self.rules.prompts.build(role, self.query)
            return self._queries_only[seat].ids
        ids = self._prompt(seat).ids
        if self.rules.action_level == "response":
            return ids
        written = self._turns[seat].response_ids if seat < len(self._turns) else self._partial
        return (*ids, *written)

    def submit(self, action: Any) -> None:
        """Let the acting agent write: a whole response, or at token level one token.

        Raises:
            ValueError: if the action is not legal (nothing has changed then) or the episode is
                over.
        """
        if self.over:
            raise ValueError("the episode is over, no action is possible")
        tokens = self.rules.parse_action(action)
        prompt = self.prompt()
        written = [*self._partial, *tokens]
        ended = bool(written) and written[-1] in self.rules.tokenizer.end_ids
        full = len(written) == self.rules.max_response_tokens
        if self.rules.action_level == "token" and not (ended or full):
            self._partial = written
            return
        turn = Turn(
            agent=self.agent,
            role=self.role,
            prompt=prompt.text,
            prompt_tokens=len(prompt.ids),
            dropped_tokens=prompt.dropped_tokens,
            response=self._text(written),
            response_ids=tuple(written),
            truncated=full and not ended,
            score=None,
            payoff=None,
        )
        self._partial = []
        self._references = None
        self._turns.append(turn)

    def responses(self) -> list[str]:
        """Return the texts of the finished turns by seat."""
        return [turn.response for turn in self._turns]

    def scored_queries(self) -> list[Query]:
        """Return, by seat, the query by which that seat's response is judged."""
        return [self.rules.task.scored_query(turn.role, self.query) for turn in self._turns]

    def replace_references(self, texts: Sequence[str]) -> None:
        """Let the coming turn read other texts than this episode's responses (a placebo).

        Raises:
            ValueError: if the turn has begun, or the number of texts is not that of earlier turns.
        """
        if self._partial or self.over or self.seat in self._prompts:
            raise ValueError("references can only be replaced before a turn is observed")
        if len(texts) != self.seat:
            raise ValueError(f"seat {self.seat} reads {self.seat} texts, got {len(texts)}")
        self._references = tuple(texts)

    def settle(
        self,
        scores: Sequence[float] | NDArray[np.float64],
        others: Sequence[float] | NDArray[np.float64] | None = None,
        parts: Sequence[Mapping[str, float] | None] | None = None,
    ) -> None:
        """Write down scores and pay everybody.

        Args:
            scores: one for each seat, [n].
            others: scores of another episode, which the mixing sees in place of those of the
                *other* seats (a placebo), [n]; None: this episode's own.
            parts: by seat what the parts of a weighted sum said, only to be written down, [n].

        Raises:
            ValueError: if the episode is not over or the number of scores is wrong.
            RewardError: if a payoff is not a finite number of at most 1e100.
        """
        if not self.over:
            raise ValueError("the episode is not over, it cannot be settled")
        own = self._checked(scores)
        payoffs = self.rules.mixing(own) if others is None else self._mixed(own, others)
        if not (np.abs(payoffs) <= LARGEST).all():
            worst = float(np.abs(payoffs).max())
            raise RewardError(
                f"payoffs must be {allowed(worst)}, got {np.asarray(payoffs).tolist()} for the "
                f"scores {own.tolist()} of query {self.query.text[:200]!r}"
            )
        said = [None] * len(own) if parts is None else parts
        self._turns = [
            replace(turn, score=float(score), payoff=float(payoff), parts=part)
            for turn, score, payoff, part in zip(self._turns, own, payoffs, said, strict=True)
        ]

    def payoffs(self) -> dict[str, float]:
        """Return what each agent was paid, 0.0 before the end."""
        paid = {turn.agent: turn.payoff or 0.0 for turn in self._turns}
        return {agent: paid.get(agent, 0.0) for agent in self.rules.agents}

    def info(self, agent: str) -> dict[str, Any]:
        """Return what people may want to know about an agent's turn; the keys are always the same.

        What is not known yet is "", 0.0, 0 or False: vector environments want fixed types.
        """
        seat = self.turn_order.index(agent)
        info: dict[str, Any] = {
            "role": self.rules.roles[seat],
            "query": self.query.text,
            "prompt": "",
            "response": "",
            "score": 0.0,
            "truncated": False,
            "dropped_tokens": 0,
        }
        if seat <= self.seat:
            prompt = self._prompt(seat)
            info |= {"prompt": prompt.text, "dropped_tokens": prompt.dropped_tokens}
        if seat < len(self._turns):
            turn = self._turns[seat]
            info |= {"response": turn.response, "truncated": turn.truncated}
            info["score"] = 0.0 if turn.score is None else turn.score
        return info

    def record(self) -> EpisodeRecord:
        """Return the query and the finished turns."""
        return EpisodeRecord(self.query, self.turns)

    def _prompt(self, seat: int) -> Prompt:
        if seat not in self._prompts:
            references: Sequence[str] = ()
            if self.rules.knowledge_transfer:
                own = self.responses()[:seat]
                references = own if self._references is None else self._references
            role = self.rules.roles[seat]
            self._prompts[seat] = self.rules.prompts.build(role, self.query, references)
        return self._prompts[seat]

    def _text(self, ids: Sequence[int]) -> str:
        # The end token need not be marked as special in the tokenizer, so it is taken off by hand.
        ended = bool(ids) and ids[-1] in self.rules.tokenizer.end_ids
        return self.rules.tokenizer.decode(ids[:-1] if ended else ids)

    def _checked(self, scores: Sequence[float] | NDArray[np.float64]) -> Scores:
        array = np.asarray(scores, dtype=np.float64)
        if array.shape != (self.rules.n_agents,):
            raise ValueError(
                f"scores must be one for each of {self.rules.n_agents} seats, got {array.tolist()}"
            )
        return array

    def _mixed(self, own: Scores, others: Sequence[float] | NDArray[np.float64]) -> Scores:
        other = self._checked(others)
        seats = np.arange(self.rules.n_agents)
        seen = [np.where(seats == seat, own, other) for seat in seats]
        return np.array(
            [self.rules.mixing(row)[seat] for seat, row in zip(seats, seen, strict=True)]
        )
