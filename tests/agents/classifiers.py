"""Tiny random sequence classifiers in folders, with a tokenizer of a few words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from agents.models.load import quiet_progress

WORDS = (
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    *"abcdef|.",
    "film",
    "good",
    "bad",
    "was",
    "this",
    "very",
)
LONGEST = 24
"""Tokens that the classifiers read."""
LABELS = {0: "NEGATIVE", 1: "POSITIVE"}

_SMALL: dict[str, dict[str, Any]] = {
    "DistilBert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64},
    "Bert": {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
    },
    "Roberta": {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "pad_token_id": 0,
    },
    "GPT2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 2, "eos_token_id": 3},
    "XLNet": {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64},
}
_POSITIONS = {"Roberta": LONGEST + 1, "GPT2": LONGEST, "Bert": LONGEST, "DistilBert": LONGEST}


def tokenizer(*, pads: bool = True) -> PreTrainedTokenizerFast:
    """Whole words; a text stands between [CLS] and [SEP]."""
    table = {word: i for i, word in enumerate(WORDS)}
    backend = Tokenizer(models.WordPiece(table, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    if pads:
        backend.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            special_tokens=[("[CLS]", table["[CLS]"]), ("[SEP]", table["[SEP]"])],
        )
    names = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"} if pads else {}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="[UNK]", eos_token="[SEP]", **names
    )


def classifier_folder(
    folder: Path,
    family: str = "DistilBert",
    *,
    labels: dict[int, str] = LABELS,
    bias: list[float] | None = None,
    seed: int = 0,
    **settings: Any,
) -> Path:
    """Save a classifier.

    Args:
        folder: where.
        family: DistilBert, Bert, Roberta, GPT2 (its tokenizer has no padding) or XLNet.
        labels: its `id2label`.
        bias: the logits of every text: then the weights of the last layer are 0.
        seed: of the weights.
        settings: more of its configuration.
    """
    positions = {"max_position_embeddings": _POSITIONS[family]} if family in _POSITIONS else {}
    make = getattr(transformers, f"{family}Config")
    config = make(
        vocab_size=len(WORDS),
        id2label=labels,
        label2id={name: i for i, name in labels.items()},
        **{**positions, **_SMALL[family], **settings},
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = getattr(transformers, f"{family}ForSequenceClassification")(config)
        for parameter in model.parameters():
            parameter.data.normal_(0.0, 0.5)
    if bias is not None:
        last = [m for m in model.modules() if isinstance(m, torch.nn.Linear)][-1]
        last.weight.data.zero_()
        last.bias.data.copy_(torch.tensor(bias))
    with quiet_progress():
        model.save_pretrained(folder)
    tokenizer(pads=family != "GPT2").save_pretrained(folder)
    return folder
