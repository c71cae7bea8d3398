"""Tests of agents/distributed.py and agents/sharing.py: two gloo processes beside one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from torch import Tensor

from agents.distributed import ALONE, Group, Processes, only_main_talks, processes_of, speaks
from agents.sharing import bit_sum, shared_reward
from agents.train import train
from cory_env.records import Query
from cory_env.rewards.base import WeightedReward
from tests.agents.rewards import distinct
from tests.agents.runs import config, lines, stopping_after, training_of, weights, without_seconds
from tests.agents.two_processes import ROOT, environment, launch

REWARD = "tests.agents.rewards:distinct"
"""Hardly two responses are paid the same: whitening makes numbers of order 1, not of rounding."""
EXACT: dict[str, Any] = {
    "dtype": "float64",
    "iterations": 3,
    "checkpoint_interval": 1,
    "keep_checkpoints": 9,
    "reward": REWARD,
}
RUNS: dict[str, dict[str, Any]] = {
    # 7 rows, minibatches of 3, 3 and 1, pieces of 1 or 2.
    "solo": {**EXACT, "method": "solo", "batch_size": 7, "micro_batch_size": 1},
    "cory": {
        **EXACT,
        "batch_size": 14,
        "minibatch_size": 4,
        "micro_batch_size": 2,
        "kl_target": 0.05,
        "kl_horizon": 50,
        "kl_scope": "team",
        "whiten": "minibatch",
        "ent_coef": 0.01,
        "reward": f"0.7*target + 0.3*{REWARD}",
    },
    "cory_no_transfer": {
        **EXACT,
        "method": "cory_no_transfer",
        "batch_size": 10,
        "minibatch_size": 1,
        "iterations": 2,
        "kl_estimator": "k3",
    },
    "placebo_sum": {
        **EXACT,
        "method": "placebo_sum",
        "minibatch_size": None,
        "iterations": 2,
        "kl_estimator": "reference",
        "eval_queries": 3,
    },
    "lora": {**EXACT, "batch_size": 14, "lora_rank": 4, "iterations": 2},
    "happo": {**EXACT, "algorithm": "happo", "batch_size": 14, "iterations": 2},
    # Answers that episodes share, and answers beside the episodes.
    "nested": {
        **EXACT,
        "algorithm": "counterfactual",
        "group_structure": "nested",
        "group_size": 2,
        "batch_size": 16,
        "iterations": 2,
    },
    "raft": {**EXACT, "algorithm": "raft", "batch_size": 16, "iterations": 2},
}
SINGLE = {
    "iterations": 3,
    "batch_size": 14,
    "minibatch_size": 4,
    "micro_batch_size": 2,
    "learning_rate": 1e-4,
    "checkpoint_interval": 3,
    "reward": REWARD,
}
"""In single precision. Adam divides a gradient by its size, so where that is nearly 0 rounding can
move a weight by a share of the learning rate."""
BREAKING = {
    "reward": "tests.agents.two_processes:breaks_in_the_second",
    "iterations": 9,
    "checkpoint_interval": 9,
}
DIVERGING = {
    "reward": REWARD,
    "algorithm": "tests.agents.two_processes:Diverging",
    "minibatch_size": None,
    "checkpoint_interval": 9,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the processes' runs lie, for all workers of the tests."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return tmp_path_factory.mktemp("two")
    path = tmp_path_factory.getbasetemp().parent / "two"
    path.mkdir(exist_ok=True)
    return path


@pytest.fixture(scope="module")
def done(folder: Path) -> dict[str, list[Any]]:
    """What two processes made of all jobs; started once."""
    with FileLock(folder / "lock"):
        kept = folder / "done.json"
        if not kept.is_file():
            kept.write_text(json.dumps(launch(jobs(folder), folder)))
        found: dict[str, list[Any]] = json.loads(kept.read_text())
    return found


def jobs(folder: Path) -> list[tuple[str, str, dict[str, Any]]]:
    """Name, kind and keywords of each."""
    begun_alone = folder / "begun_alone"
    training_of(begun_alone, stopping_after(2), **RUNS["cory"]).run()
    out = {name: str(folder / name) for name in ("stopped", "breaking", "diverging", "never")}
    return [
        *(
            (name, "run", {**settings, "out": str(folder / name)})
            for name, settings in RUNS.items()
        ),
        ("single", "run", {**SINGLE, "out": str(folder / "single")}),
        ("stopped", "interfered", {**RUNS["cory"], "how": "stopped", "out": out["stopped"]}),
        ("begun_alone", "run", {**RUNS["cory"], "out": str(begun_alone), "resume": True}),
        ("breaking", "run", {**BREAKING, "out": out["breaking"]}),
        ("diverging", "run", {**DIVERGING, "out": out["diverging"]}),
        ("moved", "interfered", {**EXACT, "how": "moved", "out": str(folder / "moved")}),
        ("other_seed", "run", {"out": out["never"], "second": {"seed": 1}}),
        ("too_small", "run", {"out": out["never"], "batch_size": 2}),
        ("taken", "run", {"out": str(folder / "solo")}),
        ("exchange", "exchange", {}),
        ("sections", "sections", {}),
        ("gradients", "gradients", {}),
        ("empty_share", "one_update", {"rows": 2}),
        ("full_share", "one_update", {"rows": 4}),
    ]


# Two processes and one.


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Run folders of one process, each played once."""
    played: dict[str, Path] = {}

    def play(name: str) -> Path:
        if name not in played:
            settings = {**RUNS, "single": SINGLE}[name]
            played[name] = train(config(tmp_path_factory.mktemp("one") / "run", **settings)).out
        return played[name]

    return play


def distance(one: dict[str, Tensor], two: dict[str, Tensor]) -> float:
    """Largest difference of two sets of tensors."""
    assert one.keys() == two.keys()
    return max(float((one[k].double() - two[k].double()).abs().max()) for k in one)


def assert_same_run(one: Path, two: Path, tolerance: float) -> None:
    """Equal samples and equal files; weights, moments and metrics to rounding."""
    samples = [
        [{**row, "parts": None} for row in lines(run / "samples.jsonl")] for run in (one, two)
    ]
    assert len(samples[0]) >= 8
    assert samples[0] == samples[1]
    names = [{str(p.relative_to(run)) for p in run.rglob("*")} for run in (one, two)]
    assert names[0] == names[1]
    assert distance(weights(one), weights(two)) < tolerance
    rows = [without_seconds(lines(run / "metrics.jsonl")) for run in (one, two)]
    for first, second in zip(*rows, strict=True):
        assert first.keys() == second.keys()
        for name, value in first.items():
            expected = (
                pytest.approx(value, rel=1e-9 + tolerance, abs=tolerance)
                if isinstance(value, float)
                else value
            )
            assert second[name] == expected, name
    for name in ("eval_initial.json", "config.json"):
        files = [json.loads((run / name).read_text()) for run in (one, two)]
        if name == "config.json":
            assert [f.pop("versions")["processes"] for f in files] == [1, 2]
            files = [{**f, "out": None} for f in files]
        assert files[0] == pytest.approx(files[1]), name


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_two_processes_train_what_one_does(
    name: str, done: dict[str, list[Any]], folder: Path, alone: Any
) -> None:
    iterations = RUNS[name]["iterations"]
    assert done[name] == [{"finished": True, "status": 0, "rows": iterations}] * 2
    assert_same_run(alone(name), folder / name, 1e-10)


@pytest.mark.slow
def test_they_do_so_in_single_precision(
    done: dict[str, list[Any]], folder: Path, alone: Any
) -> None:
    assert done["single"][0] == done["single"][1]
    one, two = alone("single"), folder / "single"
    assert lines(one / "samples.jsonl") == lines(two / "samples.jsonl")
    finals = [weights(run / "final") for run in (one, two)]
    assert distance(*finals) < 1e-5
    # The bound says something: training moved the weights by far more.
    start = training_of(two.parent / "single_start", **SINGLE).session.learners["agent_0"].actor
    first = dict(start.model.state_dict())
    last = {k.rsplit("/", 1)[1]: v for k, v in finals[1].items() if k.startswith("agent_0/")}
    assert distance(first, last) > 1e-3


@pytest.mark.slow
def test_a_stop_asked_of_one_stops_both_and_one_process_goes_on(
    done: dict[str, list[Any]], folder: Path, alone: Any
) -> None:
    assert done["stopped"] == [{"finished": False, "status": 143, "rows": 2}] * 2
    run = folder / "stopped"
    assert (run / "checkpoints/latest").read_text() == "000002\n"
    assert train(config(run, **RUNS["cory"], resume=True)).finished
    # The number of processes stands in the file that the last start wrote.
    assert json.loads((run / "config.json").read_text())["versions"]["processes"] == 1
    assert distance(weights(run / "final"), weights(alone("cory") / "final")) < 1e-10
    assert [r["iteration"] for r in lines(run / "metrics.jsonl")] == [1, 2, 3]


@pytest.mark.slow
def test_two_processes_go_on_with_the_checkpoint_of_one(
    done: dict[str, list[Any]], folder: Path, alone: Any
) -> None:
    assert done["begun_alone"] == [{"finished": True, "status": 0, "rows": 3}] * 2
    run = folder / "begun_alone"
    state, whole = (weights(path / "checkpoints/000003") for path in (run, alone("cory")))
    assert distance(state, whole) < 1e-10


@pytest.mark.slow
def test_minibatches_with_an_empty_share_have_the_same_gradient(done: dict[str, list[Any]]) -> None:
    for name in ("empty_share", "full_share"):
        for shared, single in done[name]:
            assert shared == pytest.approx(single, abs=1e-12)
            assert single[2] > 1e-3
    assert done["empty_share"][0][1] != pytest.approx(done["full_share"][0][1], abs=1e-3)


# What goes wrong in one of them.


@pytest.mark.slow
def test_a_reward_that_fails_in_one_ends_both_and_the_last_iteration_is_kept(
    done: dict[str, list[Any]], folder: Path
) -> None:
    first, second = done["breaking"]
    assert first == second
    assert first.startswith(
        "RewardError: reward breaks_in_the_second raised RuntimeError: no scorer; it does so for "
    )
    rows = lines(folder / "breaking/metrics.jsonl")
    assert 0 < len(rows) < 9
    latest = (folder / "breaking/checkpoints/latest").read_text()
    assert latest == f"{len(rows):06d}\n"


@pytest.mark.slow
def test_a_loss_that_is_not_finite_in_one_ends_both_with_the_whole_minibatch(
    done: dict[str, list[Any]], folder: Path
) -> None:
    first, second = done["diverging"]
    assert first == second
    assert "NonFiniteError: the update of agent_0 in iteration 2 diverged: its loss is" in first
    kept = weights(folder / "diverging/failed_batch")
    assert kept["batch.safetensors/response_ids"].shape[0] == 4
    assert (folder / "diverging/checkpoints/latest").read_text() == "000001\n"


@pytest.mark.slow
def test_processes_that_come_apart_are_stopped(done: dict[str, list[Any]]) -> None:
    first, second = done["moved"]
    assert first == second
    expected = "ValueError: the processes came apart in iteration 1: the sum over the weights of "
    assert first.startswith(f"{expected}agent_1 is ")


@pytest.mark.slow
def test_bad_settings_are_refused_by_both_before_anything_is_written(
    done: dict[str, list[Any]], folder: Path
) -> None:
    first, second = done["other_seed"]
    assert first == second
    assert "the processes do not begin alike: seed is 0 in process 0 and 1 in process 1" in first
    sentence = (
        "ValueError: batch_size must give each of the 2 processes an episode: expected at least 4 "
        "responses, got 2"
    )
    assert done["too_small"] == [sentence] * 2
    assert not (folder / "never").exists()
    assert all("holds another run" in text for text in done["taken"])


# Exchanges.


@pytest.mark.slow
def test_exchanges_have_known_answers(done: dict[str, list[Any]]) -> None:
    first, second = done["exchange"]
    # 0 of 1, 1 of 2 and 2 of 5 rows are the first process's.
    assert first.pop("shares") == [[], [0], [0, 1]]
    assert second.pop("shares") == [[0], [1], [2, 3, 4]]
    assert (
        first
        == second
        == {
            "gathered": [True] * 5,
            "one": True,
            "empty": [5, 4, 0],
            "sums": [[[3.0, 3.0], [3.0, 3.0]], [1.0], [3.0, -4.0, 10.0], [11.0, 11.0, 11.0]],
            "highest": 7,
            "texts": [["", ""], ["é", "éé"], ["main", ""]],
            "from_main": "from 0",
            "device": ["cpu", "cuda:3"],
        }
    )


@pytest.mark.slow
def test_an_error_of_one_is_an_error_of_all(done: dict[str, list[Any]]) -> None:
    first, second = done["sections"]
    assert (first["written"], second["written"]) == ([1], [])
    assert first["said"][:3] == [
        "PeerError/KeyError: KeyError: 'lost'",
        "PeerError/OSError: [Errno 28] no space",
        "",
    ]
    assert second["said"][:3] == ["KeyError/own: 'lost'", "OSError/own: [Errno 28] no space", ""]
    assert first["said"][3:] == second["said"][3:]
    inside, alike = first["said"][3:]
    assert inside == "nothing may be exchanged inside a section"
    assert alike.startswith("not alike: rank is 0 in process 0 and 1 in process 1; all need")


@pytest.mark.slow
def test_gradients_that_only_some_processes_have_are_added(done: dict[str, list[Any]]) -> None:
    both, _, first_counts, _ = done["gradients"][0][0], None, done["gradients"][0][2], None
    assert both == {"a": 20.0, "b": 3.0}
    assert first_counts == {"a": 10.0, "b": 1.0}
    for rank in range(2):
        assert done["gradients"][rank][1] == [[3.0, 3.0], [1.0, 1.0], [2.0, 2.0], None]
        assert done["gradients"][rank][3] == [[1.0, 1.0], [1.0, 1.0], None, None]


# One process, and what it needs to be several.


def test_one_process_exchanges_nothing() -> None:
    tensor = torch.ones(3)
    assert ALONE.gather(tensor, 3) is tensor
    ALONE.add([tensor])
    assert tensor.tolist() == [1.0, 1.0, 1.0]
    assert ALONE.share(7) == slice(0, 7)
    assert (ALONE.main, ALONE.device("cuda:1"), ALONE.highest(4)) == (True, "cuda:1", 4)
    assert ALONE.from_main("text") == "text"
    with pytest.raises(KeyError), ALONE.section():
        raise KeyError("own")
    assert shared_reward(distinct, ALONE) is distinct


def test_each_part_of_a_weighted_reward_is_shared() -> None:
    class Second(Processes):
        rank, size = 1, 2

        def share(self, n: int) -> slice:
            return slice(n // 2, n)

        def gather(self, own: Tensor, n: int) -> Tensor:
            return torch.cat([torch.zeros(n - len(own), dtype=own.dtype), own])

    whole = WeightedReward(((0.5, distinct), (2.0, lambda q, r: [float(len(t)) for t in r])))
    queries, responses = [Query("q")] * 3, ["a", "bb", "cccc"]
    found = shared_reward(whole, Second())
    assert isinstance(found, WeightedReward)
    scores = found.score(queries, responses)
    expected = distinct(queries, responses)
    # The first row is the other process's, of which this fake gathers zeros.
    assert scores.parts is not None and found.names[0] == "distinct"
    assert scores.parts["distinct"].tolist() == [0.0, *expected[1:]]
    assert scores.scores.tolist() == pytest.approx(
        [0.0, 0.5 * expected[1] + 4.0, 0.5 * expected[2] + 8.0]
    )


def test_the_sum_of_bits_sees_one_bit_and_the_place() -> None:
    one = [torch.arange(4.0), torch.ones(2, dtype=torch.bfloat16), torch.tensor([True, False])]
    assert bit_sum(one) == bit_sum([tensor.clone() for tensor in one])
    other = [tensor.clone() for tensor in one]
    other[0][2] = torch.nextafter(other[0][2], torch.tensor(9.0))
    assert bit_sum(one) != bit_sum(other)
    assert bit_sum(one) != bit_sum([one[0], one[2], one[1]])


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name, value in environment(1, 1).items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def test_nothing_is_set_up_for_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert processes_of("cpu") is ALONE
    monkeypatch.setenv("WORLD_SIZE", "1")
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    assert processes_of("cuda:7") is ALONE
    assert speaks()


@pytest.mark.parametrize(
    ("name", "value"),
    [("RANK", None), ("RANK", "x"), ("WORLD_SIZE", "two"), ("MASTER_ADDR", None)],
)
def test_an_incomplete_environment_is_named(
    name: str, value: str | None, launched: pytest.MonkeyPatch
) -> None:
    if value is None:
        launched.delenv(name)
    else:
        launched.setenv(name, value)
    with pytest.raises(ValueError, match=f"must all be set .* got {name}={value}"):
        processes_of("cpu")


def test_the_launcher_that_starts_one_process_for_two_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What `accelerate launch --cpu --num_processes 2` sets, and no more.
    monkeypatch.setenv("ACCELERATE_USE_CPU", "True")
    monkeypatch.setenv("MASTER_PORT", "29500")
    with pytest.raises(ValueError, match=r"starts a single process.* --multi_gpu"):
        processes_of("cpu")


def test_devices_that_are_not_there_are_refused(launched: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="a GPU of its own, got 'cuda:1'"):
        processes_of("cuda:1")
    launched.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"each of the 2 processes of this machine.* sees 0"):
        processes_of("cuda")


def test_a_missing_package_is_named(launched: pytest.MonkeyPatch) -> None:
    launched.setattr("agents.distributed.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"install the extra distributed: pip install"):
        processes_of("cpu")


def test_each_process_has_a_gpu_of_its_own() -> None:
    group = Group(3, 4, torch.device("cuda", 1))
    assert (group.device("cuda"), group.device("cpu"), group.main) == ("cuda:1", "cpu", False)


def test_only_the_main_process_talks(
    launched: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with only_main_talks():
        print("second")
    launched.setenv("RANK", "0")
    with only_main_talks():
        print("first")
    assert capsys.readouterr().out == "first\n"


@pytest.mark.slow
def test_a_launched_run_that_fails_says_so_once(tmp_path: Path) -> None:
    launcher = [str(Path(sys.executable).parent / "accelerate"), "launch", "--multi_gpu"]
    plain = ["--num_processes=2", "--num_machines=1", "--mixed_precision=no"]
    plain += ["--dynamo_backend=no", "--main_process_port=0"]
    settings = {
        "task": "target",
        "batch_size": 8,
        "eval_queries": 4,
        "checkpoint_interval": 9,
        "reward": BREAKING["reward"],
        "out": tmp_path / "run",
    }
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    ended = subprocess.run(
        [*launcher, *plain, "-m", "agents.train", *flags],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode != 0
    said = [line for line in ended.stderr.splitlines() if line.startswith("error:")]
    assert len(said) == 1, ended.stderr
    assert "reward breaks_in_the_second raised RuntimeError: no scorer" in said[0]
    assert ended.stdout.count("target / cory / ppo") == 1
    assert (tmp_path / "run/checkpoints/latest").is_file()
