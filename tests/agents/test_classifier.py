"""Tests of agents/rewards/classifier.py (`tests.agents.rewards` is a module of rewards)."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from agents.models.load import load_model
from agents.rewards import SequenceClassifier
from agents.rewards.classifier import positive_label
from cory_env import REWARDS, make_reward
from cory_env.records import Query
from cory_env.rewards import WeightedReward, checked_scores
from cory_env.rewards.calling import CallSettings, call_with
from tests.agents.classifiers import LONGEST, WORDS, classifier_folder
from tests.agents.test_safe_loading import torch_saved

FAMILIES = ["DistilBert", "Bert", "Roberta", "GPT2"]
QUERY = Query("this film ")
TEXTS = ["was good", "was bad .", "", "was very very very very good .", "a b c d e f", "not bad"]


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One classifier of each family."""
    base = tmp_path_factory.mktemp("classifiers")
    return {family: classifier_folder(base / family, family) for family in FAMILIES}


def scores_of(reward: Any, texts: list[str] = TEXTS) -> list[float]:
    return checked_scores(reward, [QUERY] * len(texts), texts).tolist()


def test_the_score_is_the_raw_logit_of_the_positive_class(tmp_path: Path) -> None:
    folder = classifier_folder(tmp_path / "c", bias=[-1.5, 2.25])  # no softmax: 2.25, not 0.977
    assert SequenceClassifier(str(folder))([QUERY], ["was good"]) == [2.25]
    assert SequenceClassifier(str(folder), label=0)([QUERY], ["was good"]) == [-1.5]
    assert SequenceClassifier(str(folder), label="negative")([QUERY], ["was good"]) == [-1.5]


def test_a_classifier_of_one_logit_needs_no_label(tmp_path: Path) -> None:
    folder = classifier_folder(tmp_path / "c", labels={0: "LABEL_0"}, bias=[-0.75])
    assert SequenceClassifier(str(folder))([QUERY], ["x"]) == [-0.75]


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_those_of_a_plain_forward_of_query_and_response(
    family: str, folders: dict[str, Path]
) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(folders[family]).double().eval()
    tokenizer = AutoTokenizer.from_pretrained(folders[family])
    expected = []
    for text in TEXTS:
        ids = tokenizer("this film " + text, return_tensors="pt")
        with torch.no_grad():
            expected.append(model(**ids).logits[0, 1].item())
    given = scores_of(SequenceClassifier(str(folders[family]), dtype="float64"))
    assert given == pytest.approx(expected, abs=1e-9)
    assert len({round(score, 6) for score in given}) == len(TEXTS)  # they tell texts apart
    single = scores_of(SequenceClassifier(str(folders[family])))
    assert single == pytest.approx(expected, abs=1e-5)


MANY = [" ".join(WORDS[4 + (i * j) % 14] for j in range(i % 19)) for i in range(60)]


@pytest.mark.case(23)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float64", 0.0)])
def test_the_score_of_a_row_does_not_depend_on_its_batch(
    dtype: str, tolerance: float, family: str, folders: dict[str, Path]
) -> None:
    folder = str(folders[family])
    small, large = (SequenceClassifier(folder, dtype=dtype, batch_size=n) for n in (7, 64))
    whole = scores_of(large, MANY)
    alone = [scores_of(large, [text])[0] for text in MANY]
    backwards = scores_of(small, MANY[::-1])[::-1]
    assert max(abs(a - b) for a, b in zip(whole, alone, strict=True)) <= tolerance
    assert max(abs(a - b) for a, b in zip(whole, backwards, strict=True)) <= tolerance
    assert len({round(score, 4) for score in whole}) > 30


def test_a_classifier_that_reads_padding_is_refused(tmp_path: Path) -> None:
    # XLNet reads its summary from the last place, which is padding when a longer text is beside.
    folder = classifier_folder(tmp_path / "c", "XLNet")
    with pytest.raises(ValueError, match=r"alone and .* beside a longer one: a score that depends"):
        SequenceClassifier(str(folder))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_long_text_keeps_its_end_and_is_told_once(family: str, folders: dict[str, Path]) -> None:
    reward = SequenceClassifier(str(folders[family]), dtype="float64")
    assert reward.longest == LONGEST
    end = " very" * (LONGEST - 1) + " good"
    texts = ["a" + end, "b" + end, "good"]
    with pytest.warns(UserWarning, match=f"at most {LONGEST} tokens: 2 of 3 texts lost their beg"):
        one, two, short = reward([QUERY] * 3, texts)
    assert one == two != short
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is not said again
        assert reward([QUERY], ["a" + end.replace("good", "bad")]) != [one]


def test_a_text_that_just_fits_is_not_warned_of(folders: dict[str, Path]) -> None:
    reward = SequenceClassifier(str(folders["Bert"]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reward([QUERY], [" ".join(["good"] * (LONGEST - 4))])  # and [CLS] this film [SEP]


def test_dropout_is_off_and_no_generator_is_moved(tmp_path: Path) -> None:
    folder = classifier_folder(tmp_path / "c", dropout=0.5, seq_classif_dropout=0.5)
    before = torch.get_rng_state()
    reward = SequenceClassifier(str(folder))
    assert scores_of(reward) == scores_of(reward)
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(p.requires_grad for p in reward._model.parameters())


def test_threads_may_share_a_classifier(folders: dict[str, Path]) -> None:
    reward = SequenceClassifier(str(folders["Bert"]), dtype="float64")
    expected = scores_of(reward, MANY)
    called = call_with(reward, CallSettings(workers=4, batch_size=3))
    assert scores_of(called, MANY) == expected
    found: list[list[float]] = []
    threads = [
        threading.Thread(target=lambda: found.append(scores_of(reward, MANY))) for _ in "abc"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 3


def test_bfloat16_is_near(folders: dict[str, Path]) -> None:
    exact = scores_of(SequenceClassifier(str(folders["Bert"])))
    near = scores_of(SequenceClassifier(str(folders["Bert"]), dtype="bfloat16"))
    assert near == pytest.approx(exact, abs=0.5)
    assert near != exact


# Labels.


@pytest.mark.parametrize(
    ("labels", "wanted", "index"),
    [
        ({0: "NEGATIVE", 1: "POSITIVE"}, None, 1),
        ({0: "pos", 1: "neg"}, None, 0),
        ({0: "negative", 1: "neutral", 2: "positive"}, None, 2),
        ({0: "LABEL_NEG", 1: "LABEL_POS"}, None, 1),
        ({0: "LABEL_0", 1: "LABEL_1"}, 1, 1),
        ({0: "LABEL_0", 1: "LABEL_1"}, "LABEL_1", 1),
        ({0: "anything"}, None, 0),
        ({0: "anything"}, 0, 0),
        ({0: "a", 1: "A"}, "A", 1),
    ],
)
def test_the_label_that_counts(labels: dict[int, str], wanted: Any, index: int) -> None:
    assert positive_label("x", labels, wanted) == index


@pytest.mark.parametrize(
    ("labels", "wanted", "message"),
    [
        (
            {0: "LABEL_0", 1: "LABEL_1"},
            None,
            r"'x' is a classifier without a positive label, its labels are 0: LABEL_0, 1: LABEL_1: "
            r"say which one counts with label=NAME or label=INDEX",
        ),
        ({0: "position", 1: "composed"}, None, "without a positive label"),
        ({0: "positive", 1: "very positive"}, None, "several of which say positive"),
        ({0: "a", 1: "b"}, 2, r"label must name one of 0: a, 1: b, got 2"),
        ({0: "a", 1: "b"}, -1, r"label must name one of 0: a, 1: b, got -1"),
        ({0: "a", 1: "b"}, True, r"label must name one of 0: a, 1: b, got True"),
        ({0: "a", 1: "b"}, 1.0, r"label must name one of 0: a, 1: b, got 1.0"),
        ({0: "a", 1: "b"}, "c", r"label must name one of 0: a, 1: b, got 'c'"),
        ({0: "a", 1: "A"}, "á", "label must name one of"),
    ],
)
def test_labels_that_do_not_fit(labels: dict[int, str], wanted: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        positive_label("x", labels, wanted)


def test_a_folder_without_a_positive_label_is_refused(tmp_path: Path) -> None:
    folder = classifier_folder(tmp_path / "c", labels={0: "LABEL_0", 1: "LABEL_1"}, bias=[1.0, 2.0])
    with pytest.raises(ValueError, match="is a classifier without a positive label"):
        make_reward(f"classifier({folder})")
    assert make_reward(f"classifier({folder}, label=1)")([QUERY], ["x"]) == [2.0]


# By name.


def test_it_is_one_of_the_rewards_and_takes_arguments(tmp_path: Path) -> None:
    assert REWARDS["classifier"] is SequenceClassifier
    folder = classifier_folder(tmp_path / "my folder", bias=[1.0, 3.0])
    reward = make_reward(f"0.5*classifier('{folder}', batch_size=2) - 2*target")
    assert isinstance(reward, WeightedReward) and reward.names == ("classifier", "target")
    assert scores_of(reward, ["x"]) == [1.5]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "'classifier' cannot be built without arguments: it needs model"),
        ("()", "'classifier' cannot be built without arguments: it needs model"),
        ("(a, 1)", "takes model, label, batch_size, device, dtype, and at most 1 without a keyw"),
        ("(a, labels=1)", "takes model, label, batch_size, device, dtype, got labels"),
        ("(7)", "classifier: model must be text, got 7"),
        ("({folder}, dtype=float16)", "classifier: dtype must be one of float32, "),
        ("({folder}, batch_size=0)", "classifier: batch_size must be a whole number from 1, got 0"),
        ("({folder}, batch_size=x)", "classifier: batch_size must be a whole number from 1"),
        ("({folder}, device=tpu)", r"device must be .*, got 'tpu'"),
        ("({folder}, device=1)", "classifier: device must be text, got 1"),
        (
            "(./not/there)",
            "classifier must be a folder or a hub name, got './not/there', and there",
        ),
        (
            "(not/there)",
            r"classifier 'not/there' could not be loaded: there is no such folder here",
        ),
        ("(builtin:reviews)", "classifier 'builtin:reviews' could not be loaded"),
    ],
)
def test_arguments_that_do_not_fit(arguments: str, message: str, folders: dict[str, Path]) -> None:
    with pytest.raises(ValueError, match=message):
        make_reward("classifier" + arguments.format(folder=folders["Bert"]))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to be had")
def test_a_gpu_that_is_not_there_is_named(folders: dict[str, Path]) -> None:
    with pytest.raises(ValueError, match=r"'cuda' was asked for, but torch sees no CUDA device"):
        make_reward(f"classifier({folders['Bert']}, device=cuda)")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_says_what_the_cpu_does(folders: dict[str, Path]) -> None:
    here = scores_of(SequenceClassifier(str(folders["Bert"]), dtype="float64"), MANY)
    there = scores_of(
        SequenceClassifier(str(folders["Bert"]), dtype="float64", device="cuda"), MANY
    )
    assert there == pytest.approx(here, abs=1e-8)


def test_importing_the_agents_names_it_without_loading_a_library() -> None:
    code = (
        "import sys, agents, cory_env\n"
        "assert 'classifier' in cory_env.REWARDS\n"
        "print('transformers' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"


# Folders.


@pytest.fixture
def folder(folders: dict[str, Path], tmp_path: Path) -> Path:
    """A classifier of one's own to break."""
    shutil.copytree(folders["DistilBert"], tmp_path / "own")
    return tmp_path / "own"


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("config.json", "classifier folder .* must hold a config.json"),
        ("model.safetensors", r"must hold its weights as \*.safetensors, and there are none"),
        ("tokenizer.json", "classifier folder .* must hold a tokenizer"),
    ],
)
def test_a_folder_that_lacks_something(missing: str, message: str, folder: Path) -> None:
    (folder / missing).unlink()
    with pytest.raises(ValueError, match=message):
        SequenceClassifier(str(folder))


def test_pickled_weights_are_not_opened(folder: Path, tmp_path: Path) -> None:
    harm = tmp_path / "harm"
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(torch_saved(harm))
    with pytest.raises(ValueError, match="pickled weights are not opened"):
        SequenceClassifier(str(folder))
    (folder / "model.safetensors").write_bytes(torch_saved(harm))
    with pytest.raises(ValueError, match="could not be loaded as a sequence classifier"):
        SequenceClassifier(str(folder))
    assert not harm.exists()


def test_code_that_comes_with_a_classifier_is_not_run(folder: Path, tmp_path: Path) -> None:
    harm = tmp_path / "harm"
    (folder / "mine.py").write_text(f"import pathlib\npathlib.Path({str(harm)!r}).touch()\n")
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "mine",
        "auto_map": {
            "AutoConfig": "mine.Config",
            "AutoModelForSequenceClassification": "mine.Model",
        },
    }
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="could not be loaded as a sequence classifier"):
        SequenceClassifier(str(folder))
    assert not harm.exists()


def test_weights_that_are_missing_are_not_drawn(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["classifier.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"lacks weights .*: 1 are missing, the first is classif"):
        SequenceClassifier(str(folder))


def test_a_language_model_is_no_classifier(tmp_path: Path) -> None:
    loaded = load_model("builtin:target")
    loaded.model.save_pretrained(tmp_path)
    loaded.tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"lacks weights of a sequence classifier: 1 are missing"):
        SequenceClassifier(str(tmp_path))


def test_a_text_without_tokens_is_named(folders: dict[str, Path]) -> None:
    reward = SequenceClassifier(str(folders["GPT2"]))  # adds no token of its own
    with pytest.raises(ValueError, match="reads no token in the text ' '"):
        reward([Query("")], [" "])


def test_the_fingerprint_follows_from_what_scores_do(folder: Path) -> None:
    def fingerprint(**settings: Any) -> str:
        return SequenceClassifier(str(folder), **settings).fingerprint

    own = fingerprint()
    used = SequenceClassifier(str(folder))
    scores_of(used)
    assert used.fingerprint == own == fingerprint(batch_size=3, label="POSITIVE")
    others = {fingerprint(label=0), fingerprint(dtype="float64")}
    weights = load_file(folder / "model.safetensors")
    weights["classifier.bias"] += 1
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    others.add(fingerprint())
    assert len(others | {own}) == 4
