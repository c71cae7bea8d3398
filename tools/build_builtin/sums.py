"""Build the tokenizer and the tiny model of the `sums` task.

Stage 1 learns the query-only format until a chosen share of held-out problems is right. Stage 2
learns to read a reference while the query-only answers of stage 1 are rehearsed. References and
targets are the model's own answers: a right reference is repeated, a wrong one is sometimes
repeated, else the target is another answer to the same problem. The truth is not taught again,
so the model comes to use what it reads without becoming better at the problem itself, and
reinforcement learning has something left to do.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
import tyro
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from cory_env.records import Query
from cory_env.rewards.exact_number import ExactNumber
from cory_env.tasks.sums import SumsTask, problems
from tools.build_builtin.measure import Player, nested
from tools.build_builtin.paths import DATA, MODELS
from tools.build_builtin.sampling import END_ID
from tools.build_builtin.tokenizer_files import character_tokenizer, write_folder
from tools.build_builtin.training import (
    Example,
    FitSettings,
    fit,
    new_model,
    save,
    through_half,
)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of the build; the defaults made the shipped model."""

    seed: int = 0
    """Seed of the weights, the batches and the samples."""
    steps: int = 2500
    """Length of the learning-rate schedule of stage 1, in steps; it normally stops earlier."""
    stop_at: float = 0.5
    """Stage 1 stops when this share of sampled validation answers is right."""
    observer_steps: int = 800
    """Steps of stage 2."""
    observer_share: float = 0.6
    """Share of stage 2's examples that have a reference in the prompt."""
    right_share: float = 0.5
    """Share of those references that are right."""
    repeat_wrong_share: float = 0.3
    """Share of the wrong references that the target repeats."""
    samples: int = 6
    """Answers drawn per problem between the stages."""
    batch_size: int = 96
    """Examples a step."""


def player_of(model: LlamaForCausalLM, tokenizer: Tokenizer) -> Player:
    """Put the model into the game."""
    task = SumsTask()
    return Player(model, tokenizer, task.prompt, ExactNumber(), task.max_response_tokens)


class Examples:
    """Makes training sequences of the task's own prompts; only the answer is learnt."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._prompt = SumsTask().prompt

    def make(self, query: Query, references: Sequence[str], answer: str) -> Example:
        """Write a prompt and an answer text (with its leading space) as one sequence."""
        role = "observer" if references else "pioneer"
        prompt = self._tokenizer.encode(self._prompt(role, query, references)).ids
        target = self._tokenizer.encode(answer, add_special_tokens=False).ids
        return Example((*prompt, *target, END_ID), learn_from=len(prompt))


def first_stage(
    model: LlamaForCausalLM, tokenizer: Tokenizer, settings: Settings
) -> tuple[int, float]:
    """Teach the query-only format; return the steps done and the validation share right."""
    make = Examples(tokenizer).make
    examples = [make(query, (), f" {query.answer}") for query in problems("model")]
    rng = np.random.default_rng([settings.seed, 1])

    def batches() -> Iterator[list[list[Example]]]:
        while True:
            order = rng.permutation(len(examples))
            for start in range(0, len(order) - settings.batch_size + 1, settings.batch_size):
                yield [[examples[i] for i in order[start : start + settings.batch_size]]]

    fit_settings = FitSettings(steps=settings.steps, learning_rate=3e-3, matrix_learning_rate=3e-3)
    player = player_of(model, tokenizer)
    right, step = 0.0, 0
    for step in fit(model, batches(), fit_settings):
        if step % 25 == 0 and step >= 200:  # before that hardly anything is right
            right = _validate(player, settings.seed)
            print(f"stage 1 step {step}: {right:.3f} right", flush=True)
            if right >= settings.stop_at:
                break
    return step, right


def _validate(player: Player, seed: int) -> float:
    player.model.eval()
    queries = problems("validation")
    return player.mean_score(queries[:950], torch.Generator().manual_seed(seed))


class ObserverExamples:
    """Draws the examples of stage 2 from the answers that the model gave after stage 1."""

    def __init__(self, player: Player, settings: Settings) -> None:
        self._settings = settings
        self._make = Examples(player.tokenizer).make
        self._queries = problems("model")
        self._rng = np.random.default_rng([settings.seed, 2])
        asked = [query for query in self._queries for _ in range(settings.samples)]
        generator = torch.Generator().manual_seed(settings.seed + 2)
        answers = player.respond([player.prompt("pioneer", q, ()) for q in asked], generator)
        right = np.asarray(ExactNumber()(asked, answers)) == 1.0
        self._answers = np.asarray(answers, dtype=object).reshape(-1, settings.samples)
        self._right = np.argwhere(right.reshape(-1, settings.samples))
        self._wrong = np.argwhere(~right.reshape(-1, settings.samples))

    def draw(self) -> Example:
        """Draw a rehearsed answer or one after a reference."""
        settings, rng = self._settings, self._rng
        if rng.random() >= settings.observer_share:
            query = int(rng.integers(len(self._queries)))
            answer = self._answers[query, rng.integers(settings.samples)]
            return self._make(self._queries[query], (), answer)
        if rng.random() < settings.right_share:
            query, column = rng.choice(self._right)
            repeat = True
        else:
            query, column = rng.choice(self._wrong)
            repeat = rng.random() < settings.repeat_wrong_share
        reference = self._answers[query, column]
        other = (column + rng.integers(1, settings.samples)) % settings.samples
        target = reference if repeat else self._answers[query, other]
        return self._make(self._queries[query], (reference,), target)


def second_stage(model: LlamaForCausalLM, tokenizer: Tokenizer, settings: Settings) -> None:
    """Teach the use of a reference while rehearsing the answers of stage 1."""
    player = player_of(model.eval(), tokenizer)
    examples = ObserverExamples(player, settings)

    def batches() -> Iterator[list[list[Example]]]:
        while True:
            yield [[examples.draw() for _ in range(settings.batch_size)]]

    fit_settings = FitSettings(
        steps=settings.observer_steps, learning_rate=1e-3, matrix_learning_rate=1e-3
    )
    queries = problems("validation")[:100]
    for step in fit(model, batches(), fit_settings):
        if step % 200 == 0:
            model.eval()
            found = nested(player, queries, torch.Generator().manual_seed(0), first=4, second=4)
            right = _validate(player, settings.seed)
            print(
                f"stage 2 step {step}: {right:.3f} right, influence {found.influence:.3f}, "
                f"gap {found.gap or 0:.3f}, second {found.mean_r2:.3f} right, "
                f"{found.copies:.3f} copies",
                flush=True,
            )


def main(settings: Settings) -> None:
    """Build everything and write it into the packages."""
    torch.set_num_threads(1)
    started = time.process_time()
    tokenizer = character_tokenizer()
    write_folder(tokenizer, DATA / "sums" / "tokenizer")
    model = new_model(tokenizer.get_vocab_size(), hidden=128, layers=4, heads=4, seed=settings.seed)
    steps, right = first_stage(model, tokenizer, settings)
    second_stage(model, tokenizer, settings)
    minutes = (time.process_time() - started) / 60
    player = player_of(through_half(model), tokenizer)
    queries = problems("test")
    generator = torch.Generator().manual_seed(settings.seed + 3)
    facts = {
        "settings": asdict(settings),
        "parameters": sum(p.numel() for p in model.parameters()),
        "steps_stage_1": steps,
        "validation_right_stage_1": right,
        "cpu_minutes": round(minutes, 1),
        "test_right": player.mean_score(queries, generator),
        "test_problems": len(queries),
        "nested": asdict(nested(player, queries[:200], generator, first=8, second=8)),
        "nested_shape": [len(queries[:200]), 8, 8],
    }
    save(model, MODELS / "sums", facts)
    print(facts)


if __name__ == "__main__":
    main(tyro.cli(Settings))
