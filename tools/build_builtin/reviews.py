"""Build the tokenizer, the openings and the tiny language model of the `reviews` task.

Both stages learn plain snippets and the observer's prompt side by side. In stage 1 the reference
is the snippet's own continuation of its opening, and the target repeats it. In stage 2 the
references are the model's own continuations; the target is sometimes the same words again, else
another continuation that is at least as positive. Repeating is what teaches so small a network to
use its context at all; without it the pioneer's words hardly matter to the observer. The share of
repeats in stage 2 then sets how much they matter: 0.7 left an influence of 0.64, 0.3 one of 0.20.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import tyro
from safetensors.torch import load_model, save_model
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from cory_env.records import Query
from cory_env.rewards.vader import VaderReward
from cory_env.tasks.reviews import ReviewsTask
from tools.build_builtin import openings as openings_script
from tools.build_builtin.measure import Player, nested
from tools.build_builtin.openings import opening_of
from tools.build_builtin.paths import CACHE, DATA, MODELS
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

UNRECORDED = ("snippets", "reuse_stage_1")
"""Settings that change how a build comes about and not its result."""

STAGE_1 = CACHE / "reviews_stage_1.safetensors"
TEMPLATE_REPEATS = 500
"""How often the tokenizer sees the observer's template, so that each of its words is one token."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of the build; the defaults made the shipped model."""

    seed: int = 0
    """Seed of the weights, the batches and the samples."""
    vocab_size: int = 2048
    """Entries of the tokenizer."""
    steps: int = 1800
    """Steps of stage 1."""
    observer_steps: int = 300
    """Steps of stage 2."""
    tokens_per_batch: int = 1024
    """Padded tokens of plain text a step."""
    observer_batch: int = 12
    """Examples with a reference a step, beside the plain text."""
    repeat_share: float = 0.3
    """Share of those of stage 2 whose target repeats the reference."""
    samples: int = 3
    """Continuations drawn per opening between the stages."""
    dropout: float = 0.1
    """Dropout while training: there is little text, and the model reads it several times."""
    weight_decay: float = 0.5
    """Decay of the matrices, for the same reason."""
    reuse_stage_1: bool = False
    """Take stage 1 from the cache, where the last build left it, and repeat only stage 2."""
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


@dataclass(frozen=True)
class Continuations:
    """Openings of training snippets with one or more continuations each.

    Attributes:
        queries: the openings.
        ids: token ids of the continuations by opening; the same number for each.
    """

    queries: list[Query]
    ids: list[list[tuple[int, ...]]]


def own_words(training: Sequence[Snippet], tokenizer: Tokenizer) -> Continuations:
    """Continue each opening as its snippet does, up to the longest response."""
    found: dict[str, list[tuple[int, ...]]] = {}
    for snippet in training:
        opening = opening_of(snippet.text, tokenizer)
        if opening is not None:
            whole = tokenizer.encode(snippet.text, add_special_tokens=False).ids
            start = len(tokenizer.encode(opening, add_special_tokens=False).ids)
            rest = (*whole[start:], END_ID)[: ReviewsTask.max_response_tokens]
            found.setdefault(opening, [rest])
    return Continuations([Query(text) for text in found], list(found.values()))


def own_samples(
    model: LlamaForCausalLM, given: Continuations, tokenizer: Tokenizer, settings: Settings
) -> Continuations:
    """Let the model continue the same openings, several times each."""
    texts = [query.text for query in given.queries for _ in range(settings.samples)]
    prompts = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
    generator = torch.Generator().manual_seed(settings.seed + 2)
    drawn = sample(model.eval(), prompts, ReviewsTask.max_response_tokens, generator)
    starts = range(0, len(drawn), settings.samples)
    return Continuations(given.queries, [drawn[i : i + settings.samples] for i in starts])


class ObserverExamples:
    """Draws sequences with the observer's prompt, of which only the answer is learnt."""

    def __init__(
        self, continuations: Continuations, tokenizer: Tokenizer, repeat_share: float, seed: int
    ) -> None:
        self._queries, self._ids = continuations.queries, continuations.ids
        self._tokenizer = tokenizer
        self._repeat_share = repeat_share
        self._rng = np.random.default_rng([seed, 2])
        self._task = ReviewsTask()
        self._vader = VaderReward()

    def draw(self) -> Example:
        """Draw a reference and, as target, the same again or a continuation not less positive."""
        rng = self._rng
        opening = int(rng.integers(len(self._queries)))
        query, options = self._queries[opening], self._ids[opening]
        texts = self._tokenizer.decode_batch([list(ids) for ids in options])
        chosen = target = int(rng.integers(len(options)))
        if rng.random() >= self._repeat_share:
            scores = self._vader([query] * len(texts), texts)
            others = [i for i in range(len(texts)) if i != chosen and scores[i] >= scores[chosen]]
            target = int(rng.choice(others)) if others else chosen
        text = self._task.prompt("observer", query, (texts[chosen],))
        prompt = self._tokenizer.encode(text).ids
        return Example((*prompt, *options[target]), learn_from=len(prompt))


def run_stage(
    player: Player,
    observer: ObserverExamples,
    training: Sequence[Snippet],
    validation: Sequence[Snippet],
    stage: int,
    settings: Settings,
) -> None:
    """Train on plain snippets and the observer's examples side by side."""
    torch.manual_seed(settings.seed + 100 * stage)  # dropout draws from torch's own stream
    rng = np.random.default_rng([settings.seed, 10 + stage])
    plain = epochs(plain_examples(training, player.tokenizer), settings.tokens_per_batch, rng)

    def batches() -> Iterator[list[list[Example]]]:
        for batch in plain:
            yield [batch, [observer.draw() for _ in range(settings.observer_batch)]]

    rate = {1: 5e-3, 2: 1e-3}[stage]
    fit_settings = FitSettings(
        steps={1: settings.steps, 2: settings.observer_steps}[stage],
        learning_rate=rate,
        matrix_learning_rate=rate,
        weight_decay=settings.weight_decay,
        dropout=settings.dropout,
    )
    queries = ReviewsTask().queries("validation")[:50]
    for step in fit(player.model, batches(), fit_settings):
        if step % 150 == 0:
            found = nats_per_character(player.model, validation, player.tokenizer)
            look = nested(player, queries, torch.Generator().manual_seed(0), first=5, second=5)
            print(
                f"stage {stage} step {step}: {found:.3f} nats per character, influence "
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
    player = player_of(model, tokenizer)
    first = own_words(training, tokenizer)
    observer = ObserverExamples(first, tokenizer, 1.0, settings.seed)
    if settings.reuse_stage_1:
        load_model(model, STAGE_1)
    else:
        run_stage(player, observer, training, validation, 1, settings)
        STAGE_1.parent.mkdir(parents=True, exist_ok=True)
        save_model(model, str(STAGE_1))
    held_out = select(snippets, "held_out")
    openings = [s for part in openings_script.SPLITS.values() for s in select(snippets, part)]
    before = nats_per_character(model, held_out, tokenizer)
    second = own_samples(model, first, tokenizer, settings)
    observer = ObserverExamples(second, tokenizer, settings.repeat_share, settings.seed + 1)
    run_stage(player, observer, training, validation, 2, settings)
    minutes = (time.process_time() - started) / 60
    player = player_of(through_half(model), tokenizer)
    queries = ReviewsTask().queries("test")
    generator = torch.Generator().manual_seed(settings.seed + 3)
    facts = {
        "settings": {k: v for k, v in asdict(settings).items() if k not in UNRECORDED},
        "parameters": sum(p.numel() for p in model.parameters()),
        "training_snippets": len(training),
        "cpu_minutes": round(minutes, 1),
        "held_out_snippets": len(held_out),
        "openings_snippets": len(openings),
        "openings_nats_per_character": nats_per_character(model, openings, tokenizer),
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
