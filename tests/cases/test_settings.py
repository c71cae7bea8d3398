"""Sampling settings: one function of the log-probabilities, and nothing is quietly ignored."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from agents import sampling
from agents.maths import logprobs, token_statistics
from agents.models.load import load_model
from agents.sampling import measure, sample
from agents.train import main
from tests.agents.runs import lines, training_of
from tests.agents.tiny import END, VOCABULARY, padded, tiny_actor
from tests.cases.models import KINDS, model_folder
from tests.markdown import ROOT

NOT_THERE = [
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "presence_penalty",
    "no_repeat_ngram_size",
    "min_new_tokens",
    "num_beams",
]


@pytest.mark.case(1, 4)
def test_one_function_makes_the_log_probabilities_of_sampling_and_scoring() -> None:
    assert sampling.log_softmax is token_statistics.log_softmax is logprobs.log_softmax
    own = ROOT / "agents/maths/logprobs.py"
    for file in (ROOT / "agents").rglob("*.py"):
        if file != own:
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Attribute) and node.attr in ("log_softmax", "softmax"):
                    raise AssertionError(f"{file} normalises logits by itself")


@pytest.mark.case(5)
@pytest.mark.parametrize("name", NOT_THERE)
def test_a_setting_that_only_the_sampler_would_obey_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refusal(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["cory-train", "--out", str(tmp_path / "r"), *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code not in (0, None)
        shown = capsys.readouterr()
        return shown.err + shown.out

    file = tmp_path / "settings.yaml"
    file.write_text(f"{name}: 1")
    assert f"setting '{name}' is not known" in refusal("--config", str(file))
    flag = f"--{name.replace('_', '-')}"
    assert flag in refusal(flag, "1")
    assert not (tmp_path / "r").exists()


@pytest.mark.case(5)
@pytest.mark.parametrize("kind", KINDS)
def test_generation_settings_of_a_model_move_neither_drawing_nor_scoring(
    kind: str, tmp_path: Path
) -> None:
    # A model folder often brings settings for chatting. Only its end tokens are read.
    settings = {"temperature": 0.1, "top_k": 1, "top_p": 0.1, "repetition_penalty": 9.0}
    rows = []
    for name, more in (("plain", {}), ("chatty", {"do_sample": True, **settings})):
        folder = model_folder(tmp_path / name, kind, **more)
        options = {
            "iterations": 1,
            "max_prompt_tokens": 60,
            "max_response_tokens": 4,
            "eval_queries": 2,
        }
        training_of(tmp_path / f"run_{name}", model=str(folder), **options).run()
        rows.append(lines(tmp_path / f"run_{name}/samples.jsonl"))
    assert rows[0] == rows[1]


@pytest.mark.case(6)
@pytest.mark.parametrize("temperature", [0.3, 2.0])
def test_the_kl_is_that_of_the_distributions_that_are_drawn_from(temperature: float) -> None:
    # Both models say the same at every position: two vectors of logits, written down here.
    own = torch.linspace(-2.0, 2.0, VOCABULARY).double()
    ref = torch.linspace(1.0, -0.5, VOCABULARY).double()

    def says(logits: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda hidden: logits.expand(*hidden.shape[:-1], -1)

    actor, reference = tiny_actor(dtype=torch.float64), tiny_actor(dtype=torch.float64)
    actor.logits, reference.logits = says(own), says(ref)  # type: ignore[method-assign]
    numbers = torch.full((1, 3), 0.4, dtype=torch.float64)
    prompts = padded([[1, 5]], 2)
    drawn = sample(actor, prompts, numbers, end_ids=(END,), temperature=temperature)
    measured = measure(actor, reference, prompts, drawn, temperature=temperature)
    p = [float(x) for x in (own / temperature).exp()]
    q = [float(x) for x in (ref / temperature).exp()]
    p, q = [x / sum(p) for x in p], [x / sum(q) for x in q]
    expected = sum(a * float(torch.tensor(a / b).log()) for a, b in zip(p, q, strict=True))
    assert measured.kl[drawn.mask].tolist() == pytest.approx([expected] * int(drawn.mask.sum()))


@pytest.mark.case(17)
def test_responses_end_as_often_as_the_end_token_is_drawn() -> None:
    # Zero weights: each of the 11 tokens is as likely at every position. With p = 1/11 for the end
    # and at most T = 12, the mean length is (1 - (1 - p)^T) / p = 7.495, its standard deviation
    # over 3000 rows about 0.08; four of them.
    actor = tiny_actor("gpt2")
    with torch.no_grad():
        for parameter in actor.parameters():
            parameter.zero_()
    numbers = torch.as_tensor(torch.rand(3000, 12, generator=torch.Generator().manual_seed(1)))
    drawn = sample(actor, padded([[1]] * 3000, 1), numbers, end_ids=(END,), temperature=0.7)
    assert drawn.mask.sum(-1).float().mean().item() == pytest.approx(7.495, abs=0.32)
    ended = (drawn.response_ids == END).any(-1).float().mean().item()
    # 1 - (10/11)^12 = 0.681, standard deviation 0.0085
    assert ended == pytest.approx(0.681, abs=0.034)


@pytest.mark.case(17)
@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_without_generation_settings_still_stops_at_its_tokenizers_end(
    kind: str, tmp_path: Path
) -> None:
    folder = model_folder(tmp_path / "model", kind)
    (folder / "generation_config.json").unlink()
    loaded = load_model(str(folder))
    assert loaded.text_tokenizer.end_ids == (loaded.tokenizer.eos_token_id,)
