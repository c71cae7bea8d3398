"""Small chat tokenizers, one token a byte, with chat templates in the manner of known families."""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from cory_env import GameRules, Query
from cory_env.chat import ChatSettings
from cory_env.tasks.sums import SumsTask

SPECIALS = ("<s>", "</s>", "<|start|>", "<|end|>", "<pad>")
BOS, EOS, START, END, _ = range(len(SPECIALS))
TURN = len(SPECIALS)  # "<turn>" is added, and not flagged as special

CHATML = """
{%- for message in messages -%}
{{ '<|start|>' + message['role'] + '\n' + message['content'] + '<|end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|start|>assistant\n' }}{%- endif -%}
"""
"""As of Qwen: no begin token, and the words that ask for an answer are many tokens."""

INST = """
{{- bos_token -}}
{%- set ns = namespace(system='') -%}
{%- for message in messages -%}
{%- if message['role'] == 'system' -%}
{%- set ns.system = '<<SYS>>\n' + message['content'] + '\n<</SYS>>\n\n' -%}
{%- elif message['role'] == 'user' -%}
{{ '[INST] ' + ns.system + message['content'].strip() + ' [/INST]' }}
{%- set ns.system = '' -%}
{%- else -%}
{{ ' ' + message['content'].strip() + ' ' + eos_token }}
{%- endif -%}
{%- endfor -%}
"""
"""As of Llama 2: begin token, system text inside the first question, nothing asks for an answer."""

NO_SYSTEM = """
{{- bos_token -}}
{%- if messages[0]['role'] == 'system' -%}
{{ raise_exception('System role not supported') }}
{%- endif -%}
{%- for message in messages -%}
{%- set name = 'model' if message['role'] == 'assistant' else message['role'] -%}
{{ '<turn>' + name + '\n' + message['content'] | trim + '<|end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<turn>model\n' }}{%- endif -%}
"""
"""As of Gemma: refuses a system prompt, trims, and its mark is no special token."""

PLAIN = """
{%- for message in messages -%}
{{ message['role'] + ': ' + message['content'] + '\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ 'assistant:' }}{%- endif -%}
"""
"""Words only; no token ends a turn."""

THINKING = """
{%- for message in messages -%}
{%- set text = message['content'].split('</think>')[-1] if not loop.last else message['content'] -%}
{{ '<|start|>' + message['role'] + '\n' + text + '<|end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|start|>assistant\n' }}{%- endif -%}
"""
"""Drops the thoughts of earlier answers."""

COUNTING = """
{%- for message in messages -%}
{{ '<|start|>' + (messages | length) | string + message['role'] + '\n' + message['content'] }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|start|>assistant\n' }}{%- endif -%}
"""
"""Writes something else before earlier messages when others follow."""


def backend(*, adds_begin: bool) -> Tokenizer:
    """Bytes, special tokens first."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = [*SPECIALS, "<turn>", *alphabet]
    tokenizer = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, []))
    tokenizer.add_special_tokens(list(SPECIALS))
    tokenizer.add_tokens([AddedToken("<turn>", special=False, normalized=False)])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    if adds_begin:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", BOS)]
        )
    return tokenizer


def chatty(template: str | None = CHATML, *, adds_begin: bool = False) -> PreTrainedTokenizerFast:
    """The tokenizer as transformers has it."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend(adds_begin=adds_begin),
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
    )
    tokenizer.chat_template = template
    return tokenizer


def letters(text: str) -> list[int]:
    """The ids of ASCII letters by the table: bytes follow the six added tokens in sorted order."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    signs = {" ": "\u0120", "\n": "\u010a"}  # how the byte-level alphabet writes these two
    return [TURN + 1 + alphabet.index(signs.get(letter, letter)) for letter in text]


class Asked(SumsTask):
    """Sums as questions to a chat model."""

    completion = False
    max_prompt_tokens = 400


def rules(
    template: str | None = CHATML,
    *,
    adds_begin: bool = False,
    task: Any = None,
    chat: ChatSettings | None = None,
    **settings: Any,
) -> GameRules:
    """The game of sums with a chat tokenizer; `settings` go to the game."""
    tokenizer = chatty(template, adds_begin=adds_begin)
    return GameRules.make(task or Asked(), tokenizer=tokenizer, chat=chat, **settings)


SEVEN = Query("3 + 4", answer="7")
