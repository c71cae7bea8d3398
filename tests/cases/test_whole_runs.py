"""What a whole run promises: modes, references, formulas in the header, memory, who is trained."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

import agents.bridge.policy as policies
from agents.bridge.stock import stock_ppo, token_vector_env, train_stock
from agents.config import KLEstimator
from agents.header import KL_SENTENCES, run_header
from agents.learners import LEARNERS
from agents.methods import METHODS
from agents.models import ActorCritic, LanguageModel
from agents.train import train
from tests.agents.runs import config, learner_state, session_of, training_of
from tests.markdown import ROOT


@pytest.mark.case(11)
def test_the_mode_of_each_phase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, bool, bool]] = []
    training = training_of(tmp_path / "run", iterations=1)
    team, draw, score = training.session.team, policies.sample, ActorCritic.score

    def phase() -> str:
        return "collect" if team.policy.is_within_training_step else "evaluate"

    def sample(model: ActorCritic, *args: Any, **options: Any) -> Any:
        seen.append((phase(), model.training, torch.is_grad_enabled()))
        return draw(model, *args, **options)

    def scored(self: ActorCritic, *args: Any, **options: Any) -> Any:
        seen.append(("update", self.training, torch.is_grad_enabled()))
        return score(self, *args, **options)

    monkeypatch.setattr(policies, "sample", sample)
    monkeypatch.setattr(ActorCritic, "score", scored)
    training.run()
    assert {name for name, _, _ in seen} == {"collect", "update", "evaluate"}
    # Layers that work only in training, such as gradient checkpointing, are on in the update.
    for name, in_training, with_gradient in seen:
        assert in_training == (name == "update"), name
        assert with_gradient or name != "update"
    for learner in training.session.learners.values():
        assert not any(module.training for module in learner.reference.model.modules())
        assert not any(p.requires_grad for p in learner.reference.parameters())


@pytest.mark.case(2, 3, 32)
def test_the_reference_is_what_training_starts_from_even_if_that_was_trained(
    tmp_path: Path,
) -> None:
    quick = {"iterations": 1, "eval_queries": 2}
    folder = train(config(tmp_path / "first", **quick)).out / "final/agent_0"
    session = session_of(model=str(folder))
    for learner in session.learners.values():
        own = dict(learner.actor.model.named_parameters())
        for name, tensor in learner.reference.model.named_parameters():
            assert torch.equal(tensor, own[name]) and tensor.data_ptr() != own[name].data_ptr()
    first = train(config(tmp_path / "next", model=str(folder), **quick)).metrics[0]
    for agent in session.learners:
        assert first[f"{agent}/kl"] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.case(33, 35, 58)
def test_every_agent_moves_and_only_by_its_own_update(tmp_path: Path) -> None:
    training = training_of(tmp_path / "run", iterations=1)
    session = training.session
    before = learner_state(session)
    lists = {
        a: [id(p) for p in x.optim._optim.param_groups[0]["params"]] for a, x in items(session)
    }
    moved: dict[str, set[str]] = {}
    for agent, learner in items(session):
        update = learner.update_from

        def watched(*args: Any, agent: str = agent, update: Any = update) -> Any:
            old = learner_state(session)
            stats = update(*args)
            new = learner_state(session)
            names = old.keys() & new.keys()
            moved[agent] = {n.split("/")[0] for n in names if not torch.equal(old[n], new[n])}
            return stats

        learner.update_from = watched  # type: ignore[method-assign]
    training.run()
    assert moved == {"agent_0": {"agent_0"}, "agent_1": {"agent_1"}}
    after = learner_state(session)
    assert all(not torch.equal(before[name], after[name]) for name in before if "lm_head" in name)
    own = {a: [id(p) for p in x.actor.parameters()] for a, x in items(session)}
    assert lists == own and not set(own["agent_0"]) & set(own["agent_1"])


def items(session: Any) -> list[tuple[str, Any]]:
    return list(session.learners.items())


@pytest.mark.case(57, 58)
def test_stock_training_moves_both_agents() -> None:
    models = [learner.actor for learner in session_of().learners.values()]
    before = [[p.detach().clone() for p in model.parameters()] for model in models]
    env = token_vector_env(4, 0, reward="tests.agents.rewards:distinct")
    train_stock(
        stock_ppo(models, env.workers[0].env, learning_rate=1e-2),
        env,
        ["agent_0", "agent_1"],
        iterations=1,
        update_epochs=1,
        minibatch_size=None,
        max_episode_steps=6,
        seed=0,
    )
    for model, old in zip(models, before, strict=True):
        moved = [not torch.equal(a, b) for a, b in zip(model.parameters(), old, strict=True)]
        assert all(moved)


@pytest.mark.case(38)
@pytest.mark.parametrize("estimator", get_args(KLEstimator))
def test_the_header_says_where_the_kl_is_counted(estimator: str) -> None:
    session = session_of(kl_estimator=estimator, kl_coef=0.125, kl_scope="team")
    header = run_header(session, Path("runs/here"))
    line = next(line for line in header.splitlines() if line.strip().startswith("KL"))
    assert KL_SENTENCES[estimator] in line
    assert "weight 0.125" in line and "team KL" in line
    places = {"exact": ("reward-to-go", "loss"), "k3": ("loss",)}
    for place in places.get(estimator, ("reward",)):
        assert place in line


@pytest.mark.case(46)
@pytest.mark.parametrize("method", METHODS)
def test_the_header_says_the_formula_of_the_payment_that_is_applied(method: str) -> None:
    session = session_of(method=method)
    header = run_header(session, Path("runs/here"))
    line = next(line for line in header.splitlines() if line.strip().startswith("paid"))
    said = line.strip().removeprefix("paid").strip()
    # Scores 1 and 10 by seat; what each seat is paid says which formula was used.
    if session.rules.n_agents == 1:
        assert said == "own score"
        return
    payoffs = session.rules.mixing(torch.tensor([1.0, 10.0]).double().numpy()).tolist()
    formulas = {
        "sum of all scores": [11.0, 11.0],
        "own score": [1.0, 10.0],
        "own score - mean of the others' scores": [-9.0, 9.0],
        "own score + 1 * the scores of those who act later": [11.0, 10.0],
    }
    assert payoffs == formulas[said.removesuffix(" (the others' of a permuted episode)")]
    assert said.endswith("permuted episode)") == (METHODS[method].scores == "permuted")


@pytest.mark.case(48)
@pytest.mark.parametrize("estimator", ["exact", "k1"])
def test_logits_are_made_at_response_tokens_only_and_in_pieces(
    estimator: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunk, minibatch = 5, 3
    shapes: list[tuple[int, ...]] = []
    made = LanguageModel.logits

    def logits(self: LanguageModel, hidden: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(hidden.shape[:-1]))
        return made(self, hidden)

    monkeypatch.setattr("agents.sampling.CHUNK_ROWS", chunk)
    # Logits of five tokens at a time, of the 12 tokens of the vocabulary and 4 bytes each.
    monkeypatch.setattr("agents.models.language_model.LOGITS_BYTES", 5 * 12 * 4)
    training = training_of(
        tmp_path / "run",
        batch_size=24,
        minibatch_size=minibatch,
        iterations=1,
        eval_queries=12,
        kl_estimator=estimator,
    )
    monkeypatch.setattr(LanguageModel, "logits", logits)
    training.session.begin(1)
    training.run()
    assert len(shapes) > 40
    # One row of logits a response while it is drawn (12 of them), and else at most five tokens
    # together; the reference says what it says of a chunk of five responses of three tokens.
    drawing = training.session.n_episodes
    assert all(len(shape) == 1 for shape in shapes)
    assert {shape[0] for shape in shapes if shape[0] > 5} == {drawing} == {12}


@pytest.mark.case(63)
def test_every_learner_has_a_line_that_trains_with_it() -> None:
    readme = (ROOT / "README.md").read_text()
    pages = [readme, *(p.read_text() for p in (ROOT / "docs").rglob("*.md"))]
    for name in LEARNERS:
        assert any(f"--algorithm {name}" in page for page in pages), name
        assert (ROOT / f"docs/learners/{name}.md").is_file()


@pytest.mark.case(64)
def test_no_wrapper_library_stands_between_and_the_tested_versions_are_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = (ROOT / "constraints.txt").read_text().splitlines()
    assert not any("supersuit" in name.lower() for name in [*project["dependencies"], *pinned])
    for package in ("tianshou", "pettingzoo", "gymnasium", "torch", "transformers"):
        assert any(line.startswith(f"{package}==") for line in pinned), package
    for package in ("tianshou", "pettingzoo", "gymnasium", "transformers"):
        wanted = next(name for name in project["dependencies"] if name.startswith(package))
        assert ">=" in wanted and "<" in wanted


@pytest.mark.case(68)
def test_there_is_no_notebook_that_nobody_runs() -> None:
    own = ("cory_env", "agents", "benchmarks", "examples", "docs", "tests", "tools")
    assert [p for name in own for p in (ROOT / name).rglob("*.ipynb")] == []
