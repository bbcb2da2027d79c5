"""Where a run goes on from after it was stopped, at whatever moment.

    checkpoint/iteration-000012/progress.json     how far the run is, its gate and audit, what it knows of its prompts
    checkpoint/iteration-000012/learner/          adapter and optimizer, bit for bit

A checkpoint is written under a temporary name and renamed, and only then are earlier ones deleted: there is always a
whole one. What is newer than it (groups of the next iteration, rows of the log, an adapter) is taken up or overwritten
by the iteration when it is done again.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from collect.errors import InputError
from collect.files import replacing_folder
from train.gating import Gating

if TYPE_CHECKING:
    from train.learner import Learner

_FOLDER = "checkpoint"
_PROGRESS = "progress.json"
_LEARNER = "learner"


@dataclass(frozen=True)
class Progress:
    """How far a run is: `iteration` iterations are done.

    `adapter` is the folder of the policy's adapter, in the run, or None while it is the one that the run began with.
    `streaks` counts, by game, its latest zero-variance groups in a row, and `fresh` the fresh tasks looked at so far.
    """

    iteration: int
    gating: Gating
    adapter: str | None = None
    streaks: Mapping[str, int] = field(default_factory=dict)
    fresh: int = 0


def save(run: Path, progress: Progress, learner: "Learner") -> None:
    """Write the checkpoint of an iteration, then delete those before it."""
    folder = run / _FOLDER / f"iteration-{progress.iteration:06d}"
    with replacing_folder(folder) as temporary:
        learner.save_state(temporary / _LEARNER)
        content = {
            "iteration": progress.iteration,
            "gating": progress.gating.as_json(),
            "adapter": progress.adapter,
            "streaks": dict(sorted(progress.streaks.items())),
            "fresh": progress.fresh,
        }
        (temporary / _PROGRESS).write_text(json.dumps(content, indent=1) + "\n")
    for other in (run / _FOLDER).iterdir():
        if other != folder:
            shutil.rmtree(other)


def newest(run: Path) -> Path | None:
    """The folder of the latest whole checkpoint; None where there is none."""
    return max((run / _FOLDER).glob("iteration-*"), default=None)


def load(checkpoint: Path) -> Progress:
    """How far the run was; the learner's part is in `learner_state`. InputError when it cannot be read."""
    path = checkpoint / _PROGRESS
    try:
        content = json.loads(path.read_text())
        return Progress(
            content["iteration"],
            Gating.from_json(content["gating"]),
            content["adapter"],
            content["streaks"],
            content["fresh"],
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: damaged; restore the run from a copy, or start another") from error


def learner_state(checkpoint: Path) -> Path:
    """What the learner goes on from."""
    return checkpoint / _LEARNER
