"""Tests of the shipped models in agents/models/builtin/ and of the size of all package data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

import agents.models
import cory_env
from cory_env.tasks import make_task
from tools.build_builtin.measure import Player, nested

BUILTIN = Path(agents.models.__file__).parent / "builtin"
DATA = Path(cory_env.__file__).parent / "data"
NAMES = ("reviews", "sums")


def player_of(name: str) -> Player:
    task = make_task(name)
    model = AutoModelForCausalLM.from_pretrained(BUILTIN / name, local_files_only=True).eval()
    tokenizer = Tokenizer.from_file(str(DATA / name / "tokenizer" / "tokenizer.json"))
    return Player(model, tokenizer, task.prompt, task.reward, task.max_response_tokens)


@pytest.fixture(scope="module", params=NAMES)
def named_player(request: pytest.FixtureRequest) -> tuple[str, Player]:
    return request.param, player_of(request.param)


def test_a_model_opens_as_a_small_llama_in_float32(named_player: tuple[str, Player]) -> None:
    _, player = named_player
    config = player.model.config
    assert config.architectures == ["LlamaForCausalLM"]
    assert config.attention_dropout == 0.0
    assert config.tie_word_embeddings
    assert config.max_position_embeddings >= 256
    assert {p.dtype for p in player.model.parameters()} == {torch.float32}
    assert 0.7e6 < sum(p.numel() for p in player.model.parameters()) < 1.2e6


def test_model_and_tokenizer_agree_on_the_tokens(named_player: tuple[str, Player]) -> None:
    _, player = named_player
    config, tokenizer = player.model.config, player.tokenizer
    assert config.vocab_size == tokenizer.get_vocab_size()
    ids = [tokenizer.token_to_id(token) for token in ("<pad>", "<s>", "</s>")]
    assert [config.pad_token_id, config.bos_token_id, config.eos_token_id] == ids == [0, 1, 2]


def test_generation_defaults_are_plain_sampling(named_player: tuple[str, Player]) -> None:
    _, player = named_player
    generation = player.model.generation_config
    assert (generation.do_sample, generation.temperature, generation.top_k) == (True, 1.0, 0)


def test_the_longest_game_fits_the_positions(named_player: tuple[str, Player]) -> None:
    name, player = named_player
    task = make_task(name)
    longest = task.max_prompt_tokens + task.max_response_tokens
    assert longest <= player.model.config.max_position_embeddings


def test_the_first_answer_matters_for_the_second(named_player: tuple[str, Player]) -> None:
    # The builds measured well above 0.1 on both tasks; at least 0.05 is asked of them.
    name, player = named_player
    queries = make_task(name).queries("test")[:60]
    found = nested(player, queries, torch.Generator().manual_seed(0), first=6, second=6)
    assert found.influence >= 0.05
    assert found.correlation > 0.2


def test_sums_leaves_room_to_learn_and_reads_right_references() -> None:
    player = player_of("sums")
    queries = make_task("sums").queries("test")
    generator = torch.Generator().manual_seed(0)
    # 400 draws: a standard deviation of 0.025.
    assert 0.40 <= player.mean_score(queries[:400], generator) <= 0.65
    found = nested(player, queries[:60], generator, first=6, second=6)
    assert found.gap is not None
    assert found.gap >= 0.2


def test_the_records_of_the_builds_meet_their_targets() -> None:
    reviews, sums = (
        json.loads((BUILTIN / name / "training.json").read_text(encoding="utf-8")) for name in NAMES
    )
    scorer = json.loads((DATA / "reviews" / "hidden_scorer.json").read_text(encoding="utf-8"))
    assert reviews["held_out_nats_per_character"] <= 1.33
    assert 0.40 <= sums["test_right"] <= 0.65
    assert min(reviews["nested"]["influence"], sums["nested"]["influence"]) >= 0.05
    assert scorer["held_out_accuracy"] >= 0.76 > scorer["held_out_accuracy_of_vader"]


def test_all_package_data_is_small() -> None:
    files = [file for folder in (BUILTIN, DATA) for file in folder.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < 10e6
    assert not [file for file in (BUILTIN.rglob("tokenizer*"))]  # they live with the tasks
