"""The ratio is 1 before an update, in the whole kind: whatever the settings, model or tokenizer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from agents.models import ActorCritic, LanguageModel
from agents.sampling import sample
from agents.train import Training
from tests.agents.runs import training_of
from tests.agents.tiny import END, VOCABULARY, padded, tiny_actor
from tests.cases.models import KINDS, model_folder

TEMPERATURES = (0.05, 0.3, 0.6, 1.0, 1.7, 5.0, 100.0)
RAGGED = [[1, 5], [1, 4, 3, 10, 6, 3, 9], [1], [1, END, 0, END], [END], [1, 9, 9, 9]]
BATCHES = {"one": [[1, 4, 3]], "one token": [[1]], "equal": [[1, 2], [3, 4]]}
ENDS = {"one end": (END,), "several ends": (END, 5, 8), "no end": ()}
PADS = {"pad is end": END, "pad is another": 3, "no pad": None}
WIDTH = 5


def assert_ratio_is_one(
    actor: LanguageModel, prompts: list[list[int]], ends: tuple[int, ...], temperature: float
) -> None:
    """Draw, then score in the same batch, alone, and with more padding on both sides."""
    numbers = torch.as_tensor(np.random.default_rng(5).random((len(prompts), WIDTH)))
    width = max(map(len, prompts)) + 3
    drawn = sample(actor, padded(prompts, width), numbers, end_ids=ends, temperature=temperature)
    # Logits are divided by the temperature, and so is what rounding leaves in them.
    bound = 1e-5 * max(1.0, 1.0 / temperature)
    wide = torch.nn.functional.pad(drawn.response_ids, (0, 2), value=-1)
    with torch.no_grad():
        together = actor.score(padded(prompts, width), drawn.response_ids, temperature)
        wider = actor.score(padded(prompts, width + 4), wide, temperature)
        again = actor.score(padded(prompts, width), drawn.response_ids, temperature)
    assert torch.equal(together.logprobs, again.logprobs)
    assert (together.logprobs - drawn.logprobs).abs().max() <= bound
    assert (wider.logprobs[:, :WIDTH] - drawn.logprobs).abs().max() <= bound
    assert not wider.logprobs[:, WIDTH:].any()
    for row, prompt in enumerate(prompts):
        ids = drawn.response_ids[row : row + 1]
        with torch.no_grad():
            alone = actor.score(torch.tensor([prompt]), ids, temperature)
        assert (alone.logprobs[0] - drawn.logprobs[row]).abs().max() <= bound


@pytest.mark.case(1, 5, 7, 9, 12, 15)
@pytest.mark.parametrize("pad", PADS)
@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_the_ratio_is_one_at_every_setting(family: str, tied: bool, ends: str, pad: str) -> None:
    actor = tiny_actor(family, tied=tied)
    actor.model.config.pad_token_id = PADS[pad]
    actor.train()  # the mode of an update
    for temperature in TEMPERATURES:
        assert_ratio_is_one(actor, RAGGED, ENDS[ends], temperature)
    for prompts in BATCHES.values():
        assert_ratio_is_one(actor, prompts, ENDS[ends], 0.6)


@pytest.mark.case(7)
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_vocabulary_smaller_than_the_output_layer_is_cut_in_both(family: str) -> None:
    whole = tiny_actor(family)
    actor = ActorCritic(whole.model, VOCABULARY - 2).eval()
    assert_ratio_is_one(actor, RAGGED, (END,), 0.6)


def first_update(path: Path, model: Path, temperature: float) -> Training:
    """One iteration of CORY with a model folder of one's own, one step in one minibatch."""
    training = training_of(
        path,
        model=str(model),
        iterations=1,
        minibatch_size=None,
        update_epochs=1,
        temperature=temperature,
        max_prompt_tokens=60,
        max_response_tokens=WIDTH,
        eval_queries=2,
    )
    training.run()
    return training


@pytest.mark.case(7, 9, 16, 18, 30)
@pytest.mark.parametrize("several_ends", [False, True], ids=["one end", "several ends"])
@pytest.mark.parametrize("pad_is_end", [True, False], ids=["pad is end", "pad is another"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_first_update_of_a_run_is_taken_at_ratio_one(
    kind: str, pad_is_end: bool, several_ends: bool, tmp_path: Path
) -> None:
    # Ties and temperatures change with the others, so that all of them meet both families.
    tied, temperature = pad_is_end == several_ends, 0.6 if pad_is_end else 1.7
    folder = model_folder(
        tmp_path / "model", kind, pad_is_end=pad_is_end, tied=tied, several_ends=several_ends
    )
    training = first_update(tmp_path / "run", folder, temperature)
    session = training.session
    ends = session.rules.tokenizer.end_ids
    assert len(ends) == 1 + several_ends
    row = training.folder.metrics()[0]
    begin = session.loaded["agent_0"].tokenizer.bos_token_id
    for agent, rollout in session.team.rollouts.items():
        assert row[f"{agent}/approx_kl"] == pytest.approx(0.0, abs=1e-7)
        assert row[f"{agent}/clip_fraction"] == 0.0
        for prompt, response in zip(rollout.prompt_ids, rollout.response_ids, strict=True):
            if kind == "sentencepiece":  # exactly one begin token, at the front
                real = prompt[prompt >= 0].tolist()
                assert real[0] == begin and real.count(begin) == 1
            written = response[response >= 0].tolist()
            assert not set(written[:-1]) & set(ends)
            assert written[-1] in ends or len(written) == WIDTH
