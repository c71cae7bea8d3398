"""The game as a PettingZoo environment over one `Episode`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import logger, spaces
from gymnasium.utils import EzPickle
from numpy.typing import NDArray
from pettingzoo import AECEnv
from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from cory_env import render
from cory_env.chat import ChatSettings
from cory_env.episode import Episode
from cory_env.mixing import MixingSpec
from cory_env.records import Query
from cory_env.rewards.base import RewardSpec, score_batch
from cory_env.roles import check_turn_order
from cory_env.rules import GameRules
from cory_env.schedule import EpisodeSchedule, check_role_schedule
from cory_env.tasks.base import Task
from cory_env.tokens import pad_left

RENDER_MODES = ("human", "ansi")

Observation = NDArray[np.int64]


class CoryEnv(AECEnv[str, Observation, Any], EzPickle):
    """Text generation as a sequential game: each agent answers the same query, one after the other.

    The agents `agent_0`, `agent_1`, ... are the learners. Who is the pioneer (first, sees the
    query) and who observes (later, sees the query and the earlier responses) is a fact of one
    episode: `env.roles`.

    Arguments:
        task: a task's name, `module:name`, or a `cory_env.tasks.Task`.
        tokenizer: a `tokenizers.Tokenizer`, a Hugging Face tokenizer or a folder; None: the task's
            own.
        split: queries to play with: "train", "validation" or "test"; None: none, each reset names
            one.
        data: the user's own queries: a file (.txt, .jsonl, .csv, .parquet), a folder of files that
            name their split, or for some tasks a hub name; None: the task's own queries.
        action_level: "response" (an action is a whole response) or "token" (one token).
        n_agents: number of agents.
        knowledge_transfer: whether later agents read the earlier responses.
        reward_mixing: "sum", "own", "competitive", a matrix W over seats or a callable
            `scores -> payoffs`: the agent in seat i is paid sum_j W[i, j] * score_j.
        role_schedule: "fixed", "alternate" (rotate every episode) or "random" (seeded by `reset`).
        max_response_tokens: T, the end token included; None: the task's own.
        max_prompt_tokens: longest prompt; None: the task's own.
        reward: a name, a weighted sum such as "0.7*vader + 0.3*module:name", or a callable
            `(queries, responses) -> scores`; None: the task's own.
        chat: `ChatSettings`: use of the model's chat template, system prompt, examples; None: the
            template where the tokenizer has one and the task asks something.
        render_mode: None, "human" (prints the dialogue as it happens) or "ansi" (`render` returns
            it).

    Observation:
        `Box(-1, V-1, (L,), int64)`, the same for all agents: token ids, left-padded with -1, so
        that the mask is `observation >= 0`. L is max_prompt_tokens (+ T at token level, where the
        response so far follows the prompt). An agent whose turn has not come sees the bare query. A
        prompt that is too long loses the left part of the earlier responses, never of the query
        (`infos` count the tokens); a query that does not fit is refused.

    Action:
        Response level: `MultiDiscrete([V+1]*T, start=[-1]*T)`. The response ends before the first
        -1 or with the first end token; what follows is ignored; an empty response is legal.
        Token level: `Discrete(V)`. The turn ends with an end token or after T tokens.
        Anything else is a ValueError.

    Rewards:
        Zero until the last turn. Then every response gets a score and every agent its payoff
        (`reward_mixing`); all agents terminate. A response that the length limit cuts ends the turn
        in the ordinary way (`infos[agent]["truncated"]`); truncations are always False.
        `infos[agent]` has role, query, prompt, response, score, truncated and dropped_tokens.

    Reset:
        `reset(seed)` starts queries and roles anew from the seed; the same seed gives the same.
        Without a seed the next query follows, except that an episode which no action has touched
        keeps its query and turn order. `options["turn_order"]` (agents by seat) and
        `options["query"]` (text or `Query`) hold for this episode; other options are ignored.

    Version History:
        v0: first version.
    """

    metadata = {  # noqa: RUF012  (PettingZoo's own annotation)
        "name": "cory_v0",
        "render_modes": list(RENDER_MODES),
        "is_parallelizable": False,
        "render_fps": 1,
    }

    def __init__(  # noqa: PLR0913  (the keywords of the game)
        self,
        task: str | Task = "target",
        *,
        tokenizer: Any = None,
        split: str | None = "train",
        data: str | Path | None = None,
        action_level: str = "response",
        n_agents: int = 2,
        knowledge_transfer: bool = True,
        reward_mixing: MixingSpec = "sum",
        role_schedule: str = "fixed",
        max_response_tokens: int | None = None,
        max_prompt_tokens: int | None = None,
        reward: RewardSpec | None = None,
        chat: ChatSettings | None = None,
        render_mode: str | None = None,
    ) -> None:
        EzPickle.__init__(
            self,
            task,
            tokenizer=tokenizer,
            split=split,
            data=data,
            action_level=action_level,
            n_agents=n_agents,
            knowledge_transfer=knowledge_transfer,
            reward_mixing=reward_mixing,
            role_schedule=role_schedule,
            max_response_tokens=max_response_tokens,
            max_prompt_tokens=max_prompt_tokens,
            reward=reward,
            chat=chat,
            render_mode=render_mode,
        )
        if render_mode not in (None, *RENDER_MODES):
            raise ValueError(
                f"render_mode must be None or one of {list(RENDER_MODES)}, got {render_mode!r}"
            )
        self.rules = GameRules.make(
            task,
            tokenizer=tokenizer,
            data=data,
            action_level=action_level,
            n_agents=n_agents,
            knowledge_transfer=knowledge_transfer,
            reward_mixing=reward_mixing,
            max_response_tokens=max_response_tokens,
            max_prompt_tokens=max_prompt_tokens,
            reward=reward,
            chat=chat,
        )
        self.role_schedule = check_role_schedule(role_schedule)
        self.render_mode = render_mode
        self.possible_agents = list(self.rules.agents)
        self._queries = None if split is None else self.rules.task.queries(split)
        # A copy for each agent: whoever seeds the space of one must not seed the other's.
        box = self.rules.observation_space
        self.observation_spaces = {
            agent: spaces.Box(box.low, box.high, dtype=np.int64) for agent in self.possible_agents
        }
        self.action_spaces = {agent: self._action_space() for agent in self.possible_agents}
        self._schedule: EpisodeSchedule | None = None

    def observation_space(self, agent: str) -> spaces.Space[Observation]:
        """Return the agent's observation space, the same object every time."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """Return the agent's action space, the same object every time."""
        return self.action_spaces[agent]

    @property
    def roles(self) -> dict[str, str]:
        """Role by agent in this episode."""
        return self.episode.roles

    @property
    def turn_order(self) -> tuple[str, ...]:
        """The agents by seat in this episode."""
        return self.episode.turn_order

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> None:
        """Start an episode; see "Reset" in the docstring of the class.

        Raises:
            ValueError: if the seed, the turn order or the query is not usable.
        """
        options = options or {}
        query, order = options.get("query"), options.get("turn_order")
        if query is not None:
            query = self._given_query(query)
        if order is not None:
            order = check_turn_order(order, self.possible_agents)
        # Options are checked by now: a refused reset leaves the schedule where it was.
        if self._schedule is None or seed is not None:
            self._schedule = self._new_schedule(seed)
        elif self.episode.touched:
            self._schedule.played()
        self._start(Episode(self.rules, *self._schedule.deal(query, order)))

    def observe(self, agent: str) -> Observation:
        """Return what an agent sees, int64 [L], left-padded with -1."""
        return pad_left(self.episode.observe(agent), self.rules.observation_width)

    def step(self, action: Any) -> None:
        """Let the selected agent write (or, after the end, take its leave with None).

        Raises:
            ValueError: if the action is not legal; nothing has changed then.
            RewardError: if the reward fails.
        """
        if self.terminations[self.agent_selection]:
            self._was_dead_step(action)
            return
        episode, agent = self.episode, self.agent_selection
        finished = len(episode.turns)
        episode.submit(action)
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        if episode.over:
            queries, responses = episode.scored_queries(), episode.responses()
            batch = score_batch(self.rules.reward, queries, responses)
            parts = [batch.parts_of(seat) for seat in range(len(responses))]
            episode.settle(batch.scores, parts=parts)
            self.rewards = episode.payoffs()
            self.terminations = dict.fromkeys(self.agents, True)
        self.infos = {name: episode.info(name) for name in self.agents}
        self.agent_selection = episode.agent
        self._accumulate_rewards()
        self._deads_step_first()
        if self.render_mode == "human":
            self._print_new(finished)

    def render(self) -> str | None:
        """Return the dialogue so far ("ansi"); None in "human" mode, which prints as it goes."""
        if self.render_mode is None:
            logger.warn("render() was called without a render_mode")
        return render.dialogue(self.episode) if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def _action_space(self) -> spaces.Space[Any]:
        space = self.rules.action_space
        if isinstance(space, spaces.Discrete):
            return spaces.Discrete(int(space.n))
        return spaces.MultiDiscrete(space.nvec, start=space.start)

    def _new_schedule(self, seed: int | None) -> EpisodeSchedule:
        if seed is None:
            seed = int(np.random.SeedSequence().generate_state(1)[0])
        return EpisodeSchedule(self._queries, self.rules.agents, self.role_schedule, seed)

    def _given_query(self, query: Any) -> Query:
        if isinstance(query, str):
            # A query of the split has an answer and metadata that its bare text has not.
            known = next((own for own in self._queries or () if own.text == query), None)
            query = self.rules.task.query_from_text(query) if known is None else known
        if not isinstance(query, Query):
            raise ValueError(f"options['query'] must be text or a Query, got {query!r}")
        self.rules.check_query(query)
        return query

    def _start(self, episode: Episode) -> None:
        self.episode = episode
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: episode.info(agent) for agent in self.agents}
        self.agent_selection = episode.agent
        if self.render_mode == "human":
            print(render.opening(episode))

    def _clear_rewards(self) -> None:
        # PettingZoo's own writes the int 0; rewards are floats at every step here.
        self.rewards = dict.fromkeys(self.rewards, 0.0)

    def _print_new(self, finished: int) -> None:
        lines = [render.turn_line(turn) for turn in self.episode.turns[finished:]]
        for line in [*lines, *render.payment_lines(self.episode)]:
            print(line)


def env(  # noqa: PLR0913  (the keywords of the game)
    task: str | Task = "target",
    *,
    tokenizer: Any = None,
    split: str | None = "train",
    data: str | Path | None = None,
    action_level: str = "response",
    n_agents: int = 2,
    knowledge_transfer: bool = True,
    reward_mixing: MixingSpec = "sum",
    role_schedule: str = "fixed",
    max_response_tokens: int | None = None,
    max_prompt_tokens: int | None = None,
    reward: RewardSpec | None = None,
    chat: ChatSettings | None = None,
    render_mode: str | None = None,
) -> OrderEnforcingWrapper[str, Observation, Any]:
    """Make the game behind PettingZoo's check of the order of calls.

    The arguments are those of CoryEnv. AssertOutOfBoundsWrapper is not stacked: the game itself
    refuses an illegal action, with a ValueError.
    """
    return OrderEnforcingWrapper(
        CoryEnv(
            task,
            tokenizer=tokenizer,
            split=split,
            data=data,
            action_level=action_level,
            n_agents=n_agents,
            knowledge_transfer=knowledge_transfer,
            reward_mixing=reward_mixing,
            role_schedule=role_schedule,
            max_response_tokens=max_response_tokens,
            max_prompt_tokens=max_prompt_tokens,
            reward=reward,
            chat=chat,
            render_mode=render_mode,
        )
    )
