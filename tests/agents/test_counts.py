"""How much arithmetic an iteration may do: counts of forward passes and tokens, not seconds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from agents.models import LanguageModel
from agents.models.short_way import ShortWay
from tests.agents.runs import training_of

# 6 episodes of 2 agents; responses of up to 3 tokens, from a model of random weights.
EPISODES, AGENTS, LENGTH = 6, 2, 3


@pytest.fixture(name="counted")
def counted_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Counter[str], Any]:
    """What the transformers' trunks are asked for in the second iteration, in tokens and passes."""
    training = training_of(
        tmp_path / "run",
        iterations=3,
        batch_size=EPISODES * AGENTS,
        minibatch_size=3,
        update_epochs=2,
        eval_interval=100,
    )
    seen: Counter[str] = Counter()
    drawing, scoring = LanguageModel.trunk, LanguageModel.response_hidden
    feeding = ShortWay.feed

    def trunk(self: LanguageModel, ids: torch.Tensor, *args: Any, **options: Any) -> Any:
        seen["steps"] += 1
        seen["fed while drawing"] += ids.numel()
        return drawing(self, ids, *args, **options)

    def feed(self: ShortWay, ids: torch.Tensor, mask: Any) -> torch.Tensor:
        seen["steps"] += 1
        seen["fed while drawing"] += ids.numel()
        return feeding(self, ids, mask)

    def response_hidden(self: LanguageModel, prompts: torch.Tensor, ids: torch.Tensor) -> Any:
        trained = torch.is_grad_enabled()
        seen["trained" if trained else "reference"] += 1
        seen["rows trained" if trained else "rows of the reference"] += len(ids)
        return scoring(self, prompts, ids)

    monkeypatch.setattr(LanguageModel, "trunk", trunk)
    monkeypatch.setattr(ShortWay, "feed", feed)
    monkeypatch.setattr(LanguageModel, "response_hidden", response_hidden)
    training.trainer.run_iteration()
    return seen, training


def test_drawing_feeds_each_prompt_once_and_then_one_token_at_a_time(
    counted: tuple[Counter[str], Any],
) -> None:
    seen, training = counted
    longest = {
        agent: int(rollout.mask.sum(1).max())
        for agent, rollout in training.session.team.rollouts.items()
    }
    assert seen["steps"] == sum(longest.values()) <= AGENTS * LENGTH
    prompts = sum(
        EPISODES * int((r.prompt_ids >= 0).sum(1).max())
        for r in training.session.team.rollouts.values()
    )
    steps = sum(EPISODES * (length - 1) for length in longest.values())
    assert seen["fed while drawing"] == prompts + steps


def test_the_reference_reads_each_response_once_and_answers_nothing(
    counted: tuple[Counter[str], Any],
) -> None:
    seen, _ = counted
    assert seen["reference"] == AGENTS
    assert seen["rows of the reference"] == AGENTS * EPISODES


def test_the_policy_reads_each_response_once_in_each_pass_and_never_to_score_what_it_drew(
    counted: tuple[Counter[str], Any],
) -> None:
    seen, _ = counted
    passes, minibatches = 2, EPISODES // 3
    assert seen["trained"] == AGENTS * passes * minibatches
    assert seen["rows trained"] == AGENTS * passes * EPISODES


def test_only_what_is_learned_from_is_drawn(counted: tuple[Counter[str], Any]) -> None:
    _, training = counted
    records = training.session.env.records()
    assert len(records) == EPISODES
    assert training.session.queries.position == EPISODES
