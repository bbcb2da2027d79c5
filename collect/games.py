"""ALFWorld games on disk: finding them, their splits and task types."""

from dataclasses import dataclass
from pathlib import Path

SPLITS = ("train", "valid_seen", "valid_unseen")
TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)


@dataclass(frozen=True, slots=True)
class Game:
    """One ALFWorld text game.

    `path` is its game.tw-pddl; `id` is `<task>/<trial>`, the two folders it lies in, as published tables name it.
    """

    id: str
    path: Path
    split: str
    task_type: str
