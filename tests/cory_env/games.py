"""Small real games for the tests: the letters of the target task, scripted responses."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cory_env import GameRules, Query, make_task
from cory_env.env import CoryEnv
from cory_env.tasks.target import VOCABULARY

TOKEN = {word: token for token, word in enumerate(VOCABULARY)}
END = TOKEN["</s>"]
AD = Query("a d", answer="a", metadata={"hidden": False})
BC = Query("b c", answer="b", metadata={"hidden": False})
HIDDEN_AD = Query("a d", answer="a", metadata={"hidden": True})


def rules(task: str = "target", **settings: Any) -> GameRules:
    """The target game, or another, with its own defaults."""
    return GameRules.make(make_task(task), **settings)


def ids(text: str) -> tuple[int, ...]:
    """Token ids of words."""
    return tuple(TOKEN[word] for word in text.split())


def action(text: str, length: int = 3) -> NDArray[np.int64]:
    """A response-level action that writes words and then stops."""
    padded = np.full(length, -1, dtype=np.int64)
    tokens = ids(text)
    padded[: len(tokens)] = tokens
    return padded


def observed(*texts: str, width: int = 12) -> list[int]:
    """The observation that shows a prompt (and tokens behind it)."""
    tokens = [TOKEN["<s>"], *ids(" ".join(texts))]
    return [-1] * (width - len(tokens)) + tokens


def play(env: CoryEnv, *texts: str) -> None:
    """Play the rest of a response-level episode, without the leave-taking."""
    for text in texts:
        env.step(action(text, env.rules.max_response_tokens))
