"""`cory-train`: from settings to a run folder."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from agents.config import TrainConfig
from agents.run_folder import RunFolder, next_numbered
from agents.session import build_session, resolve_config
from agents.training import StorageError, Training, TrainResult

__all__ = ["StorageError", "TrainResult", "Training", "main", "train"]


def train(config: TrainConfig) -> TrainResult:
    """Train, and write the run folder.

    Args:
        config: settings; those that are None take the task's own values.

    Returns:
        The folder and the logged numbers.

    Raises:
        ValueError: if a setting does not fit; nothing has been trained then.
        RewardError: if the reward fails; the run keeps a checkpoint of the last finished iteration.
        NonFiniteError: if a loss or gradient is not finite; so it does then, and the minibatch lies
            in `failed_batch/`.
        StorageError: if the folder cannot be written any more; the last checkpoint is whole.
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
    with folder.locked():
        try:
            training = Training(session, folder)
            if config.resume:  # only now: a checkpoint that cannot be used changes nothing
                folder.resume(config)
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
        result = train(train_config(arguments))
        if result.finished:
            from agents.report import run_table

            print(run_table(result))
        else:
            print(result.stopped, file=sys.stderr)
            raise SystemExit(result.status)

    run_command(command)


if __name__ == "__main__":
    main()
