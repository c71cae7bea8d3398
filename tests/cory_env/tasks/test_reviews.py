"""Tests of cory_env/tasks/reviews.py and of its data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from cory_env.data_files import SPLITS
from cory_env.records import Query
from cory_env.tasks.reviews import FOLDER, ReviewsTask

TASK = ReviewsTask()
TOKENIZER = TASK.tokenizer()


@pytest.mark.case(27)
def test_prompts_written_out() -> None:
    query = Query("The plot")
    assert TASK.prompt("pioneer", query, ()) == "The plot"
    assert TASK.prompt("observer", query, ()) == "The plot"
    assert TASK.prompt("observer", query, (" is thin.",)) == (
        'I can make this sentence "The plot is thin." more positive: The plot'
    )
    assert TASK.prompt("observer_2", query, (" is thin.", " works")) == (
        'I can make this sentence "The plot is thin." "The plot works" more positive: The plot'
    )


def test_the_score_is_the_sentiment_of_the_whole_text() -> None:
    # VADER rates "great" 3.1 and nothing else here: 3.1 / sqrt(3.1^2 + 15) = 0.6249.
    assert TASK.reward([Query("A great")], [" film"]) == pytest.approx([0.6249], abs=1e-4)


def test_openings_have_two_to_eight_tokens_and_end_at_a_word() -> None:
    for split in SPLITS:
        for query in TASK.queries(split):
            assert 2 <= len(TOKENIZER.encode(query.text)) <= 8
            assert query.text == query.text.strip()


def test_splits_share_no_opening_and_are_large_enough() -> None:
    texts = {split: [query.text for query in TASK.queries(split)] for split in SPLITS}
    together = [text for split in SPLITS for text in texts[split]]
    assert len(together) == len(set(together)) <= 3000
    assert len(texts["train"]) >= 1000
    assert min(len(texts["validation"]), len(texts["test"])) >= 512


def test_the_first_openings_are_a_fair_sample() -> None:
    # The source lists all positive snippets first. A fair prefix has the whole split's mean score
    # within three standard errors (0.25 / sqrt(256) = 0.016 each).
    queries = TASK.queries("validation")
    scores = list(TASK.reward(queries, [""] * len(queries)))
    assert sum(scores[:256]) / 256 == pytest.approx(sum(scores) / len(scores), abs=0.05)


def test_the_template_costs_one_token_a_word() -> None:
    prompt = TASK.prompt("observer", Query("It"), (" is",))
    # <s> I can make this sentence " It is " more positive : It
    assert len(TOKENIZER.encode_prompt(prompt)) == 14


def test_the_longest_prompt_of_three_agents_fits() -> None:
    # 8 tokens of the opening three times, 12 of each response, and 14 of template at most.
    assert TASK.max_prompt_tokens >= 3 * 8 + 2 * 12 + 14


def test_rows_of_the_data_file_have_a_query_and_a_split() -> None:
    for line in (FOLDER / "openings.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        assert set(row) == {"query", "split"}
        assert row["split"] in SPLITS


@pytest.mark.parametrize("name", ["reviews", "sums"])
def test_both_libraries_open_the_tokenizer_and_agree(name: str) -> None:
    folder = Path(FOLDER).parent / name / "tokenizer"
    fast = Tokenizer.from_file(str(folder / "tokenizer.json"))
    auto = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    assert [fast.token_to_id(token) for token in ("<pad>", "<s>", "</s>")] == [0, 1, 2]
    assert (auto.pad_token_id, auto.bos_token_id, auto.eos_token_id) == (0, 1, 2)
    for text in (
        "The plot",
        "Q: 47 + 38\nR:  85\nA:",
        "na\u00efve  \u65e5\u672c \u201cx\u201d ",
        "",
    ):
        ids = fast.encode(text).ids
        assert ids == auto(text)["input_ids"]
        plain = fast.encode(text, add_special_tokens=False).ids
        assert plain == auto(text, add_special_tokens=False)["input_ids"]
        assert ids == [1, *plain]  # exactly one <s>, no end token
        assert fast.decode(plain) == auto.decode(plain) == text
