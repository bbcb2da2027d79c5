"""Matched arms: runs that differ in what their gate does and in their seed, and in nothing else.

Runs of one seed play the same games in the same order with the same seeds of requests. Each is an ordinary run in a
folder below, `<arm>-<seed>`, and its run.json says `arm` and `seed`, by which reports pair them. What all of them are
is settled before the first begins and stands in arms.json: whenever the others begin, it is with the same settings.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from collect.errors import InputError
from collect.files import replacing
from collect.store import is_run
from train.session import Plan, continued
from train.settings import Mode

_FILE = "arms.json"


class _Settled(BaseModel):
    """What arms.json holds: as in run.json, but of all arms together."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    configuration: dict[str, Any]
    options: dict[str, Any]


def arms_of(whole: Plan, folder: Path) -> list[tuple[Path, Plan]]:
    """The runs of a plan and their folders, seed by seed: all arms of a seed before the next seed begins."""
    settings = whole.settings
    if settings.arms is None:
        return [(folder, whole)]
    runs = []
    for seed in settings.seeds or (settings.seed,):
        for arm in settings.arms:
            one = settings.model_copy(update={"arms": None, "seeds": None, "gate_mode": arm, "seed": seed})
            own = {"arm": one.arm, "gate_mode": arm, "seed": seed}
            runs.append((folder / f"{arm}-{seed}", Plan(one, whole.policy, whole.configuration | own)))
    return runs


def settle(whole: Plan, folder: Path) -> None:
    """Write down what the arms of a plan are; InputError where the folder has arms already, or cannot be written to."""
    begun = [path for mode in get_args(Mode) for path in folder.glob(f"{mode}-*") if is_run(path)]
    if begun:
        raise InputError(f"{min(begun)}: holds a run already; give --resume to go on with it, or another folder")
    content = _Settled(configuration=whole.configuration, options=whole.settings.options(whole.policy))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / _FILE) as temporary:
            temporary.write_text(json.dumps(content.model_dump(), indent=2, allow_nan=False) + "\n")
    except OSError as error:
        raise InputError(f"{folder}: cannot be written to ({error.strerror}); give another folder") from error


def are_settled(folder: Path) -> bool:
    """Whether the folder is that of matched arms."""
    return (folder / _FILE).is_file()


def settled(folder: Path, flags: Mapping[str, Any]) -> Plan:
    """The plan of the arms in a folder, begun or not; of the flags, those that may change take effect.

    Raises:
        InputError: arms.json is damaged, or a flag says something else than it.
    """
    path = folder / _FILE
    try:
        there = _Settled.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise InputError(f"{path}: damaged; go on with each arm by its own folder, or start anew in another") from error
    return continued(there.options, there.configuration, flags)
