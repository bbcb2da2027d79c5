"""Other trainers' logs as ordinary runs.

A run appears whole or not at all: it is written under a hidden name beside its place, and renamed in the end.
"""

import json
import math
import os
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from collect import import_art, import_long, import_selective_rollout, import_verl
from collect.errors import InputError
from collect.files import fsync, replacing
from collect.import_format import Format
from collect.import_groups import Import
from collect.logged import LoggedGroup
from collect.rows import GroupRows, Row
from collect.schema import GROUPS, STEPS, TRAJECTORIES, Table
from collect.source import Complaints, Source, find_files, fingerprint
from collect.store import open_run

SUMMARY_FILE = "import.json"  # in the run: what was noticed
_GROUPS_A_PART = 64


@dataclass(frozen=True)
class Imported:
    """What an import gave. `sizes` and `horizons` say how many groups have each; `horizon` is set where the longest
    trajectory stands for it. `actions` tells how the actions of conversations were found, `null` which columns of each
    table have no value.
    """

    groups: int
    trajectories: int
    steps: int
    sizes: dict[int, int]
    horizons: dict[int, int]
    horizon: int | None
    actions: dict[str, int]
    null: dict[str, list[str]]
    malformed: Complaints
    left_out: Complaints
    torn: list[str]


def import_log(
    path: Path, kind: Format, mapping: Mapping[str, str], out: Path, progress: Callable[[int, int], None]
) -> Imported:
    """Write the groups of a log as a run in `out`, and say what was imported and what was not.

    `path` is a file, or for all formats but the long one a folder of them; `progress` is called with the bytes read and
    in all. Raises InputError, with nothing written, when `out` is there already or cannot be written to, when the log
    is not there or not of this kind, or when no group of it can be used.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out}: exists; give another folder for the run")
    if kind is Format.LONG and path.is_dir():
        raise InputError(f"{path}: is a folder; give one file of rows")
    files = find_files(path, ".parquet" if kind is Format.ART else ".jsonl")
    log = Import(Source(files, progress))
    try:
        read = [fingerprint(file) for file in files]
    except OSError as error:
        raise InputError(f"{error.filename}: cannot be read ({error.strerror}); make it readable") from error
    configuration = {"format": kind.value, "files": read, "map": dict(mapping)}
    staging = out.absolute().with_name(f".{out.absolute().name}.{os.getpid()}.importing")
    shutil.rmtree(staging, ignore_errors=True)  # left by an import of the same number that was killed
    try:
        imported = _write(staging, log, _groups(log, kind, mapping), configuration, path)
        if not imported.groups:
            raise InputError(f"{path}: no group can be imported{_first(log)}")
        staging.replace(out.absolute())
        fsync(out.absolute().parent)
    except OSError as error:
        raise InputError(f"{out}: cannot be written ({error.strerror}); give another folder") from error
    except sqlite3.Error as error:
        raise InputError(f"{path}: cannot be sorted on disk ({error}); set TMPDIR to a roomy folder") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return imported


def _groups(log: Import, kind: Format, mapping: Mapping[str, str]) -> Iterator[LoggedGroup]:
    match kind:
        case Format.SELECTIVE_ROLLOUT:
            return import_selective_rollout.groups(log)
        case Format.VERL:
            return import_verl.groups(log)
        case Format.ART:
            return import_art.groups(log)
        case Format.LONG:
            return import_long.groups(log, mapping)


def _write(
    staging: Path, log: Import, groups: Iterator[LoggedGroup], configuration: Mapping[str, object], path: Path
) -> Imported:
    visits, sizes, horizons, filled = Counter[str](), Counter[int](), Counter[int](), _Filled()
    steps = 0
    facts = {"log": str(path), "packages": {"selective-rollout": version("selective-rollout")}}
    with open_run(
        staging, configuration, facts, command="import", flush_groups=_GROUPS_A_PART, flush_seconds=math.inf
    ) as run:
        for group in groups:
            horizon = group.horizon or log.horizon
            assert horizon is not None
            rows = group.rows(visits[group.game_id], max(horizon, 1))
            visits[group.game_id] += 1
            run.add_rows(rows)
            filled.see(rows)
            steps += len(rows.steps)
            sizes[len(rows.trajectories)] += 1
            horizons[horizon] += 1
    imported = Imported(
        groups=sizes.total(),
        trajectories=sum(size * count for size, count in sizes.items()),
        steps=steps,
        sizes=dict(sizes),
        horizons=dict(horizons),
        horizon=log.horizon,
        actions=dict(log.actions.most_common()),
        null=filled.null(),
        malformed=log.source.malformed,
        left_out=log.left_out,
        torn=log.source.torn,
    )
    with replacing(staging / SUMMARY_FILE) as temporary:
        temporary.write_text(json.dumps(asdict(imported), indent=2) + "\n")
    return imported


class _Filled:
    """Which columns have a value somewhere; those of the gate's decision do not count, as a log has none."""

    def __init__(self) -> None:
        self._empty = {
            table.name: [column.name for column in table.columns if not column.name.startswith("gate_")]
            for table in (GROUPS, TRAJECTORIES, STEPS)
        }

    def see(self, rows: GroupRows) -> None:
        """Look at the rows of a group."""
        self._look(GROUPS, rows.group)
        for row in rows.trajectories:
            self._look(TRAJECTORIES, row)
        for row in rows.steps:
            self._look(STEPS, row)

    def null(self) -> dict[str, list[str]]:
        """By table the columns without a value."""
        return {name: columns for name, columns in self._empty.items() if columns}

    def _look(self, table: Table, row: Row) -> None:
        empty = self._empty[table.name]
        if any(row[name] is not None for name in empty):
            empty[:] = [name for name in empty if row[name] is None]


def _first(log: Import) -> str:
    """The first thing that went wrong, to go on with."""
    wrong = [*log.source.malformed.first, *log.left_out.first, *log.source.torn]
    return f": {wrong[0]}" if wrong else "; it is empty"
