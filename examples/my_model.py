"""A model of one's own: any folder that transformers opens. This one is a small GPT-2 of letters.

Run from the root of the repository:

    python -m examples.my_model
    cory-train --task target --model ./my-model

The letters and their tokenizer are those of the task `target`; the weights are random, as they are
in the model that comes with it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from cory_env.tasks.target import letter_tokenizer


def main(folder: str = "my-model", seed: int = 0) -> Path:
    """Write the model and its tokenizer, weights as safetensors."""
    letters = letter_tokenizer()
    config = GPT2Config(
        vocab_size=letters.vocab_size,
        n_embd=64,
        n_layer=2,
        n_head=4,
        n_positions=64,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    with torch.random.fork_rng():  # the library draws from torch's global generator
        torch.manual_seed(seed)
        model = GPT2LMHeadModel(config)
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=letters.backend, **names)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    print(f"wrote {folder}: {sum(p.numel() for p in model.parameters()):,} parameters")
    return Path(folder)


if __name__ == "__main__":
    main(*[word for word in sys.argv[1:2] if not word.isdecimal()])
