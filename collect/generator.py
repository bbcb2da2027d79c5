"""Makes ALFWorld games, in ALFWorld's own layout, and plays each one before it is shipped.

A candidate that its walkthrough does not win on the stock engine is replaced by the next; each slot draws its
candidates from its own random numbers, so what fills it depends neither on the other slots nor on how many processes
work. A game's folder appears whole or not at all, and a set of games that was interrupted is completed by asking for it
again.
"""

import fcntl
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from collect.errors import EnvironmentFault, InputError
from collect.files import fsync, replacing
from collect.games import SPLITS, Game
from collect.processes import pool
from collect.recipe import Recipe, Slot

if TYPE_CHECKING:
    from collect.draft import Draft

Progress = Callable[[int, int], None]  # games made so far, games to make

_RECIPE = "recipe.json"
_PARTIAL = ".partial"  # what is being written; hidden, so that nobody who walks the folder takes it for games
_UNWON = 20  # how many candidates of one slot may fail to be won before the engine is to blame


def make_games(
    root: Path,
    counts: Mapping[str, int],
    recipe: Recipe | None = None,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
) -> list[Game]:
    """Make the first `counts[split]` games of each split below `root`, keeping those that are there already.

    It takes about 1.3 s of one core a game; there are `workers` processes, by default one a core. The same recipe gives
    the same bytes, whatever the number of workers and however often it was interrupted. While another process makes
    games in `root`, this one waits for it.

    Returns all the games asked for. Raises `InputError` where `root` holds anything but games of this recipe, and
    `EnvironmentFault` where the engine cannot play.
    """
    recipe = recipe or Recipe()
    slots = [slot for split in SPLITS for slot in recipe.slots(split, counts.get(split, 0))]
    _claim(root, recipe)
    with _alone(root):
        there = _trials(root)
        owed = [slot for slot in slots if (slot.split, slot.trial) not in there]
        if progress and owed:
            progress(0, len(owed))
        for made, (slot, draft) in enumerate(_drafts(owed, workers or len(os.sched_getaffinity(0))), start=1):
            _store(root, slot.split, draft)
            if progress:
                progress(made, len(owed))
    return made_games(root, counts, recipe)


def made_games(root: Path, counts: Mapping[str, int], recipe: Recipe) -> list[Game]:
    """Those of the first `counts[split]` games of each split that `root` holds, in the order of their slots."""
    there = _trials(root)
    slots = [slot for split in SPLITS for slot in recipe.slots(split, counts.get(split, 0))]
    return [
        Game(f"{folder.parent.name}/{folder.name}", folder / "game.tw-pddl", slot.split, slot.task_type)
        for slot in slots
        if (folder := there.get((slot.split, slot.trial)))
    ]


def _trials(root: Path) -> dict[tuple[str, str], Path]:
    """The folders of the games that are there, by split and trial."""
    return {(path.parts[-3], path.name): path for split in SPLITS for path in root.glob(f"{split}/*/trial_*")}


def _claim(root: Path, recipe: Recipe) -> None:
    """Write the recipe into a folder that is new or empty, or find it there already."""
    description = (json.dumps(recipe.description(), indent=1) + "\n").encode()
    note = root / _RECIPE
    try:
        root.mkdir(parents=True, exist_ok=True)
        if note.exists():
            _compare(note, recipe.description())
        elif any(not path.name.startswith(".") for path in root.iterdir()):
            raise InputError(f"{root} holds other things than games made here; give a new or empty folder")
        else:
            with replacing(note) as temporary:
                temporary.write_bytes(description)
    except OSError as error:
        raise InputError(f"{root}: cannot make games there ({error.strerror}); give another folder") from error


def _compare(note: Path, asked: Mapping[str, object]) -> None:
    try:
        there = json.loads(note.read_bytes())
        other = [f"{key} {there.get(key)}, not {value}" for key, value in asked.items() if there.get(key) != value]
    except (ValueError, AttributeError):
        raise InputError(f"{note} is unreadable; give another folder") from None
    if other:
        raise InputError(f"{note.parent} holds games of {'; '.join(other)}; give another folder")


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Hold the folder against other processes that would make games in it; what a killed one left is cleared."""
    with (root / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another process that makes games in {root}", file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(root / _PARTIAL, ignore_errors=True)
        try:
            yield
        finally:
            shutil.rmtree(root / _PARTIAL, ignore_errors=True)


def _store(root: Path, split: str, draft: "Draft") -> None:
    """Write a game's folder under a hidden name, and rename it once it is safe on disk."""
    temporary = root / _PARTIAL / draft.trial
    temporary.mkdir(parents=True)
    for name, content in draft.files.items():
        (temporary / name).write_bytes(content)
        fsync(temporary / name)
    task = root / split / draft.task
    task.mkdir(parents=True, exist_ok=True)
    fsync(temporary)
    temporary.rename(task / draft.trial)
    for folder in (task, task.parent, root):
        fsync(folder)


def _drafts(slots: list[Slot], workers: int) -> Iterator[tuple[Slot, "Draft"]]:
    """The slots, each with the game that fills it, checked in worker processes."""
    if not slots:
        return
    with pool(min(workers, len(slots))) as processes:
        yield from zip(slots, processes.map(fill, slots), strict=True)


# What follows runs in the worker processes.


def fill(slot: Slot) -> "Draft":
    """The first candidate for a slot that belongs there and is won.

    Raises `EnvironmentFault` where the engine wins none of many.
    """
    from collect.draft import draft

    reasons: list[str] = []
    attempt = 0
    while len(reasons) < _UNWON:
        candidate = draft(slot.split, slot.task_type, slot.difficulty, slot.trial, slot.random(attempt))
        attempt += 1
        if candidate is None or not belongs(candidate, slot.split):
            continue
        reason = _why_unwon(candidate)
        if reason is None:
            return candidate
        reasons.append(reason)
    raise EnvironmentFault(f"none of {_UNWON} candidates for {slot.split}/{slot.trial} can be won: {reasons[-1]}")


def belongs(candidate: "Draft", split: str) -> bool:
    """Train and valid_seen share their rooms; a game's content says which of the two it may be in, so never both."""
    return split == "valid_unseen" or (int(candidate.fingerprint, 16) % 4 == 0) == (split == "valid_seen")


def _why_unwon(candidate: "Draft") -> str | None:
    """Play the walkthrough on the stock engine: None where exactly its last command wins, else what went wrong."""
    from collect.stock import StockInstance

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "game.tw-pddl")
        path.write_bytes(candidate.files[path.name])
        try:
            instance = StockInstance(path)
        except EnvironmentFault as fault:
            return str(fault)
        try:
            observation = instance.reset()
            for command in candidate.walkthrough:
                if observation.won:
                    return f"won before {command!r}"
                if command not in observation.admissible_commands:
                    return f"{command!r} is not admissible"
                observation = instance.step(command)
            return None if observation.won else "not won at the end of its walkthrough"
        except EnvironmentFault as fault:
            return str(fault)
        finally:
            instance.close()
