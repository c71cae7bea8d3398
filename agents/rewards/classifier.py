"""The reward of a sequence classifier: the logit of its positive class.

Source: the IMDB experiments of CORY, with lvwerra/distilbert-imdb; that the score is the raw logit
is read from the paper's released code.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from cory_env.records import Query

POSITIVE = re.compile(r"(?:^|[^a-z])pos(?:itive)?(?:[^a-z]|$)", re.IGNORECASE)
"""A label that says positive: POSITIVE, pos, "very positive", LABEL_POS; not "position"."""
NEGATED = re.compile(r"(?:^|[^a-z])(?:not|non|no)(?:[^a-z]|$)", re.IGNORECASE)
"""A label that says the contrary: "not positive", non-pos."""
UNLIMITED = 10**9
"""Tokenizers that know no longest text give a number above this."""
TOLERANCE = {"float64": 1e-9, "float32": 1e-4}
"""How far rounding may move a logit between two batches, as a share of it or of 1; of others
0.1, which shows only what is badly wrong."""
DECIMALS = 10
"""Of scores in float64: rounding moves them by 1e-15 between batches, which this takes away."""


class SequenceClassifier:
    """Score the logit of one class, before any softmax or sigmoid, of query and response as a text.

    The two are joined as they are: a response brings its own leading space. A text that is longer
    than the classifier can read loses its beginning, never the response's end, and the first time
    that happens there is a warning. The score of a text does not depend on its batch: in float64
    not at all, else apart from rounding.
    """

    def __init__(
        self,
        model: str,
        *,
        label: str | int | None = None,
        batch_size: int = 64,
        device: str = "cpu",
        dtype: str = "float32",
    ) -> None:
        """Load a classifier.

        Args:
            model: a folder in the Hugging Face format, or a hub name.
            label: name or index of the class whose logit is the score. None: the one that its
                configuration calls positive, or the only one.
            batch_size: texts in a forward pass.
            device: "cpu" or "cuda[:n]".
            dtype: "float32", "float64" or "bfloat16".

        Raises:
            ValueError: one sentence saying what is missing, or that no label is positive.
        """
        # Heavy imports wait until a classifier is used: `import agents` names this class only.
        from agents.models.load import DTYPES

        for name, text in (("model", model), ("device", device), ("dtype", dtype)):
            if not isinstance(text, str):
                raise ValueError(f"classifier: {name} must be text, got {text!r}")
        if dtype not in DTYPES:
            raise ValueError(f"classifier: dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
        if type(batch_size) is not int or batch_size < 1:
            raise ValueError(
                f"classifier: batch_size must be a whole number from 1, got {batch_size!r}"
            )
        self.source = model
        self.batch_size = batch_size
        self.dtype = dtype
        self._model, self._tokenizer = _loaded(model, device, dtype)
        self.label = positive_label(model, self._model.config.id2label, label)
        self.longest = _longest(self._model, self._tokenizer)
        # The tokenizer remembers how it cuts, so only one thread may use it at a time.
        self._tokenizing = threading.Lock()
        self._warned = True  # a reader of less than that has nothing to warn of yet
        self._check_padding()
        self._warned = False

    def __call__(self, queries: Sequence[Query], responses: Sequence[str]) -> list[float]:
        """Return one logit for each response.

        Raises:
            ValueError: if a text has no token.
        """
        return self._logits([q.text + text for q, text in zip(queries, responses, strict=True)])

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of weights, tokenizer and what else the scores follow from."""
        from agents.models.checksum import tensor_sum

        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        words = self._tokenizer.get_vocab() if backend is None else json.loads(backend.to_str())
        words |= {"truncation": None, "padding": None}  # of the last call
        weights = tensor_sum(self._model.state_dict().items())
        values = [weights, words, self.label, self.longest, self.dtype]
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()

    def _logits(self, texts: Sequence[str]) -> list[float]:
        """Score texts in batches of nearly equal length, so that little is computed on padding."""
        import torch

        encoded = self._encoded(texts)
        lengths = [len(ids) for ids in encoded["input_ids"]]
        if 0 in lengths:
            empty = texts[lengths.index(0)][:200]
            raise ValueError(f"classifier {self.source!r} reads no token in the text {empty!r}")
        order = sorted(range(len(texts)), key=lambda row: lengths[row])
        logits = [0.0] * len(texts)
        for start in range(0, len(order), self.batch_size):
            rows = order[start : start + self.batch_size]
            batch = {name: [values[row] for row in rows] for name, values in encoded.items()}
            padded = self._tokenizer.pad(batch, return_tensors="pt").to(self._model.device)
            with torch.inference_mode():
                found = self._model(**padded).logits[:, self.label].double().tolist()
            for row, logit in zip(rows, found, strict=True):
                logits[row] = round(logit, DECIMALS) if self.dtype == "float64" else logit
        return logits

    def _encoded(self, texts: Sequence[str]) -> dict[str, list[list[int]]]:
        """Token ids and what goes with them, by the model's input names, unpadded."""
        with self._tokenizing:
            whole = self._tokenizer(list(texts), verbose=False)
            cut = 0
            if self.longest is not None:
                cut = sum(len(ids) > self.longest for ids in whole["input_ids"])
                if cut:
                    whole = self._tokenizer(
                        list(texts), truncation=True, max_length=self.longest, verbose=False
                    )
        if cut and not self._warned:
            self._warned = True
            warnings.warn(
                f"classifier {self.source!r} reads at most {self.longest} tokens: {cut} of "
                f"{len(texts)} texts lost their beginning (this is said once)",
                stacklevel=2,
            )
        return dict(whole)

    def _check_padding(self) -> None:
        """Refuse a classifier for which padding changes a score: it would depend on its batch."""
        short, long = "a film", "a film " * 16
        alone, beside = self._logits([short])[0], self._logits([short, long])[0]
        if not abs(alone - beside) <= TOLERANCE.get(self.dtype, 0.1) * max(1.0, abs(alone)):
            raise ValueError(
                f"classifier {self.source!r} scores a text {alone:g} alone and {beside:g} beside a "
                f"longer one: a score that depends on its batch is no reward"
            )


def positive_label(source: str, labels: Mapping[int, str], wanted: str | int | None) -> int:
    """Return the index of the class whose logit is the score.

    Args:
        source: of the classifier, for the error.
        labels: `id2label` of its configuration.
        wanted: what the user named; None: the class that is called positive, or the only one.

    Raises:
        ValueError: if the user's is not there, or None is given and not exactly one is positive.
    """
    names = {int(index): str(name) for index, name in labels.items()}
    shown = ", ".join(f"{index}: {name}" for index, name in sorted(names.items()))
    if isinstance(wanted, str):
        found = [i for i, name in names.items() if name == wanted] or [
            i for i, name in names.items() if name.lower() == wanted.lower()
        ]
    elif wanted is not None:
        found = [i for i in names if type(wanted) is int and i == wanted]
    elif len(names) == 1:
        found = list(names)
    else:
        found = [
            index
            for index, name in names.items()
            if POSITIVE.search(name) and not NEGATED.search(name)
        ]
        if not found:
            raise ValueError(
                f"classifier {source!r} is a classifier without a positive label, its labels are "
                f"{shown}: say which one counts with label=NAME or label=INDEX"
            )
    if len(found) != 1:
        raise ValueError(
            f"classifier {source!r}: label must name one of {shown}, "
            + (f"got {wanted!r}" if wanted is not None else "several of which say positive")
        )
    return found[0]


def _loaded(source: str, device: str, dtype: str) -> tuple[Any, Any]:
    """Open a classifier and its tokenizer, ready to score."""
    import torch

    from agents.models.load import DTYPES, check_folder, check_hub_name, device_named, is_cached

    if Path(source).is_dir():
        check_folder(Path(source), "classifier")
        local = True
    else:
        check_hub_name(source, "classifier must be a folder or a hub name")
        local = is_cached(source, "classifier", "classifier(...)")
    model, tokenizer = _opened(source, local)
    for parameter in model.parameters():
        # As for language models: weights of a file lie where its header ends, and round otherwise.
        parameter.data = parameter.data.clone()
    torch.nn.Module.to(model, device=device_named(device), dtype=DTYPES[dtype])
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token is None:
            raise ValueError(f"classifier {source!r} has no token to pad with, and no end token")
        tokenizer.pad_token = tokenizer.eos_token
    # Classifiers made of causal models look for the last token that is no padding.
    model.config.pad_token_id = tokenizer.pad_token_id
    tokenizer.padding_side = "right"  # positions that are counted from the left stay where they are
    tokenizer.truncation_side = "left"  # what is judged stands at the end
    return model.eval().requires_grad_(False), tokenizer


def _opened(source: str, local: bool) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from agents.models.load import first_line, quiet_progress

    options = {"local_files_only": local, "trust_remote_code": False}
    try:
        # The library draws initial weights from torch's global generator.
        with quiet_progress(), torch.random.fork_rng(devices=[]):
            tokenizer = AutoTokenizer.from_pretrained(source, **options)
            loaded: Any = AutoModelForSequenceClassification.from_pretrained(
                source, use_safetensors=True, output_loading_info=True, **options
            )
    except Exception as error:  # the library raises a dozen kinds; each means: cannot be opened
        raise ValueError(
            f"classifier {source!r} could not be loaded as a sequence classifier with its "
            f"tokenizer ({first_line(error)})"
        ) from error
    model, report = loaded
    if missing := sorted(report["missing_keys"]):
        raise ValueError(
            f"classifier {source!r} lacks weights of a sequence classifier: {len(missing)} are "
            f"missing, the first is {missing[0]}"
        )
    return model, tokenizer


def _longest(model: Any, tokenizer: Any) -> int | None:
    """Tokens that a classifier can read, special ones included; None: no limit is known."""
    import torch

    limits = [tokenizer.model_max_length]
    positions = getattr(model.config, "max_position_embeddings", None)
    if isinstance(positions, int) and positions > 0:
        # RoBERTa and its like begin to count behind the place that padding takes.
        taken = [
            module.padding_idx + 1
            for name, module in model.named_modules()
            if isinstance(module, torch.nn.Embedding)
            and name.endswith("position_embeddings")
            and module.padding_idx is not None
        ]
        limits.append(positions - max(taken, default=0))
    return min((int(limit) for limit in limits if limit < UNLIMITED), default=None)
