"""ALFWorld games on disk: finding them, their splits and task types.

A folder of games is laid out as ALFWorld's own data set, `<split>/<task>/<trial>/game.tw-pddl` with a traj_data.json
beside it, whether it was downloaded or made by `collect.generator`. The games that count are those that ALFWorld's own
loader counts: of the six task types, without movable receptacles or slices, and known to be solvable.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from collect.cache import cache_folder
from collect.errors import InputError

if TYPE_CHECKING:
    from collect.recipe import Recipe

SPLITS = ("train", "valid_seen", "valid_unseen")
TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
DATASET = "json_2.1.1"  # the folder below $ALFWORLD_DATA that `alfworld-download` fills
MADE = {"train": 120, "valid_seen": 60, "valid_unseen": 60}  # games made when nothing has been downloaded


@dataclass(frozen=True, slots=True)
class Game:
    """One ALFWorld text game.

    `path` is its game.tw-pddl; `id` is `<task>/<trial>`, the two folders it lies in, as published tables name it.
    """

    id: str
    path: Path
    split: str
    task_type: str


@dataclass(frozen=True, slots=True)
class GameFile:
    """What a game.tw-pddl holds. `solvable` is None where nobody has checked; the walkthrough wins the game."""

    pddl_domain: str
    grammar: str
    pddl_problem: str
    solvable: bool | None
    walkthrough: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Task:
    """What a game asks for, in ALFWorld's type names (`Apple`); parent or toggle is empty where the task has none."""

    task_type: str
    object_target: str
    parent_target: str
    toggle_target: str


@dataclass(frozen=True, slots=True)
class Source:
    """The folder that the games of one split are read from, and why that one."""

    folder: Path
    origin: Literal["given", "downloaded", "generated"]


def find_games(split: str, root: Path | None = None) -> list[Game]:
    """All usable games of a split, sorted by id.

    They are looked for in `root` (a folder of splits, of one split, or of games), else in the downloaded data set
    (`$ALFWORLD_DATA/json_2.1.1`), else among generated games in the user's cache, which are made now, once, if need be.

    Raises `InputError` for an unknown split, a folder without usable games, or a corrupt game file.
    """
    if split not in SPLITS:
        raise InputError(f"unknown split {split!r}; choose from {', '.join(SPLITS)}")
    sources = find_sources(root)
    if root is None and split not in sources:
        _make_default(split)
        sources = find_sources()
    source = sources.get(split) or sources.get("")
    if source is None:
        raise InputError(f"{root} holds no {split} games, only {' and '.join(sources)}; name another split or folder")
    return read_games(source.folder, split)


def find_sources(root: Path | None = None) -> dict[str, Source]:
    """Where the games of each split are, for the splits that are there; makes none.

    A `root` that holds games of no named split is under the empty name. Raises `InputError` where `root` is no folder.
    """
    if root is not None:
        return {split: Source(folder, "given") for split, folder in _given(root).items()}
    data = Path(os.environ.get("ALFWORLD_DATA") or Path.home() / ".cache" / "alfworld") / DATASET
    sources = {}
    for split in SPLITS:
        if next(_game_paths(data / split), None):
            sources[split] = Source(data / split, "downloaded")
        elif folder := _default_games(split):
            sources[split] = Source(folder, "generated")
    return sources


def read_games(folder: Path, split: str) -> list[Game]:
    """The usable games anywhere below a folder, as games of `split`, sorted by id.

    Raises `InputError` where there are none or a file is corrupt.
    """
    games: dict[str, Game] = {}
    skipped: Counter[str] = Counter()
    for path in _game_paths(folder):
        game = _read_game(path, split)
        if isinstance(game, str):
            skipped[game] += 1
        elif game.id in games:
            raise InputError(f"{game.path} and {games[game.id].path} have the same <task>/<trial>; remove one of them")
        else:
            games[game.id] = game
    if not games:
        why = "; ".join(f"{count} {reason}" for reason, count in sorted(skipped.items()))
        raise InputError(f"{folder}: no usable games there{f' ({why})' if why else ''}; {_ADVICE}")
    return [games[id_] for id_ in sorted(games)]


def game_at(path: Path) -> Game:
    """The game of one game.tw-pddl, whatever lies beside it. Raises `InputError` where that is no game."""
    read_game_file(path)
    return Game("/".join(path.absolute().parts[-3:-1]), path, "given", "")


def read_game_file(path: Path) -> GameFile:
    """Read a game.tw-pddl. Raises `InputError` naming the file where it is unreadable or not a game."""
    data = _read_json(path)
    for key in ("pddl_domain", "grammar", "pddl_problem"):
        if not isinstance(data.get(key), str):
            raise InputError(f"{path}: not an ALFWorld game: no text under {key!r}; download or make it again")
    walkthrough = data.get("walkthrough")
    if walkthrough is not None and not (isinstance(walkthrough, list) and all(isinstance(c, str) for c in walkthrough)):
        raise InputError(f"{path}: not an ALFWorld game: no commands under 'walkthrough'; download or make it again")
    return GameFile(
        data["pddl_domain"],
        data["grammar"],
        data["pddl_problem"],
        data.get("solvable"),
        None if walkthrough is None else tuple(walkthrough),
    )


def task_of(game: Game) -> Task:
    """The game's task, from the traj_data.json beside it. Raises `InputError` where that is unreadable."""
    path = game.path.with_name("traj_data.json")
    data = _read_json(path)
    try:
        parameters = data["pddl_params"]
        targets = (str(parameters[key] or "") for key in ("object_target", "parent_target", "toggle_target"))
        return Task(str(data["task_type"]), *targets)
    except (KeyError, TypeError):
        raise InputError(f"{path}: no task_type or pddl_params; download or make the game again") from None


_ADVICE = "run `sr games make FOLDER` to make some, or `alfworld-download` to download ALFWorld's"


def _given(root: Path) -> dict[str, Path]:
    """The folder of each split in a folder that the user named; under the empty name what belongs to no split."""
    root = root.absolute()
    if not root.is_dir():
        raise InputError(f"{root}: no such folder of games; {_ADVICE}")
    for parent in (root, root / DATASET):
        if folders := {split: parent / split for split in SPLITS if (parent / split).is_dir()}:
            return folders
    return {root.name if root.name in SPLITS else "": root}


def _default_games(split: str) -> Path | None:
    """The folder of generated games in the user's cache, if they have all been made."""
    from collect.generator import made_games

    root, recipe = _default_recipe()
    return root / split if len(made_games(root, {split: MADE[split]}, recipe)) == MADE[split] else None


def _make_default(split: str) -> None:
    from collect.generator import make_games
    from collect.progress import counted

    root, recipe = _default_recipe()
    label = f"no downloaded ALFWorld games found: making {MADE[split]} {split} games, once, in {root}"
    with counted(label, "games") as progress:
        make_games(root, {split: MADE[split]}, recipe, progress=progress)


def _default_recipe() -> "tuple[Path, Recipe]":
    from collect.recipe import GENERATOR, Recipe

    recipe = Recipe()
    return cache_folder("games", f"generator-{GENERATOR}-seed-{recipe.seed}-{recipe.identity()[:8]}"), recipe


def _game_paths(folder: Path) -> Iterator[Path]:
    """Every game.tw-pddl below a folder, hidden folders left out."""
    for directory, subdirectories, files in os.walk(folder):
        subdirectories[:] = sorted(name for name in subdirectories if not name.startswith("."))
        if "game.tw-pddl" in files:
            yield Path(directory, "game.tw-pddl")


def _read_game(path: Path, split: str) -> Game | str:
    """The game, or the reason why ALFWorld would not play it."""
    task, trial = path.parts[-3:-1]
    if "movable" in task or "Sliced" in task:
        return "with movable receptacles or slices, which ALFWorld does not support"
    annotation = path.with_name("traj_data.json")
    if not annotation.is_file():
        return "without a traj_data.json"
    task_type = _read_json(annotation).get("task_type")
    if task_type not in TASK_TYPES:
        return "of another task type"
    if not read_game_file(path).solvable:
        return "not known to be solvable"
    return Game(f"{task}/{trial}", path, split, task_type)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: unreadable ({error}); download or make it again") from None
    if not isinstance(data, dict):
        raise InputError(f"{path}: holds no JSON object; download or make it again")
    return data
