"""The loop of a run: iterations, logs, evaluations, checkpoints, and how it ends."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from agents.bridge.trainer import IterationTrainer
from agents.checkpoint import (
    AgentState,
    capture,
    checkpoints,
    discard_later,
    latest_checkpoint,
    load_checkpoint,
    prune_checkpoints,
    save_checkpoint,
    unusable,
    ways_on,
)
from agents.config import TrainConfig
from agents.curves import draw_curves
from agents.evaluation import Evaluated, evaluate_alone, evaluate_as_observer
from agents.export import save_agent, save_best
from agents.guards import Health, NonFiniteError, Watch, check_stop_on, health
from agents.header import run_header
from agents.identity import identity
from agents.metrics import (
    Counters,
    Metrics,
    agent_metrics,
    evaluation_metrics,
    iteration_metrics,
)
from agents.run_folder import RunFolder
from agents.session import Session
from agents.sharing import check_beginning, check_in_step
from agents.stopping import StopRequest
from cory_env.records import EpisodeRecord
from cory_env.roles import role_names

SNAPSHOT_BYTES = 2**30
"""A copy of the agents after each iteration is kept in main memory if it is at most this large;
only then can a run that fails inside an iteration save the one before."""


class StorageError(OSError):
    """The run folder cannot be written."""


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
    stopped: str | None = None
    """Why it was interrupted and how to go on."""
    status: int = 0
    """Exit status of `cory-train`: 130 after Ctrl-C, 143 after SIGTERM, 1 after a guard."""


class Training:
    """The loop: iterations, logs, evaluations, checkpoints."""

    def __init__(self, session: Session, folder: RunFolder) -> None:
        self.session = session
        self.config = session.config
        self.folder = folder
        self.counters = Counters()
        self.best: dict[str, Any] = {}
        self.roles = role_names(len(session.rules.agents))
        self._bytes: int | None = None
        self.last_finished = 0
        self.last_saved = 0
        self.processes = session.processes
        self.stop = StopRequest()
        self.ending = False
        self.stop_on = check_stop_on(self.config.stop_on)
        self.tripped: str | None = None
        self._snapshot: dict[str, AgentState] | None = None
        self.watch = Watch(self.config.guard_bounds)
        self.identity = identity(session)
        if self.config.resume:
            self._restore()
        check_beginning(self.processes, self.identity, session.learners, self.last_finished)
        self._state, self._snapshot = self._current_state(), self._current_agents()
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
        """Train until the last iteration, or until somebody or a guard interrupts."""
        if self.config.progress:
            print(run_header(self.session, self.folder.path))
        try:
            with self.stop.listening():
                self._run()
        except OSError as error:
            raise self._storage_error(error) from error
        finished = self.last_finished >= self._iterations
        stopped = None if finished else self._stopped()
        return TrainResult(
            out=self.folder.path,
            config=self.config,
            metrics=self.folder.metrics(),
            initial=self.folder.initial(),
            finished=finished,
            stopped=stopped,
            status=0 if finished else 1 if self.stop.signal is None else 128 + self.stop.signal,
        )

    @property
    def _iterations(self) -> int:
        assert self.config.iterations is not None
        return self.config.iterations

    def _run(self) -> None:
        if self.last_finished == 0:
            self._first_evaluation()
        self._agree_to_end()
        with self._bar(self._iterations) as bar:
            while self.last_finished < self._iterations and not self.ending:
                bar.set_postfix(self._iterate())
                bar.update()
        if self.last_finished >= self._iterations:
            self.processes.by_main(self._finish)
        if self.writer is not None:
            self.writer.close()

    def _agree_to_end(self) -> None:
        """End in all processes if one was asked to; between two calls a request waits."""
        self.stop.signal = self.processes.highest(self.stop.signal or 0) or None
        self.ending = self.stop.asked or self.tripped is not None

    def _stopped(self) -> str:
        """The sentence that ends an interrupted run."""
        why = f" ({self.tripped})" if self.tripped else ""
        after = f"after iteration {self.last_finished}" if self.last_finished else "before training"
        return f"stopped {after}{why}; go on with --resume --out {self.folder.path}"

    def _storage_error(self, error: OSError) -> StorageError:
        """One sentence for a full disk or a folder that became read-only."""
        kept = (
            f"the checkpoint of iteration {self.last_saved} is whole"
            if self.last_saved
            else "there is no checkpoint yet, so it will begin again"
        )
        return StorageError(
            f"out {self.folder.path} cannot be written: {error.strerror or error}; {kept}: make "
            f"room, then go on with --resume --out {self.folder.path}"
        )

    def _iterate(self) -> dict[str, str]:
        """One iteration with its logs; returns what the progress bar shows."""
        try:
            row, records, seen = self._play()
        except OSError:
            raise
        except Exception as error:
            with suppress(OSError):  # what went wrong first is what the user should read
                self._rescue(error)
            raise
        iteration = self.trainer.iteration
        self.processes.by_main(lambda: self._log(iteration, row, records))
        self._warn(iteration, seen)
        self.last_finished = iteration
        self._state, self._snapshot = self._current_state(), self._current_agents()
        self._agree_to_end()
        due = iteration % self.config.checkpoint_interval == 0 or iteration == self._iterations
        if due or self.ending:
            self._save()
        return {a: f"{row[f'{a}/score']:.2f}" for a in self.session.learners}

    def _play(self) -> tuple[Metrics, list[EpisodeRecord], dict[str, Health]]:
        """Collect, update and evaluate: the row of the log, the episodes, and agents' health."""
        start = time.perf_counter()
        iteration = self.trainer.run_iteration()
        records = self.session.env.records()
        team = self.session.team
        steps = sum(s.optimizer_steps for s in team.update_stats.values())
        agents: Metrics = {}
        seen = {}
        for agent in self.session.learners:
            agents |= agent_metrics(agent, records, team.rollouts[agent], team.update_stats[agent])
            kl, entropy = agents[f"{agent}/kl"], agents[f"{agent}/entropy"]
            assert isinstance(kl, float)
            seen[agent] = health(agent, records, kl, entropy)
        evaluated = self._evaluate_if_due(iteration)
        self.counters.add(records, steps, time.perf_counter() - start, team.extra)
        row = {**iteration_metrics(iteration, self.counters), **agents, **evaluated}
        check_in_step(self.processes, row, self.session.learners, iteration)
        return row, records, seen

    def _log(self, iteration: int, row: Metrics, records: list[EpisodeRecord]) -> None:
        self.folder.log_metrics(row)
        self.folder.log_samples(iteration, records[: self.config.samples_per_iteration])
        if self.writer is not None:
            for name, value in row.items():
                if isinstance(value, int | float):
                    self.writer.add_scalar(name, value, iteration)

    def _warn(self, iteration: int, seen: Mapping[str, Health]) -> None:
        """Name what the guards see, and end the run if it is to end on that."""
        roles = dict(zip(self.session.turn_order(iteration), self.roles, strict=True))
        rows = self.watch.look(iteration, roles, seen)
        self.processes.by_main(lambda: self.folder.log_warnings(rows))
        for row in rows:
            text = f"iteration {iteration}, {row['agent']}, {row['guard']}: {row['message']}"
            if self.processes.main:
                tqdm.write(f"warning: {text}", file=sys.stderr)
            if row["guard"] in self.stop_on:
                self.tripped = self.tripped or text

    # Evaluation.

    def _first_evaluation(self) -> None:
        """Evaluate before training; if that fails, leave no folder behind that blocks a new try."""
        try:
            self._evaluate_initial()
        except Exception:
            if self.writer is not None:
                self.writer.close()
            # A resumed folder may hold what somebody put beside the run.
            if self.processes.main and not self.config.resume:
                self.folder.abandon()
            raise

    def _evaluate_initial(self) -> None:
        alone, observer = self._evaluate()
        values = {
            **evaluation_metrics("eval", {a: e.evaluation for a, e in alone.items()}),
            **evaluation_metrics("observer_eval", {a: e.evaluation for a, e in observer.items()}),
        }
        self.processes.by_main(lambda: self.folder.write_initial(values, alone))
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
            self.processes.by_main(lambda: self.folder.write_answers("answers_final.json", alone))
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
        path, evaluation = self.folder.path / "best", alone[agent].evaluation
        self.processes.by_main(lambda: save_best(path, self.session, self.best, evaluation))

    # Checkpoints.

    def _current_state(self) -> dict[str, Any]:
        return {
            "counters": asdict(self.counters),
            "query_position": self.session.queries.position,
            "best": dict(self.best),
            "guards": self.watch.to_json(),
            "run": self.identity,
        }

    def _current_agents(self) -> dict[str, AgentState] | None:
        """Copies of the agents as they are now; None where they are too large to be kept."""
        if self._bytes is None:
            tensors = [t for x in self.session.learners.values() for t in x.actor.parameters()]
            # Weights and the two moments of Adam.
            self._bytes = 3 * sum(t.numel() * t.element_size() for t in tensors)
        if self._bytes > SNAPSHOT_BYTES or not self.processes.main:
            return None
        return capture(self.session.learners, self._snapshot)

    def _save(self) -> None:
        """Write the checkpoint of the iteration that has just ended, and remove old ones."""
        if self.last_finished <= self.last_saved:
            return
        self.processes.by_main(self._save_alone)
        self.last_saved = self.last_finished

    def _save_alone(self) -> None:
        # What is too large for a copy is written from where it lies.
        self._write_checkpoint(self._snapshot or capture(self.session.learners, lend=True))
        prune_checkpoints(self.folder.checkpoints, self.config.keep_checkpoints)

    def _write_checkpoint(self, agents: Mapping[str, AgentState]) -> None:
        self.folder.sync_logs()
        save_checkpoint(self.folder.checkpoints, self.last_finished, agents, self._state)
        self.last_saved = self.last_finished

    def _rescue(self, error: Exception) -> None:
        """Keep what a run that fails inside an iteration leaves: the iteration before, whole.

        No older checkpoint is removed: what ruined this iteration may have begun before it.
        """
        if not self.processes.main:
            return
        if isinstance(error, NonFiniteError):
            self.folder.save_failed_batch(error)
        if self._snapshot is not None and self.last_finished > self.last_saved:
            self._write_checkpoint(self._snapshot)

    def _restore(self) -> None:
        self.processes.by_main(self.folder.mend)
        with self.processes.section():
            self._load()
        self.processes.by_main(self._clear_up)

    def _load(self) -> None:
        """Take over the state of a checkpoint; without one the run begins again."""
        path = self._checkpoint()
        if path is None:  # stopped before its first checkpoint
            return
        state = load_checkpoint(path, self.session.learners, self.identity)
        try:
            self.counters = Counters(**state["counters"])
            self.session.queries.position = state["query_position"]
            self.best = dict(state["best"])
            self.watch.restore(state["guards"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise unusable(path, f"{error} in state.json") from error
        self._check_iterations(state["iteration"])
        self.last_finished = self.last_saved = state["iteration"]

    def _clear_up(self) -> None:
        """Remove what came after the checkpoint."""
        self.folder.cut_after(self.last_finished)
        if self.last_finished:
            discard_later(self.folder.checkpoints, self.last_finished)
            # A process that was killed after its last checkpoint may have left this undone.
            prune_checkpoints(self.folder.checkpoints, self.config.keep_checkpoints)

    def _checkpoint(self) -> Path | None:
        """The checkpoint to go on from; None if there is none yet."""
        folder, wanted = self.folder.checkpoints, self.config.resume_from
        if wanted is None:
            return latest_checkpoint(folder)
        found = checkpoints(folder)
        if wanted not in found:
            raise ValueError(
                f"resume_from {wanted} names no checkpoint in {folder}; {ways_on(folder)}"
            )
        return found[wanted]

    def _check_iterations(self, done: int) -> None:
        if self._iterations < done:
            raise ValueError(
                f"iterations must be at least the {done} that the run has done, "
                f"got {self._iterations}"
            )

    # The end.

    def _finish(self) -> None:
        for agent, learner in self.session.learners.items():
            path = self.folder.path / "final" / agent
            save_agent(path, learner.actor, self.session.loaded[agent], self.config)
        draw_curves(self.folder.metrics(), self.session.rules.agents, self.folder.path)

    def _bar(self, iterations: int) -> tqdm[Any]:
        return tqdm(
            total=iterations,
            initial=self.last_finished,
            desc=f"{self.config.task} {self.config.method}",
            unit="iteration",
            disable=not self.config.progress,
        )
