"""`cory-train`: from settings to a run folder."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from agents.bridge.trainer import IterationTrainer
from agents.checkpoint import latest_checkpoint, load_checkpoint, prune_checkpoints, save_checkpoint
from agents.config import TrainConfig
from agents.curves import draw_curves
from agents.evaluation import Evaluated, evaluate_alone, evaluate_as_observer
from agents.export import save_agent, save_best
from agents.header import run_header
from agents.metrics import (
    Counters,
    Metrics,
    agent_metrics,
    evaluation_metrics,
    iteration_metrics,
)
from agents.run_folder import RunFolder, next_numbered
from agents.session import Session, build_session, resolve_config
from cory_env.records import EpisodeRecord
from cory_env.rewards.base import RewardError


@dataclass(frozen=True)
class TrainResult:
    """What a run left behind."""

    out: Path
    """The run folder."""
    config: TrainConfig
    """With every default filled in."""
    metrics: list[dict[str, Any]]
    """The rows of metrics.jsonl."""
    initial: dict[str, Any]
    """eval_initial.json: the evaluation before training."""
    finished: bool
    """False if the run was interrupted; `resume` goes on from its last checkpoint."""


def train(config: TrainConfig) -> TrainResult:
    """Train, and write the run folder.

    Args:
        config: settings; those that are None take the task's own values.

    Returns:
        The folder and the logged numbers.

    Raises:
        ValueError: if a setting does not fit; nothing has been trained then.
        RewardError: if the reward fails; the run keeps a checkpoint of the last finished iteration.
    """
    if config.resume and config.out is None:
        raise ValueError("resume needs out: the folder of the run to go on with")
    config, task = resolve_config(config)
    config = replace(config, out=config.out or next_numbered(Path("runs"), task.name))
    assert config.out is not None
    folder = RunFolder(config.out)
    # The folder is claimed after everything else was checked, so a refused run leaves none behind;
    # whether it can be claimed is checked first, since loading models may take minutes.
    folder.check(config)
    session = build_session(config, task)
    if not config.resume:
        folder.start(config)
    training = Training(session, folder)
    if config.resume:  # only now: a checkpoint that cannot be used leaves the run as it was
        folder.resume(config)
    return training.run()


class Training:
    """The loop: iterations, logs, evaluations, checkpoints."""

    def __init__(self, session: Session, folder: RunFolder) -> None:
        self.session = session
        self.config = session.config
        self.folder = folder
        self.counters = Counters()
        self.best: dict[str, Any] = {}
        self.last_finished = 0
        self.last_saved = 0
        self._stop = False
        if self.config.resume:
            self._restore()
        self._state = self._current_state()
        assert self.config.iterations is not None and self.config.update_epochs is not None
        self.trainer = IterationTrainer(
            team=session.team,
            env=session.env,
            begin=session.begin,
            minibatch_size=self.config.minibatch_size,
            update_epochs=self.config.update_epochs,
            first_iteration=self.last_finished + 1,
            iterations=self.config.iterations,
        )
        self.writer = (
            SummaryWriter(str(folder.tensorboard), purge_step=self.last_finished + 1)
            if self.config.tensorboard
            else None
        )

    def run(self) -> TrainResult:
        """Train until the last iteration, or until somebody interrupts."""
        if self.config.progress:
            print(run_header(self.session, self.folder.path))
        iterations = self.config.iterations
        assert iterations is not None
        if self.last_finished == 0:
            self._first_evaluation()
        with self._interruptible(), self._bar(iterations) as bar:
            while self.last_finished < iterations and not self._stop:
                bar.set_postfix(self._iterate())
                bar.update()
        finished = self.last_finished >= iterations
        if finished:
            self._finish()
        elif self.config.progress:
            print(
                f"Stopped after iteration {self.last_finished}; go on with --resume "
                f"--out {self.folder.path}"
            )
        if self.writer is not None:
            self.writer.close()
        initial = self.folder.initial()
        return TrainResult(self.folder.path, self.config, self.folder.metrics(), initial, finished)

    def _iterate(self) -> dict[str, str]:
        """One iteration with its logs; returns what the progress bar shows."""
        start = time.perf_counter()
        try:
            iteration = self.trainer.run_iteration()
        except RewardError:
            self._save()  # nothing was updated yet: the state is that of the last iteration
            raise
        records = self.session.env.records()
        team = self.session.team
        steps = sum(s.optimizer_steps for s in team.update_stats.values())
        agents: Metrics = {}
        for agent in self.session.learners:
            agents |= agent_metrics(agent, records, team.rollouts[agent], team.update_stats[agent])
        evaluated = self._evaluate_if_due(iteration)
        self.counters.add(records, steps, time.perf_counter() - start)
        row = {**iteration_metrics(iteration, self.counters), **agents, **evaluated}
        self._log(iteration, row, records)
        self.last_finished = iteration
        self._state = self._current_state()
        if iteration % self.config.checkpoint_interval == 0 or iteration == self.config.iterations:
            self._save()
        if self._stop:
            self._save()
        return {a: f"{agents[f'{a}/score']:.2f}" for a in self.session.learners}

    def _log(self, iteration: int, row: Metrics, records: list[EpisodeRecord]) -> None:
        self.folder.log_metrics(row)
        self.folder.log_samples(iteration, records[: self.config.samples_per_iteration])
        if self.writer is not None:
            for name, value in row.items():
                if isinstance(value, int | float):
                    self.writer.add_scalar(name, value, iteration)

    # Evaluation.

    def _first_evaluation(self) -> None:
        """Evaluate before training; if that fails, leave no folder behind that blocks a new try."""
        try:
            self._evaluate_initial()
        except Exception:
            if self.writer is not None:
                self.writer.close()
            if not self.config.resume:  # a resumed folder may hold what somebody put beside the run
                self.folder.abandon()
            raise

    def _evaluate_initial(self) -> None:
        alone, observer = self._evaluate()
        values = {
            **evaluation_metrics("eval", {a: e.evaluation for a, e in alone.items()}),
            **evaluation_metrics("observer_eval", {a: e.evaluation for a, e in observer.items()}),
        }
        self.folder.write_initial(values, alone)
        if self.writer is not None:
            for name, value in values.items():
                if isinstance(value, int | float):
                    self.writer.add_scalar(name, value, 0)

    def _evaluate_if_due(self, iteration: int) -> Metrics:
        assert self.config.eval_interval is not None
        if iteration % self.config.eval_interval and iteration != self.config.iterations:
            return {}
        alone, observer = self._evaluate()
        self._keep_best(iteration, alone)
        if iteration == self.config.iterations:
            self.folder.write_answers("answers_final.json", alone)
        return {
            **evaluation_metrics("eval", {a: e.evaluation for a, e in alone.items()}),
            **evaluation_metrics("observer_eval", {a: e.evaluation for a, e in observer.items()}),
        }

    def _evaluate(self) -> tuple[dict[str, Evaluated], dict[str, Evaluated]]:
        s = self.session
        s.team.eval()
        alone = {
            agent: evaluate_alone(s.alone_runner, player, s.evaluation_queries)
            for agent, player in s.evaluators.items()
        }
        observer = {}
        if len(s.rules.agents) > 1:
            observer = {
                agent: evaluate_as_observer(
                    s.evaluation_runner, s.evaluators, agent, s.evaluation_queries
                )
                for agent in s.rules.agents
            }
        return alone, observer

    def _keep_best(self, iteration: int, alone: Mapping[str, Evaluated]) -> None:
        """Export the best agent so far by validation score - kl_coef * KL."""
        assert self.config.kl_coef is not None
        values = {
            agent: e.evaluation.score - self.config.kl_coef * e.evaluation.kl
            for agent, e in alone.items()
        }
        agent = max(values, key=lambda a: values[a])
        if self.best and values[agent] <= self.best["value"]:
            return
        self.best = {"agent": agent, "iteration": iteration, "value": values[agent]}
        save_best(self.folder.path / "best", self.session, self.best, alone[agent].evaluation)

    # Checkpoints.

    def _current_state(self) -> dict[str, Any]:
        return {
            "counters": asdict(self.counters),
            "query_position": self.session.queries.position,
            "best": dict(self.best),
        }

    def _save(self) -> None:
        if self.last_finished <= self.last_saved:
            return
        save_checkpoint(
            self.folder.checkpoints, self.last_finished, self.session.learners, self._state
        )
        prune_checkpoints(self.folder.checkpoints, self.config.keep_checkpoints)
        self.last_saved = self.last_finished

    def _restore(self) -> None:
        path = latest_checkpoint(self.folder.checkpoints)
        if path is None:  # stopped before its first checkpoint: begin again
            self.folder.cut_after(0)
            return
        state = load_checkpoint(path, self.session.learners)
        try:
            self.counters = Counters(**state["counters"])
            self.session.queries.position = state["query_position"]
            self.best = state["best"]
        except (KeyError, TypeError) as error:
            raise ValueError(f"checkpoint {path} cannot be used: {error} in state.json") from error
        self._check_iterations(state["iteration"])
        self.last_finished = self.last_saved = state["iteration"]
        self.folder.cut_after(self.last_finished)

    def _check_iterations(self, done: int) -> None:
        assert self.config.iterations is not None
        if self.config.iterations < done:
            raise ValueError(
                f"iterations must be at least the {done} that the run has done, "
                f"got {self.config.iterations}"
            )

    # The end.

    def _finish(self) -> None:
        for agent, learner in self.session.learners.items():
            save_agent(
                self.folder.path / "final" / agent, learner.actor, self.session.loaded[agent]
            )
        draw_curves(self.folder.metrics(), self.session.rules.agents, self.folder.path)

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Let Ctrl-C and SIGTERM end the run after the iteration; a second one ends it at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask_to_stop(number: int, frame: FrameType | None) -> None:
            self._stop = True
            for known, handler in before.items():
                signal.signal(known, handler)

        before = {
            number: signal.signal(number, ask_to_stop) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _bar(self, iterations: int) -> tqdm[Any]:
        return tqdm(
            total=iterations,
            initial=self.last_finished,
            desc=f"{self.config.task} {self.config.method}",
            unit="iteration",
            disable=not self.config.progress,
        )


def main() -> None:
    """Command line of `cory-train`."""
    from agents.command_line import run_command, train_config

    def command(arguments: list[str]) -> None:
        result = train(train_config(arguments))
        if result.finished:
            from agents.report import run_table

            print(run_table(result))

    run_command(command)


if __name__ == "__main__":
    main()
