"""`cory-train`: from settings to a run folder."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from agents.config import TrainConfig
from agents.distributed import Processes, only_main_talks, processes_of
from agents.run_folder import RunFolder, fixed_settings, next_numbered
from agents.session import build_session, resolve_config
from agents.sharing import check_beginning
from agents.stock_training import StockTraining, is_stock
from agents.training import StorageError, Training, TrainResult

__all__ = ["StorageError", "TrainResult", "Training", "main", "train"]


def train(config: TrainConfig, processes: Processes | None = None) -> TrainResult:
    """Train, and write the run folder.

    Args:
        config: settings; those that are None take the task's own values.
        processes: those that share the work, each of which calls this; None: what a launcher such
            as `accelerate launch` started, or this process alone.

    Returns:
        The folder and the logged numbers.

    Raises:
        ValueError: if a setting does not fit; nothing has been trained then.
        RewardError: if the reward fails; the run keeps a checkpoint of the last finished iteration.
        NonFiniteError: if a loss or gradient is not finite; so it does then, and the minibatch lies
            in `failed_batch/`.
        StorageError: if the folder cannot be written any more; the last checkpoint is whole.
        PeerError: if another of several processes failed; its error is told in the sentence.
    """
    if config.resume and config.out is None:
        raise ValueError("resume needs out: the folder of the run to go on with")
    if processes is None:
        processes = processes_of(config.device)
    if not processes.main:
        config = replace(config, progress=False, tensorboard=False)
    with processes.section():
        config, task = resolve_config(config)
    # The free number in `runs/` that the main process finds.
    out = processes.from_main(str(config.out or next_numbered(Path("runs"), task.name)))
    config = replace(config, out=Path(out))
    folder = RunFolder(Path(out), processes.size)
    # The folder is claimed after everything else was checked, so a refused run leaves none behind;
    # whether it can be claimed is checked first, since loading models may take minutes.
    with processes.section():
        folder.check(config)
    with processes.section():
        session = build_session(config, task, processes)
    check_beginning(processes, fixed_settings(config), session.learners, 0)
    if not config.resume:
        processes.by_main(lambda: folder.start(config))
    with ExitStack() as stack:
        processes.by_main(lambda: stack.enter_context(folder.locked()))
        with processes.section():
            folder.check_seen()
        try:
            loop = StockTraining if is_stock(config.algorithm) else Training
            training = loop(session, folder)
            if config.resume:  # only now: a checkpoint that cannot be used changes nothing
                processes.by_main(lambda: folder.resume(config))
        except OSError as error:
            raise StorageError(
                f"out {folder.path} cannot be read or written: {error.strerror or error}; "
                f"its checkpoints are as they were"
            ) from error
        return training.run()


def main() -> None:
    """Command line of `cory-train`."""
    from agents.command_line import run_command, train_config

    def command(arguments: list[str]) -> None:
        with only_main_talks():  # all parse the same flags
            config = train_config(arguments)
        processes = processes_of(config.device)
        result = train(config, processes)
        processes.close()
        if not result.finished:
            if processes.main:
                print(result.stopped, file=sys.stderr)
            raise SystemExit(result.status)
        if processes.main:
            from agents.report import run_table

            print(run_table(result))

    run_command(command)


if __name__ == "__main__":
    main()
