"""Tests of cory_env/render.py."""

from __future__ import annotations

from cory_env.episode import Episode
from cory_env.render import dialogue
from tests.cory_env.games import AD, TOKEN, action, rules


def test_the_dialogue_grows_turn_by_turn() -> None:
    game = Episode(rules(), AD, ("agent_1", "agent_0"))
    assert dialogue(game) == "Query: a d"
    game.submit(action("a d b"))
    assert dialogue(game) == "Query: a d\nagent_1 (pioneer): 'a d b' [cut]"
    game.submit(action(""))
    game.settle([1.0, 0.0])
    assert dialogue(game).splitlines() == [
        "Query: a d",
        "agent_1 (pioneer): 'a d b' [cut]",
        "agent_0 (observer): ''",
        "agent_1 (pioneer) scored 1.000 and is paid 1.000",
        "agent_0 (observer) scored 0.000 and is paid 1.000",
    ]


def test_an_unfinished_turn_is_shown_at_token_level() -> None:
    game = Episode(rules(action_level="token"), AD, ("agent_0", "agent_1"))
    game.submit(TOKEN["c"])
    assert dialogue(game) == "Query: a d\nagent_0 (pioneer): 'c' ..."
