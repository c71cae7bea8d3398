"""The documentation names everything there is, and nothing that is not there."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from pathlib import Path
from typing import get_args

import pytest

from agents.command_line import TrainCommand
from agents.config import GENERAL_DEFAULTS, MAY_CHANGE_ON_RESUME, KLEstimator, TrainConfig
from agents.evaluate import EvalCommand
from agents.influence import InfluenceCommand
from agents.learners import LEARNERS
from agents.methods import METHODS
from agents.models import BUILTIN_MODELS
from agents.play import PlayCommand
from agents.rewards import SequenceClassifier
from agents.train import TrainResult, train
from benchmarks.demo_real import DemoReal
from benchmarks.target_runs import StoredBenchmark
from cory_env import REWARDS, TASKS, cory_v0
from tests.markdown import PAGES, ROOT, page_id, table_rows

OTHER_FLAGS = {"--more", "--rounds", "--shapes", "--help", "--learner"}  # the last is pytest's
LAUNCHER_FLAGS = {
    "--cpu",
    "--machine-rank",
    "--main-process-ip",
    "--main-process-port",
    "--multi-gpu",
    "--nproc-per-node",
    "--num-machines",
    "--num-processes",
}
"""Of `accelerate launch` and torchrun."""
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
DOTTED = re.compile(r"`((?:cory_env|agents|benchmarks|examples)(?:\.\w+)+)`")
TREE_ENTRY = re.compile(r"[\w./-]+(?:, [\w./-]+)*")


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


# Registries.


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_in_the_readme_as_it_is(name: str) -> None:
    method = METHODS[name]
    rows = {row[0]: row for row in table_rows(text_of("README.md"), "`--method`")}
    _, agents, reads, paid, exchanged = rows[f"`{name}`"]
    assert agents == ("1" if method.single_agent else "2")
    assert exchanged.startswith("every 5") == method.role_exchange
    if not method.single_agent:
        assert ("response" in reads) == method.knowledge_transfer
        assert ("another query" in reads) == (method.transfer == "permuted")
    assert ("permuted" in paid) == (method.scores == "permuted")
    assert ("sum" in paid) == (method.mixing == "sum" and method.scores == "own")


def test_the_tables_of_methods_have_no_other_rows() -> None:
    expected = [f"`{name}`" for name in METHODS]
    assert [row[0] for row in table_rows(text_of("README.md"), "`--method`")] == expected
    assert [row[0] for row in table_rows(text_of("docs/methods.md"), "method")] == expected


def test_every_task_and_reward_is_documented() -> None:
    page = text_of("docs/environment.md")
    assert [row[0] for row in table_rows(page, "task")] == [f"`{name}`" for name in TASKS]
    assert [name for name in REWARDS if f"`{name}`" not in page] == []


def test_the_lengths_of_the_tasks_are_those_of_the_table() -> None:
    rows = table_rows(text_of("docs/environment.md"), "task")
    lengths = {row[0].strip("`"): row[-1] for row in rows}
    for name, make in TASKS.items():
        task = make()
        assert lengths[name] == f"{task.max_prompt_tokens}, {task.max_response_tokens}"


@pytest.mark.case(63)
def test_every_learner_has_a_page() -> None:
    for name in LEARNERS:
        assert f"--algorithm {name}" in text_of(f"docs/learners/{name}.md")


def test_every_builtin_model_is_in_the_readme() -> None:
    assert [m for m in BUILTIN_MODELS if f"`builtin:{m}`" not in text_of("README.md")] == []


def test_every_kl_estimator_is_documented() -> None:
    rows = table_rows(text_of("docs/kl.md"), "name")
    assert [row[0].split()[0] for row in rows] == [f"`{e}`" for e in get_args(KLEstimator)]


# Settings.


def flags_of(*commands: type) -> set[str]:
    names = {field.name for command in commands for field in dataclasses.fields(command)}
    dashed = {name.replace("_", "-") for name in names}
    return {f"--{name}" for name in dashed} | {f"--no-{name}" for name in dashed}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_flag_exists(page: Path) -> None:
    commands = (
        *(TrainCommand, EvalCommand, PlayCommand, InfluenceCommand),
        *(DemoReal, StoredBenchmark),
    )
    known = flags_of(*commands) | OTHER_FLAGS
    if page.name in ("README.md", "distributed.md", "fine_tune.md"):
        known |= LAUNCHER_FLAGS
    assert sorted(set(FLAG.findall(page.read_text(encoding="utf-8"))) - known) == []


@pytest.mark.parametrize("learner", LEARNERS)
def test_the_settings_of_a_learner_have_the_defaults_of_its_table(learner: str) -> None:
    fields = {field.name: field.default for field in dataclasses.fields(TrainConfig)}
    shown = set()
    for flag, default, _ in table_rows(text_of(f"docs/learners/{learner}.md"), "flag"):
        name = flag.strip("`-").replace("-", "_")
        # What a learner chooses itself is open, and its page says so.
        open_to_it = name in LEARNERS[learner].traits.defaults
        known = fields[name] if open_to_it else GENERAL_DEFAULTS.get(name, fields[name])
        assert default == str(known), flag
        shown.add(name)
    assert set(LEARNERS[learner].traits.reads or ()) <= shown


def test_every_learner_is_in_the_tables() -> None:
    for page in ("README.md", "docs/learners/README.md"):
        names = [row[0] for row in table_rows(text_of(page), "`--algorithm`")]
        assert [re.findall(r"`(\w+)`", name) for name in names] == [[n] for n in LEARNERS], page


def test_the_metrics_of_happo_are_documented(tmp_path: Path) -> None:
    settings = {"iterations": 1, "batch_size": 8, "eval_queries": 8, "progress": False}
    happo = train(TrainConfig(algorithm="happo", out=tmp_path / "run", **settings))
    rows = table_rows(text_of("docs/learners/happo.md"), "key")
    found = {re.sub(r"agent_\d", "A", key) for key in happo.metrics[0] if "/factor" in key}
    assert {row[0].strip("`") for row in rows} == found


def test_the_settings_of_slow_rewards_have_the_defaults_of_the_table() -> None:
    fields = {f"--{f.name.replace('_', '-')}": f.default for f in dataclasses.fields(TrainConfig)}
    rows = table_rows(text_of("docs/rewards.md"), "flag")
    assert {row[0].strip("`"): row[1] for row in rows} == {
        flag: str(default) for flag, default in fields.items() if flag.startswith("--reward-")
    }


def test_the_arguments_of_a_classifier_are_those_of_the_table() -> None:
    shown = {
        row[0].strip("`"): row[1] for row in table_rows(text_of("docs/rewards.md"), "argument")
    }
    parameters = inspect.signature(SequenceClassifier).parameters.values()
    empty = inspect.Parameter.empty
    assert shown == {p.name: "–" if p.default is empty else str(p.default) for p in parameters}


def test_the_keywords_of_the_environment_are_those_of_the_table() -> None:
    rows = table_rows(text_of("docs/environment.md"), "keyword")
    shown = [(row[0].strip("`"), row[1].strip("`").replace('"', "'")) for row in rows]
    parameters = inspect.signature(cory_v0.env).parameters.values()
    assert shown == [(p.name, repr(p.default)) for p in parameters]


def test_what_may_change_on_resume_is_documented() -> None:
    page = text_of("docs/run_folder.md")
    assert [n for n in MAY_CHANGE_ON_RESUME - {"resume"} if f"`{n}`" not in page] == []


# A run.


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    return train(
        TrainConfig(
            task="target",
            iterations=1,
            batch_size=8,
            eval_queries=8,
            out=tmp_path_factory.mktemp("docs") / "run",
            progress=False,
        )
    )


def test_every_metric_is_documented_and_every_documented_metric_is_there(run: TrainResult) -> None:
    page = text_of("docs/run_folder.md")
    rows = [*table_rows(page, "key"), *table_rows(page[page.index("there are also") :], "key")]
    documented = {row[0].strip("`") for row in rows} - {"observer_eval/A/…"}
    documented |= {f"observer_{n}" for n in documented if n.startswith("eval/")}
    assert {re.sub(r"agent_\d", "A", name) for name in run.metrics[0]} == documented


def test_the_metrics_of_a_weighted_reward_are_documented(tmp_path: Path) -> None:
    settings = {"iterations": 1, "batch_size": 8, "eval_queries": 8, "progress": False}
    weighted = train(
        TrainConfig(task="target", reward="target + 0*vader", out=tmp_path / "run", **settings)
    )
    page = text_of("docs/run_folder.md")
    shown = [
        row[0].strip("`") for row in table_rows(page[page.index("With a weighted sum") :], "key")
    ]
    names = {re.sub(r"agent_\d", "A", key) for key in weighted.metrics[0] if "/score/" in key}
    assert {re.sub("target|vader", "NAME", name) for name in names} == {
        *shown,
        "observer_eval/A/score/NAME",
    }


def test_the_rewards_of_the_table_are_those_there_are() -> None:
    rows = table_rows(text_of("docs/rewards.md"), "name")
    assert sorted(row[0].strip("`") for row in rows) == sorted(REWARDS)


def test_every_file_of_a_run_is_documented(run: TrainResult) -> None:
    for name in ("README.md", "docs/run_folder.md"):
        page = text_of(name)
        missing = [p.name for p in run.out.iterdir() if f"`{p.name}" not in page]
        assert missing == [], name


def test_every_file_of_a_checkpoint_is_documented(run: TrainResult) -> None:
    page = text_of("docs/run_folder.md")
    names = {p.name for p in (run.out / "checkpoints" / "000001").iterdir()}
    shown = {row[0].strip("`") for row in table_rows(page[page.index("## Checkpoints") :], "file")}
    assert {re.sub(r"agent_\d", "agent_0", name) for name in names} == shown


# Links and names.


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_between_pages_resolve(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if not target.startswith(("http://", "https://", "#")):
            assert (page.parent / target.partition("#")[0]).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_names_of_code_exist(page: Path) -> None:
    for dotted in DOTTED.findall(page.read_text(encoding="utf-8")):
        assert exists(dotted), dotted


def exists(dotted: str) -> bool:
    """Whether a dotted name is a module, or something inside one."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_named_files_exist(page: Path) -> None:
    kinds = r"(?:cory_env|agents|benchmarks|docs|examples|tests|tools)/[\w./-]+"
    for name in re.findall(rf"`({kinds})`", page.read_text(encoding="utf-8")):
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_named_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", text_of("Makefile"), re.MULTILINE))
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"(?:`|^    )make ([a-z-]+)", text, re.MULTILINE)
    assert set(named) <= targets


def test_the_tree_of_the_readme_is_that_of_the_repository() -> None:
    text = text_of("README.md")
    tree = text[text.index("## The repository") :].split("```")[1].splitlines()[1:]
    parent = ROOT
    for line in tree:
        match = TREE_ENTRY.match(line.strip())
        assert match is not None
        for name in match[0].split(", "):
            inside = parent if line.startswith("  ") else ROOT
            assert (inside / name).exists(), name
            if not line.startswith("  ") and name.endswith("/"):
                parent = ROOT / name


def test_no_figure_is_missing() -> None:
    assert [page_id(p) for p in PAGES if "TODO(" in p.read_text(encoding="utf-8")] == []
