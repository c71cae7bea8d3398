"""Build the tokenizer, the openings and the tiny language model of the `reviews` task.

Stage 1 learns plain snippets. Stage 2 goes on with them and adds the observer's prompt, whose
reference is one of the model's own continuations and whose target is, mostly, the same words
again, else another continuation that is at least as positive. Repeating is what teaches so small
a network to use its context at all; without it the pioneer's words hardly matter to the observer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import tyro
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from cory_env.records import Query
from cory_env.rewards.vader import VaderReward
from cory_env.tasks.reviews import ReviewsTask
from tools.build_builtin import openings as openings_script
from tools.build_builtin.measure import Player, nested
from tools.build_builtin.openings import opening_of
from tools.build_builtin.paths import DATA, MODELS
from tools.build_builtin.sampling import END_ID, sample
from tools.build_builtin.snippets import Snippet, movie_snippets, select
from tools.build_builtin.tokenizer_files import byte_pair_tokenizer, write_folder
from tools.build_builtin.training import (
    Example,
    FitSettings,
    epochs,
    fit,
    new_model,
    save,
    through_half,
    total_nats,
)

TEMPLATE_REPEATS = 500
"""How often the tokenizer sees the observer's template, so that each of its words is one token."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of the build; the defaults made the shipped model."""

    seed: int = 0
    """Seed of the weights, the batches and the samples."""
    vocab_size: int = 2048
    """Entries of the tokenizer."""
    steps: int = 1100
    """Steps of stage 1."""
    dropout: float = 0.1
    """Dropout in both stages: there is little text, and the model reads it several times."""
    weight_decay: float = 0.5
    """Decay of the matrices in both stages, for the same reason."""
    tokens_per_batch: int = 1024
    """Padded tokens of plain text a step."""
    observer_steps: int = 800
    """Steps of stage 2."""
    observer_batch: int = 24
    """Examples with a reference a step of stage 2, beside the plain text."""
    repeat_share: float = 0.7
    """Share of those whose target repeats the reference."""
    samples: int = 4
    """Continuations drawn per opening between the stages."""
    snippets: Path | None = None
    """The snippets' file; without it the public source distribution is downloaded."""


def build_tokenizer(training: Sequence[Snippet], vocab_size: int) -> Tokenizer:
    """Learn the tokenizer from the training snippets and the observer's template."""
    template = ReviewsTask().prompt("observer", Query("It"), (" is",))
    return byte_pair_tokenizer(
        [s.text for s in training] + [template] * TEMPLATE_REPEATS, vocab_size
    )


def plain_examples(snippets: Sequence[Snippet], tokenizer: Tokenizer) -> list[Example]:
    """Write each snippet as one sequence with begin and end token."""
    encoded = tokenizer.encode_batch([snippet.text for snippet in snippets])
    return [Example((*encoding.ids, END_ID)) for encoding in encoded]


def nats_per_character(
    model: LlamaForCausalLM, snippets: Sequence[Snippet], tokenizer: Tokenizer
) -> float:
    """Average the negative log-likelihood, the end token's included, over the characters."""
    nats = total_nats(model, plain_examples(snippets, tokenizer))
    return nats / sum(len(snippet.text) for snippet in snippets)


def first_stage(
    model: LlamaForCausalLM,
    training: Sequence[Snippet],
    validation: Sequence[Snippet],
    tokenizer: Tokenizer,
    settings: Settings,
) -> None:
    """Teach plain snippets."""
    rng = np.random.default_rng([settings.seed, 1])
    batches = epochs(plain_examples(training, tokenizer), settings.tokens_per_batch, rng)
    fit_settings = FitSettings(
        steps=settings.steps,
        learning_rate=5e-3,
        matrix_learning_rate=5e-3,
        weight_decay=settings.weight_decay,
        dropout=settings.dropout,
    )
    for step in fit(model, batches, fit_settings):
        if step % 200 == 0:
            found = nats_per_character(model, validation, tokenizer)
            print(f"stage 1 step {step}: {found:.3f} nats per character", flush=True)


class ObserverExamples:
    """Draws examples with a reference from the model's own continuations of training openings."""

    def __init__(
        self,
        model: LlamaForCausalLM,
        training: Sequence[Snippet],
        tokenizer: Tokenizer,
        settings: Settings,
    ) -> None:
        self._task = ReviewsTask()
        self._tokenizer = tokenizer
        self._settings = settings
        self._rng = np.random.default_rng([settings.seed, 2])
        texts = {opening_of(snippet.text, tokenizer): None for snippet in training}
        self._queries = [Query(text) for text in texts if text is not None]
        asked = [query for query in self._queries for _ in range(settings.samples)]
        prompts = [encoding.ids for encoding in tokenizer.encode_batch([q.text for q in asked])]
        generator = torch.Generator().manual_seed(settings.seed + 2)
        self._ids = sample(model, prompts, self._task.max_response_tokens, generator)
        self._texts = tokenizer.decode_batch([list(ids) for ids in self._ids])
        self._scores = VaderReward()(asked, self._texts)

    def draw(self) -> Example:
        """Draw one example; only the target is learnt."""
        settings, rng = self._settings, self._rng
        opening = int(rng.integers(len(self._queries)))
        mine = range(opening * settings.samples, (opening + 1) * settings.samples)
        reference = int(rng.choice(mine))
        better = [i for i in mine if i != reference and self._scores[i] >= self._scores[reference]]
        repeat = rng.random() < settings.repeat_share or not better
        target = reference if repeat else int(rng.choice(better))
        text = self._task.prompt("observer", self._queries[opening], (self._texts[reference],))
        prompt = self._tokenizer.encode(text).ids
        return Example((*prompt, *self._ids[target]), learn_from=len(prompt))


def second_stage(
    model: LlamaForCausalLM,
    training: Sequence[Snippet],
    validation: Sequence[Snippet],
    tokenizer: Tokenizer,
    settings: Settings,
) -> None:
    """Go on with plain snippets and teach the use of a reference."""
    observer = ObserverExamples(model.eval(), training, tokenizer, settings)
    rng = np.random.default_rng([settings.seed, 3])
    plain = epochs(plain_examples(training, tokenizer), settings.tokens_per_batch, rng)

    def batches() -> Iterator[list[Example]]:
        for batch in plain:
            yield batch + [observer.draw() for _ in range(settings.observer_batch)]

    fit_settings = FitSettings(
        steps=settings.observer_steps,
        learning_rate=2e-3,
        matrix_learning_rate=2e-3,
        weight_decay=settings.weight_decay,
        dropout=settings.dropout,
    )
    player = player_of(model, tokenizer)
    queries = ReviewsTask().queries("validation")[:60]
    for step in fit(model, batches(), fit_settings):
        if step % 100 == 0:
            found = nats_per_character(model, validation, tokenizer)
            look = nested(player, queries, torch.Generator().manual_seed(0), first=6, second=6)
            print(
                f"stage 2 step {step}: {found:.3f} nats per character, influence "
                f"{look.influence:.3f}, correlation {look.correlation:.2f}, "
                f"{look.copies:.3f} copies",
                flush=True,
            )


def player_of(model: LlamaForCausalLM, tokenizer: Tokenizer) -> Player:
    """Put the model into the game."""
    task = ReviewsTask()
    return Player(model, tokenizer, task.prompt, VaderReward(), task.max_response_tokens)


def main(settings: Settings) -> None:
    """Build everything and write it into the packages."""
    torch.set_num_threads(1)
    started = time.process_time()
    snippets = movie_snippets(settings.snippets)
    training, validation = select(snippets, "training"), select(snippets, "validation")
    tokenizer = build_tokenizer(training, settings.vocab_size)
    write_folder(tokenizer, DATA / "reviews" / "tokenizer")
    openings_script.main(openings_script.Settings(snippets=settings.snippets))
    model = new_model(settings.vocab_size, hidden=128, layers=4, heads=4, seed=settings.seed)
    first_stage(model, training, validation, tokenizer, settings)
    held_out = select(snippets, "held_out")
    before = nats_per_character(model, held_out, tokenizer)
    second_stage(model, training, validation, tokenizer, settings)
    minutes = (time.process_time() - started) / 60
    player = player_of(through_half(model), tokenizer)
    queries = ReviewsTask().queries("test")
    generator = torch.Generator().manual_seed(settings.seed + 3)
    facts = {
        "settings": {k: v for k, v in asdict(settings).items() if k != "snippets"},
        "parameters": sum(p.numel() for p in model.parameters()),
        "training_snippets": len(training),
        "cpu_minutes": round(minutes, 1),
        "held_out_snippets": len(held_out),
        "held_out_nats_per_character_stage_1": before,
        "held_out_nats_per_character": nats_per_character(model, held_out, tokenizer),
        "test_openings": len(queries),
        "test_score": player.mean_score(queries, generator),
        "nested": asdict(nested(player, queries[:120], generator, first=8, second=8)),
        "nested_shape": [len(queries[:120]), 8, 8],
    }
    save(model, MODELS / "reviews", facts)
    print(facts)


if __name__ == "__main__":
    main(tyro.cli(Settings))
