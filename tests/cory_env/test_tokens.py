"""Tests of cory_env/tokens.py; its chat templates are tested in test_chat.py.

Cases 16, 25 and 30: masks not by token id, ids end to end, exactly one begin token.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from cory_env.tokens import TextTokenizer, as_tokenizer, pad_left, response_ids

WORDS = {"<s>": 0, "</s>": 1, "<unk>": 2, "a": 3, "b": 4, "c": 9}


def words(template: str | None = "<s> $A") -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(WORDS, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<s>", "</s>", "<unk>"])
    if template is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=[("<s>", 0), ("</s>", 1)]
        )
    return tokenizer


class SlowTokenizer:
    """As much of a Hugging Face tokenizer as the game uses; letters are tokens."""

    eos_token_id: Any = 26

    def __len__(self) -> int:
        return 27

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        ids = [ord(letter) - ord("a") for letter in text]
        return {"input_ids": [*ids, 26] if add_special_tokens else ids}

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        return "".join(chr(i + ord("a")) for i in ids if not (i == 26 and skip_special_tokens))


def test_vocabulary_size_is_the_largest_id_plus_one() -> None:
    assert as_tokenizer(words()).vocab_size == 10  # six words, but "c" is number 9


@pytest.mark.case(30)
@pytest.mark.parametrize("template", ["<s> $A", "<s> $A </s>", "$A </s>", "$A", None])
def test_a_prompt_has_the_tokens_at_the_front_and_no_end_token(template: str | None) -> None:
    begin = [0] if template and "<s>" in template else []
    assert as_tokenizer(words(template)).encode_prompt("a b") == [*begin, 3, 4]


@pytest.mark.case(30)
def test_a_begin_token_that_the_text_spells_out_is_not_doubled() -> None:
    assert as_tokenizer(words()).encode_prompt("<s> a b") == [0, 3, 4]


@pytest.mark.case(16, 30)
def test_a_begin_token_equal_to_the_end_token_stays() -> None:
    # as in GPT-2's family: <s> is used for both
    assert as_tokenizer(words("<s> $A"), end_ids=[0]).encode_prompt("a") == [0, 3]


def test_an_end_token_in_the_text_itself_stays() -> None:
    assert as_tokenizer(words("$A")).encode_prompt("a </s>") == [3, 1]


def test_text_is_encoded_without_and_decoded_without_special_tokens() -> None:
    tokenizer = as_tokenizer(words("<s> $A </s>"))
    assert tokenizer.encode("a b") == [3, 4]
    assert tokenizer.decode([0, 3, 4, 1]) == "a b"
    assert tokenizer.decode([]) == ""


@pytest.mark.parametrize("name", ["</s>", "<|endoftext|>", "<eos>", "<|im_end|>"])
def test_an_end_token_is_known_by_its_name(name: str) -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, name: 1}))
    assert as_tokenizer(tokenizer).end_ids == (1,)


def test_a_tokenizer_without_an_end_token_is_refused_or_given_one() -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "stop": 1}))
    with pytest.raises(ValueError, match="must have an end-of-sequence token"):
        as_tokenizer(tokenizer)
    assert as_tokenizer(tokenizer, end_ids=[1]).end_ids == (1,)
    with pytest.raises(ValueError, match=r"end_ids must lie in \[0, 1\], got \[2\]"):
        as_tokenizer(tokenizer, end_ids=[2])


def test_padding_and_truncation_of_a_users_tokenizer_are_not_used_and_not_touched() -> None:
    tokenizer = words()
    tokenizer.enable_padding(length=8)
    tokenizer.enable_truncation(2)
    assert as_tokenizer(tokenizer).encode_prompt("a b a b") == [0, 3, 4, 3, 4]
    assert tokenizer.padding is not None
    assert tokenizer.truncation is not None


def test_a_sentencepiece_style_space_at_the_front_is_kept() -> None:
    # such decoders drop the very first space, which would glue a response to its query
    tokenizer = Tokenizer(models.WordLevel({"\u2581good": 0, "ish": 1, "</s>": 2}))
    tokenizer.decoder = decoders.Metaspace()
    assert tokenizer.decode([0, 1]) == "goodish"
    assert as_tokenizer(tokenizer).decode([0, 1]) == " goodish"
    assert as_tokenizer(tokenizer).decode([1, 0]) == "ish good"


def test_text_that_spells_a_special_token_does_not_become_one() -> None:
    tokenizer = as_tokenizer(words())
    # "</s>" is cut behind its first sign; neither half is a word
    assert tokenizer.encode("a </s> b") == [3, 2, 2, 4]
    assert tokenizer.encode_quoting(["<s> a ", "</s>", " b </s>"]) == [0, 3, 2, 2, 4, 1]
    assert tokenizer.encode_quoting(["", "<s> a", ""]) == [0, 2, 2, 3]  # and begins with <s> once


def test_quoting_is_plain_encoding_where_nothing_special_is_spelled() -> None:
    tokenizer = as_tokenizer(words())
    parts = ["<s> a ", "b", " </s> ", "c", ""]
    assert tokenizer.encode_quoting(parts) == tokenizer.encode_prompt("".join(parts))
    assert tokenizer.encode_quoting(parts) == [0, 3, 4, 1, 9]


def test_a_name_that_template_and_quotation_write_together_is_cut_too() -> None:
    vocabulary = {name: i for i, name in enumerate(["<s>", "</s>", "<", "/", "s", ">"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.add_special_tokens(["<s>", "</s>"])
    made = as_tokenizer(tokenizer)
    assert made.encode_quoting(["<s><", "/s", "></s>"]) == [0, 2, 3, 4, 5, 1]
    assert made.encode_quoting(["", "<<s>", ""]) == [2, 2, 4, 5]
    assert made.encode_quoting(["</s>"]) == [1]  # nothing is quoted


def test_a_name_that_only_the_normaliser_sees_is_cut_too() -> None:
    vocabulary = {name: i for i, name in enumerate(["</s>", "<", "/", "s", ">"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.add_special_tokens([AddedToken("</s>", normalized=True)])
    made = as_tokenizer(tokenizer)
    assert made.encode_prompt("</S>") == [0]
    assert made.encode("</S>") == made.encode_quoting(["", "</S>", ""]) == [1, 2, 3, 4]


def test_a_tokenizer_that_makes_special_tokens_of_single_letters_is_refused() -> None:
    tokenizer = Tokenizer(models.BPE({"</s>": 0, "a": 1}, []))
    tokenizer.normalizer = normalizers.Replace("E", "</s>")
    tokenizer.add_special_tokens([AddedToken("</s>", normalized=True)])
    with pytest.raises(ValueError, match=r"expected \[\], got \[0\] for 'aE'"):
        as_tokenizer(tokenizer).encode("aE")


def test_a_special_token_of_one_letter_is_that_letter() -> None:
    tokenizer = Tokenizer(models.BPE({"|": 0, "a": 1, "</s>": 2}, []))
    tokenizer.add_special_tokens(["|"])
    assert as_tokenizer(tokenizer).encode("a|a") == [1, 0, 1]


def test_what_the_vocabulary_has_not_is_unknown_and_no_special_token() -> None:
    tokenizer = as_tokenizer(words())
    assert tokenizer.specials.unknown == {2}
    assert tokenizer.specials.among([0, 2, 3, 1]) == (0, 1)
    assert tokenizer.encode("a x <unk>") == [3, 2, 2, 2]  # its name too is only a text


@pytest.mark.parametrize("text", ["good</s>ish", "</s>", " </s> good", "good <s></s>ish"])
def test_no_space_is_added_where_a_name_is_cut(text: str) -> None:
    pieces = ["<s>", "</s>", "<unk>", "\u2581", *sorted(set("good</s>ish"))]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, []))
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    made = as_tokenizer(tokenizer)
    # Only the sign that this tokenizer puts before any text.
    assert made.decode(made.encode(text)) == " " + text.removeprefix(" ")


def save(folder: Path, config: dict[str, Any] | None) -> Path:
    words().save(str(folder / "tokenizer.json"))
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("config", "end"),
    [
        ({"eos_token": "b"}, (4,)),
        ({"eos_token": {"content": "b", "special": True}}, (4,)),
        ({}, (1,)),
        (None, (1,)),
    ],
)
def test_a_folder_says_what_its_end_token_is(
    tmp_path: Path, config: dict[str, Any] | None, end: tuple[int, ...]
) -> None:
    assert as_tokenizer(save(tmp_path, config)).end_ids == end
    assert as_tokenizer(str(tmp_path), end_ids=[3]).end_ids == (3,)


def test_a_hub_name_is_not_looked_up() -> None:
    with pytest.raises(ValueError, match="a hub name is not looked up here"):
        as_tokenizer("gpt2")


def test_a_slow_hugging_face_tokenizer_is_known_by_what_it_can_do() -> None:
    tokenizer = as_tokenizer(SlowTokenizer())
    assert (tokenizer.vocab_size, tokenizer.end_ids) == (27, (26,))
    assert tokenizer.encode_prompt("abc") == [0, 1, 2]
    assert tokenizer.decode([2, 1, 26]) == "cb"


def test_several_end_tokens_or_none_of_a_hugging_face_tokenizer() -> None:
    slow = SlowTokenizer()
    slow.eos_token_id = [25, 26]
    assert as_tokenizer(slow).end_ids == (25, 26)
    slow.eos_token_id = None
    with pytest.raises(ValueError, match="must have an end-of-sequence token"):
        as_tokenizer(slow)


def test_a_fast_hugging_face_tokenizer_equals_the_one_inside_it() -> None:
    transformers = pytest.importorskip("transformers")
    inner = words()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    ours, theirs = as_tokenizer(inner), as_tokenizer(fast)
    assert theirs.vocab_size == ours.vocab_size
    assert theirs.end_ids == ours.end_ids
    assert theirs.encode_prompt("a b c") == ours.encode_prompt("a b c") == [0, 3, 4, 9]
    assert theirs.decode([3, 4, 1]) == ours.decode([3, 4, 1]) == "a b"


def test_one_that_is_already_made_is_returned_and_can_get_other_ends() -> None:
    made = as_tokenizer(words())
    assert as_tokenizer(made) is made
    assert as_tokenizer(made, end_ids=[4]).end_ids == (4,)
    assert made.end_ids == (1,)


@pytest.mark.parametrize("source", [None, 3, object()])
def test_other_things_are_refused(source: Any) -> None:
    with pytest.raises(ValueError, match="tokenizer must be"):
        as_tokenizer(source)


def test_it_can_be_pickled() -> None:
    copy: TextTokenizer = pickle.loads(pickle.dumps(as_tokenizer(words())))
    assert copy.encode_prompt("a") == [0, 3]


def test_an_added_token_counts_for_the_vocabulary() -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "</s>": 1}))
    tokenizer.add_tokens([AddedToken("new")])
    assert as_tokenizer(tokenizer).vocab_size == 3


@pytest.mark.case(16)
def test_padding_is_on_the_left_and_minus_one() -> None:
    padded = pad_left([5, 0, 7], 5)
    assert padded.tolist() == [-1, -1, 5, 0, 7]
    assert padded.dtype == np.int64


@given(ids=st.lists(st.integers(0, 99), max_size=6), extra=st.integers(0, 4))
def test_stripping_undoes_padding(ids: list[int], extra: int) -> None:
    padded = pad_left(ids, len(ids) + extra)
    assert padded[padded >= 0].tolist() == ids


def test_too_many_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 2 tokens, got 3"):
        pad_left([1, 2, 3], 2)


@pytest.mark.case(16, 18)
@pytest.mark.parametrize(
    ("action", "kept"),
    [
        ([5, 6, 7], (5, 6, 7)),
        ([5, -1, 7], (5,)),  # before the first -1
        ([5, 2, 7], (5, 2)),  # through the first end token
        ([5, 3, 2], (5, 3)),
        ([-1, 2, 5], ()),  # empty
        ([2, -1, 5], (2,)),
        ([0, 0, 0], (0, 0, 0)),  # 0 is a token like any other
    ],
)
def test_where_a_response_ends(action: list[int], kept: tuple[int, ...]) -> None:
    assert response_ids(action, (2, 3)) == kept


@given(st.lists(st.integers(-1, 6), max_size=8))
def test_a_response_is_a_prefix_with_an_end_token_only_at_its_end(action: list[int]) -> None:
    kept = response_ids(action, (2,))
    assert list(kept) == action[: len(kept)]
    assert 2 not in kept[:-1]
    assert -1 not in kept
