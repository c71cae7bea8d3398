"""Train the hidden sentiment scorer of the `reviews` task: logistic regression by AdaGrad."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import tyro
from numpy.typing import NDArray

from cory_env.records import Query
from cory_env.rewards.hidden_sentiment import WEIGHTS_FILE, LinearSentiment, feature_buckets
from cory_env.rewards.vader import VaderReward
from tools.build_builtin.openings import SPLITS
from tools.build_builtin.paths import write_bytes, write_text
from tools.build_builtin.snippets import Snippet, movie_snippets, select


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of the build; the defaults made the shipped scorer."""

    seed: int = 0
    """Seed of the order of the snippets."""
    buckets: int = 2**16
    """Hash buckets, each one weight."""
    epochs: int = 6
    """Passes over the snippets."""
    learning_rate: float = 0.3
    """AdaGrad's step size."""
    l2: float = 1e-5
    """Decay of the weights that a snippet touches."""
    rating_scale: float = 1.0
    """The target is the logistic of this times the human rating: a faint rating counts as doubt."""
    snippets: Path | None = None
    """The snippets' file; without it the public source distribution is downloaded."""


def train(snippets: Sequence[Snippet], settings: Settings) -> LinearSentiment:
    """Fit the chance that a snippet is positive, as its mean human rating suggests it."""
    rows = [
        (feature_buckets(s.text, settings.buckets), _logistic(settings.rating_scale * s.rating))
        for s in snippets
    ]
    rows = [(found, target) for found, target in rows if len(found)]
    weights = np.zeros(settings.buckets)
    squares = np.full(settings.buckets, 1e-2)
    bias, bias_square = 0.0, 1e-2
    rng = np.random.default_rng(settings.seed)
    for _ in range(settings.epochs):
        for index in rng.permutation(len(rows)):
            found, target = rows[index]
            scale = 1.0 / np.sqrt(len(found))
            logit = bias + scale * weights[found].sum()
            error = _logistic(logit) - target
            gradient = error * scale + settings.l2 * weights[found]
            squares[found] += np.square(gradient)
            weights[found] -= settings.learning_rate * gradient / np.sqrt(squares[found])
            bias_square += error**2
            bias -= settings.learning_rate * error / np.sqrt(bias_square)
    # What is stored is half precision; measure that, not what it was rounded from.
    return LinearSentiment(weights.astype(np.float16).astype(np.float32), float(bias))


def _logistic(value: float) -> float:
    return float(1.0 / (1.0 + np.exp(-value)))


def accuracy(scores: Sequence[float] | NDArray[np.float64], snippets: Sequence[Snippet]) -> float:
    """Share of snippets whose score has the sign of the rating; a score of 0 counts as negative."""
    hits = [(score > 0) == (s.rating > 0) for score, s in zip(scores, snippets, strict=True)]
    return float(np.mean(hits))


def main(settings: Settings) -> None:
    """Train, measure on the held-out snippets and write the weights."""
    snippets = movie_snippets(settings.snippets)
    scorer = train(select(snippets, "training"), settings)
    held_out = [s for part in ("validation", "held_out") for s in select(snippets, part)]
    openings = [s for part in SPLITS.values() for s in select(snippets, part)]
    vader = VaderReward()
    facts = {
        "settings": {k: v for k, v in asdict(settings).items() if k != "snippets"},
        "training_snippets": len(select(snippets, "training")),
        "held_out_snippets": len(held_out),
        "held_out_accuracy": accuracy([scorer.logit(s.text) for s in held_out], held_out),
        "held_out_accuracy_of_vader": accuracy(
            vader([Query("")] * len(held_out), [s.text for s in held_out]), held_out
        ),
        "openings_snippets": len(openings),
        "openings_accuracy": accuracy([scorer.logit(s.text) for s in openings], openings),
    }
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer, weights=scorer.weights.astype(np.float16), bias=np.float64(scorer.bias)
    )
    write_bytes(WEIGHTS_FILE, buffer.getvalue())
    write_text(WEIGHTS_FILE.with_name("hidden_scorer.json"), json.dumps(facts, indent=2) + "\n")
    print(json.dumps(facts, indent=2))


if __name__ == "__main__":
    main(tyro.cli(Settings))
