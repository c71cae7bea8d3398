"""Tests of the scripts that make the shipped data and models; nothing is downloaded."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
import torch

from cory_env.records import Query
from tools.build_builtin.hidden_scorer import Settings as ScorerSettings
from tools.build_builtin.hidden_scorer import train as train_scorer
from tools.build_builtin.measure import Player, nested
from tools.build_builtin.openings import opening_of, rows
from tools.build_builtin.paths import DATA
from tools.build_builtin.sampling import sample
from tools.build_builtin.snippets import PARTS, Snippet, near_duplicates, parse, part_of, select
from tools.build_builtin.tokenizer_files import byte_pair_tokenizer, character_tokenizer
from tools.build_builtin.training import (
    Example,
    FitSettings,
    collate,
    epochs,
    fit,
    new_model,
    total_nats,
)


def test_the_parts_cover_every_bucket_once() -> None:
    assert sorted(bucket for part in PARTS.values() for bucket in part) == list(range(100))


def test_the_part_depends_on_the_words_alone() -> None:
    assert part_of("It's a GREAT film!") == part_of("it s a great film")


def test_shares_of_the_parts() -> None:
    counts = {part: 0 for part in PARTS}
    for number in range(5000):
        counts[part_of(f"snippet number {number}")] += 1
    # Standard deviation of a share p is sqrt(p (1 - p) / 5000) <= 0.007; three of them.
    for part, buckets in PARTS.items():
        assert counts[part] / 5000 == pytest.approx(len(buckets) / 100, abs=0.021)


def test_parse_collapses_spaces_and_reads_the_rating() -> None:
    assert parse("1\t-0.6\tToo   tepid \r\n\r\n2\t2\tFine\r\n") == [
        Snippet("Too tepid", -0.6),
        Snippet("Fine", 2.0),
    ]


def test_parse_names_the_broken_line() -> None:
    with pytest.raises(ValueError, match="line 2 must have 3"):
        parse("1\t0.5\tFine\n2\tno rating\n")


def test_an_exact_repeat_is_kept_once() -> None:
    texts = ["The same words.", "the same words"]
    assert len(select([Snippet(text, 1.0) for text in texts], part_of(texts[0]))) == 1


def test_near_duplicates_share_ten_words_in_a_row() -> None:
    ten = "a b c d e f g h i j"
    training = [Snippet(f"x {ten} y", 1.0)]
    others = [Snippet(f"{ten.upper()}!", 1.0), Snippet("a b c d e f g h i k", 1.0)]
    assert near_duplicates(others, training) == {0}


def test_openings_are_whole_words_of_two_to_eight_tokens() -> None:
    tokenizer = character_tokenizer()
    # One token a character: "It is" is the longest beginning of at most 8, "It" of at most 4.
    assert opening_of("It is wonderful", tokenizer) in {"It", "It is"}
    assert opening_of("Extraordinary film", tokenizer) is None
    assert opening_of("Word", tokenizer) is None


def test_an_opening_of_two_splits_stays_in_one() -> None:
    texts = [f"A film of number {number} and more" for number in range(300)]
    tokenizer = byte_pair_tokenizer(texts, 300)
    found = rows([Snippet(text, 1.0) for text in texts], tokenizer)
    queries = [row["query"] for row in found]
    assert len(queries) == len(set(queries)) > 0


def test_the_shipped_character_tokenizer_is_the_one_the_script_makes() -> None:
    shipped = (DATA / "sums" / "tokenizer" / "tokenizer.json").read_text(encoding="utf-8")
    assert shipped == character_tokenizer().to_str() + "\n"


def test_collate_learns_only_the_targets() -> None:
    ids, labels = collate([Example((1, 5, 6, 2), learn_from=2), Example((1, 7))])
    assert ids.tolist() == [[1, 5, 6, 2], [1, 7, 0, 0]]
    assert labels.tolist() == [[-100, -100, 6, 2], [-100, 7, -100, -100]]


def test_a_pass_uses_every_example_once_within_the_token_budget() -> None:
    examples = [Example(tuple(range(1, length + 1))) for length in (3, 9, 4, 4, 8, 2, 7)]
    batches = epochs(examples, 16, np.random.default_rng(0))
    seen: list[Example] = []
    while len(seen) < len(examples):
        batch = next(batches)
        assert len(batch) * max(len(example.ids) for example in batch) <= 16
        seen += batch
    assert sorted(len(e.ids) for e in seen) == [2, 3, 4, 4, 7, 8, 9]


def test_fitting_learns_one_sequence() -> None:
    model = new_model(16, hidden=16, layers=1, heads=2, seed=0)
    batch = [Example((1, 5, 6, 7, 2))]
    settings = FitSettings(steps=200, learning_rate=1e-2, matrix_learning_rate=1e-2, warmup=5)
    assert list(fit(model, iter([[batch]] * 200), settings)) == list(range(1, 201))
    # From about log(16) = 2.8 nats a token.
    assert total_nats(model, batch) / 4 < 0.1


def test_cached_left_padded_sampling_draws_from_the_model() -> None:
    # A model that has learnt one sequence almost surely continues each of its beginnings with it.
    model = new_model(16, hidden=16, layers=1, heads=2, seed=0)
    batch = [Example((1, 5, 6, 7, 2))]
    settings = FitSettings(steps=200, learning_rate=1e-2, matrix_learning_rate=1e-2, warmup=5)
    assert len(list(fit(model, iter([[batch]] * 200), settings))) == 200
    generator = torch.Generator().manual_seed(0)
    prompts = [(1,), (1, 5, 6), (1, 5)]
    drawn = sample(model.eval(), prompts, 8, generator)
    assert drawn == [(5, 6, 7, 2), (7, 2), (6, 7, 2)]
    assert sample(model, prompts, 1, generator) == [(5,), (7,), (6,)]


def test_nested_sampling_of_a_copying_observer() -> None:
    class Copier(Player):
        """Writes 0 or 1 at random to a query and repeats what it reads behind a bar."""

        def respond(self, texts, generator):  # type: ignore[no-untyped-def]
            coins = torch.rand(len(texts), generator=generator) < 0.5
            pairs = zip(texts, coins, strict=True)
            return [t.split("|")[1] if "|" in t else str(int(coin)) for t, coin in pairs]

    model = new_model(16, hidden=16, layers=1, heads=2, seed=0)
    player = Copier(
        model,
        character_tokenizer(),
        lambda _role, query, earlier: "|".join([query.text, *earlier]),
        lambda _queries, responses: [float(text) for text in responses],
        1,
    )
    found = nested(player, [Query("q")] * 20, torch.Generator().manual_seed(0), first=6, second=3)
    assert found.influence == pytest.approx(1.0)
    assert found.correlation == pytest.approx(1.0)
    assert (found.gap, found.gap_within, found.copies) == (1.0, 1.0, 1.0)
    assert found.mean_r1 == found.mean_r2


def test_the_scorer_learns_the_sign_of_words() -> None:
    snippets = [Snippet(f"fine {n}", 2.0) for n in range(50)]
    snippets += [Snippet(f"poor {n}", -2.0) for n in range(50)]
    scorer = train_scorer(snippets, ScorerSettings(buckets=2**12))
    assert scorer.logit("fine day") > 0.5 > -0.5 > scorer.logit("poor day")


def test_batches_never_end() -> None:
    batches = epochs([Example((1, 2))], 4, np.random.default_rng(0))
    assert len(list(islice(batches, 5))) == 5
