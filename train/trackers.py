"""TensorBoard and Weights & Biases, for who watches runs there."""

import hashlib
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from collect.errors import MissingDependency
from collect.store import read_run
from train.log import Tracker


class TensorBoard:
    """Writes event files into `tensorboard/` of the run."""

    def __init__(self, run: Path, done: int) -> None:
        """Go on after `done` iterations; what was written of later ones is not shown."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(run / "tensorboard"), purge_step=done + 1 if done else None)

    def write(self, iteration: int, numbers: Mapping[str, float]) -> None:
        """See `train.log.Tracker`."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, iteration)
        self._writer.flush()

    def close(self) -> None:
        """See `train.log.Tracker`."""
        self._writer.close()


class WandB:
    """Sends numbers to a project of Weights & Biases; its own environment variables say where and whether online."""

    def __init__(self, run: Path, project: str, configuration: Mapping[str, Any]) -> None:
        """A resumed run goes on where it was; the arms of another experiment have the same names, and other ids."""
        import wandb

        begun = f"{run.resolve()} {read_run(run).created}"
        self._run: Any = wandb.init(
            project=project,
            name=run.name,
            id=hashlib.sha256(begun.encode()).hexdigest()[:16],
            resume="allow",
            dir=str(run),
            config=dict(configuration),
        )

    def write(self, iteration: int, numbers: Mapping[str, float]) -> None:
        """See `train.log.Tracker`."""
        # A step of its own would refuse an iteration that is done again.
        self._run.log({"iteration": iteration, **numbers})

    def close(self) -> None:
        """See `train.log.Tracker`."""
        self._run.finish()


def check_trackers(tensorboard: bool, wandb: str | None) -> None:
    """Raise `MissingDependency` where a tracker that is asked for is not installed."""
    if tensorboard and find_spec("tensorboard") is None:
        raise MissingDependency("tensorboard", "pip install tensorboard")
    if wandb is not None and find_spec("wandb") is None:
        raise MissingDependency("wandb", "pip install wandb")


def open_trackers(
    run: Path, done: int, tensorboard: bool, wandb: str | None, configuration: Mapping[str, Any]
) -> list[Tracker]:
    """The trackers that are asked for, for a run with `done` iterations behind it."""
    trackers: list[Tracker] = [TensorBoard(run, done)] if tensorboard else []
    if wandb is not None:
        trackers.append(WandB(run, wandb, configuration))
    return trackers
