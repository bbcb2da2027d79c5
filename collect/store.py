"""A run on disk: one folder with run.json and the tables of `collect.schema`, as parts of Parquet.

    run.json                     what identifies the run, and the facts of how it was made
    groups/part-000001.parquet   one part a flush; the same part name in trajectories/ and steps/
    errors/part-000001.parquet   failed attempts, numbered by themselves

What is guaranteed. A part is written to a temporary name, fsynced and renamed, trajectories and steps first: its
appearance in groups/ is the commit, and readers take only the parts that are committed. So whatever kills the writer,
and whenever, a committed group is whole and stays; what is lost is the groups in flight or not yet flushed. One process
writes at a time; any number may read meanwhile.

What is accepted. A group's rows wait in memory for the flush. Text that UTF-8 cannot hold (lone surrogates, which a
model's reply or a file name can bring) has each of them replaced by U+FFFD; the token ids say what was really sampled.
"""

import errno
import fcntl
import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, ValidationError

from collect import schema
from collect.errors import InputError, SelectiveRolloutError
from collect.files import fsync, replacing
from collect.rows import GroupRows, Row, as_arrow, check_group
from collect.schema import ERRORS, GROUPS, STEPS, TABLES, TRAJECTORIES, Table
from collect.trajectory import Group

if TYPE_CHECKING:
    import polars as pl

RUN_FILE = "run.json"
_LOCK_FILE = ".lock"
_COMMITTED_WITH_GROUP = (TRAJECTORIES, STEPS)


class RunInfo(BaseModel):
    """What run.json says: `configuration` identifies the run and can be fed back in; `facts` tell how it was made."""

    model_config = ConfigDict(frozen=True)

    schema_version: int
    command: str
    created: datetime
    configuration: dict[str, Any]
    facts: dict[str, Any]


# Writing


def open_run(
    folder: Path,
    configuration: Mapping[str, Any],
    facts: Mapping[str, Any],
    *,
    command: str = "collect",
    flush_groups: int = 10,
    flush_seconds: float = 60.0,
) -> "RunWriter":
    """Begin the run in `folder`, or resume it when it holds one of the same command and configuration.

    `configuration` holds JSON values and is the run's identity: leave out what may differ between a run and its
    continuation, such as the number of groups. `facts` are recorded when the run begins and not compared.
    A part is written once `flush_groups` groups or `flush_seconds` have gathered (looked at when a group is added).

    Raises InputError when the folder is no run and not empty, holds a run of another configuration, cannot be written
    to, or has another process writing to it.
    """
    _check_free(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = _lock(folder)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written to ({error.strerror}); give another folder") from error
    try:
        if not is_run(folder):
            _check_free(folder)
            _begin(folder, command, configuration, facts)
        else:
            _check_same(folder, command, configuration)
        _clear(folder)
        return RunWriter(folder, lock, flush_groups, flush_seconds)
    except BaseException:
        _unlock(lock)
        raise


def check_run(folder: Path, configuration: Mapping[str, Any], *, command: str = "collect") -> None:
    """Raise the InputError with which `open_run` would refuse what `folder` holds: something that is no run, or a run
    of another command or configuration.

    Writes nothing and takes no lock, so it can come before expensive work; `open_run` looks again. Whether the folder
    can be written to, or is being written to, shows only there.
    """
    _check_free(folder)
    if is_run(folder):
        _check_same(folder, command, configuration)


class RunWriter:
    """Appends groups to a run; made by `open_run`. One thread at a time; a flush takes about 0.1 s.

    `committed` holds the ids of the groups that are on disk, those of earlier sessions included. While `log_steps` is
    False, parts are written without the rows of `steps`, which are most of a run.
    """

    def __init__(self, folder: Path, lock: IO[str], flush_groups: int, flush_seconds: float) -> None:
        self.folder = folder
        self.committed = committed_ids(folder)
        self.log_steps = True
        self._lock: IO[str] | None = lock
        self._flush_groups = flush_groups
        self._flush_seconds = flush_seconds
        self._groups: list[GroupRows] = []
        self._errors: list[Row] = []
        self._waiting_since = time.monotonic()

    def add(self, group: Group) -> None:
        """Take a finished group; flush when enough has gathered.

        Raises ValueError when the group contradicts itself or its id was added before.
        """
        check_group(group)
        self.add_rows(GroupRows.of(group))

    def add_rows(self, group: GroupRows) -> None:
        """Take a group that was rolled out elsewhere, as rows; otherwise like `add`."""
        if group.id in self.committed or any(group.id == other.id for other in self._groups):
            raise ValueError(f"group {group.id} was added before")
        self._groups.append(group)
        self._flush_if_due()

    def add_error(self, group_id: str, boundary: str, message: str) -> None:
        """Record a failed attempt at a group; `boundary` is environment or engine."""
        self._errors.append(
            {"group_id": group_id, "failed": datetime.now(UTC), "boundary": boundary, "message": message}
        )
        self._flush_if_due()

    def flush(self) -> None:
        """Commit what was added. Raises SelectiveRolloutError when the disk refuses; what was added is then kept."""
        if self._lock is None:
            raise ValueError("the run is closed")
        try:
            if self._errors:
                _write_part(self.folder, ERRORS, _next_part(self.folder, ERRORS), self._errors)
                self._errors = []
            if self._groups:
                self._commit_groups()
        except OSError as error:
            raise SelectiveRolloutError(
                f"{self.folder}: cannot be written to ({error.strerror}); what was committed is safe: "
                "start again with the same folder to go on"
            ) from error
        self._waiting_since = time.monotonic()

    def close(self) -> None:
        """Flush and let go of the folder."""
        if self._lock is None:
            return
        try:
            self.flush()
        finally:
            _unlock(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _flush_if_due(self) -> None:
        waiting = len(self._groups) + len(self._errors)
        if waiting == 1:
            self._waiting_since = time.monotonic()
        due = time.monotonic() - self._waiting_since >= self._flush_seconds
        if len(self._groups) >= self._flush_groups or due:
            self.flush()

    def _commit_groups(self) -> None:
        part = _next_part(self.folder, GROUPS)
        _write_part(self.folder, TRAJECTORIES, part, [row for group in self._groups for row in group.trajectories])
        steps = [row for group in self._groups for row in group.steps] if self.log_steps else []
        _write_part(self.folder, STEPS, part, steps)
        _write_part(self.folder, GROUPS, part, [group.group for group in self._groups])
        self.committed.update(group.id for group in self._groups)
        self._groups = []


def _check_free(folder: Path) -> None:
    """Refuse a folder that holds something else, before anything is written to it."""
    nearest = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    if nearest.exists() and not nearest.is_dir():
        raise InputError(f"{nearest}: is a file; give a folder for the run")
    if not folder.exists() or is_run(folder):
        return
    # A writer killed in its first instant leaves a lock file and perhaps half a run.json under a temporary name.
    names = sorted(path.name for path in folder.iterdir())
    foreign = [name for name in names if name != _LOCK_FILE and not name.startswith(f".{RUN_FILE}.")]
    if foreign:
        raise InputError(f"{folder}: not empty ({foreign[0]}) and not a run; give another folder")


def _lock(folder: Path) -> IO[str]:
    """Hold the folder for this process: the kernel lets go of it however the process ends."""
    lock = (folder / _LOCK_FILE).open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        holder = lock.read().strip()
        lock.close()
        raise InputError(
            f"{folder}: another process (pid {holder}) is writing to this run; wait for it or give another folder"
        ) from None
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock


def _unlock(lock: IO[str]) -> None:
    # Said aloud, because closing alone would not let go if a forked process still held the same open file.
    fcntl.flock(lock, fcntl.LOCK_UN)
    lock.close()


def _begin(folder: Path, command: str, configuration: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    run = {
        "schema_version": schema.SCHEMA_VERSION,
        "command": command,
        "created": datetime.now(UTC).isoformat(),
        "configuration": dict(configuration),
        "facts": dict(facts),
    }
    text = json.dumps(run, indent=2, allow_nan=False) + "\n"
    with replacing(folder / RUN_FILE) as temporary:
        temporary.write_text(text)
    fsync(folder.absolute().parent)


def _check_same(folder: Path, command: str, configuration: Mapping[str, Any]) -> None:
    there = read_run(folder)
    if there.command != command:
        raise InputError(f"{folder}: holds a run of sr {there.command}, not of sr {command}; give another folder")
    asked = json.loads(json.dumps(dict(configuration), allow_nan=False))  # tuples become lists, as they are in run.json
    keys = sorted(there.configuration.keys() | asked.keys())
    differences = [
        f"{key} is {_brief(there.configuration, key)} there, {_brief(asked, key)} here"
        for key in keys
        if key not in there.configuration or key not in asked or there.configuration[key] != asked[key]
    ]
    if differences:
        raise InputError(
            f"{folder}: holds a run of another configuration ({'; '.join(differences)}); "
            "give another folder or the same settings"
        )


def _brief(configuration: Mapping[str, Any], key: str) -> str:
    if key not in configuration:
        return "absent"
    text = json.dumps(configuration[key])
    return text if len(text) <= 80 else text[:77] + "..."


def _clear(folder: Path) -> None:
    """Make the tables' folders, and delete what a killed writer left: temporary files, and parts never committed."""
    for table in TABLES:
        (folder / table.name).mkdir(exist_ok=True)
        for temporary in (folder / table.name).glob(".*.tmp"):
            temporary.unlink()
    for temporary in folder.glob(f".{RUN_FILE}.*.tmp"):
        temporary.unlink()
    committed = {part.name for part in _parts(folder, GROUPS)}
    for table in _COMMITTED_WITH_GROUP:
        for part in _parts(folder, table):
            if part.name not in committed:
                part.unlink()


def _next_part(folder: Path, table: Table) -> str:
    parts = _parts(folder, table)
    number = int(parts[-1].stem.removeprefix("part-")) + 1 if parts else 1
    return f"part-{number:06d}.parquet"


def _write_part(folder: Path, table: Table, name: str, rows: Sequence[Row]) -> None:
    with replacing(folder / table.name / name) as temporary:
        pq.write_table(as_arrow(table, rows), temporary, compression="zstd")


# Reading


def is_run(folder: Path) -> bool:
    """Whether the folder holds a run."""
    return (folder / RUN_FILE).is_file()


def read_run(folder: Path) -> RunInfo:
    """Read what run.json says; InputError when there is no run or it cannot be read."""
    path = folder / RUN_FILE
    try:
        with suppress(FileNotFoundError, NotADirectoryError):
            path.stat()  # what cannot be looked at is not there, says is_file() of newer Pythons
        if not folder.is_dir():
            raise InputError(f"{folder}: no such folder; give the folder of a run")
        if not path.is_file():
            raise InputError(f"{folder}: not a run (it has no {RUN_FILE}); give the folder that sr collect wrote")
        content = json.loads(path.read_text())
        version = content["schema_version"]
        if isinstance(version, int) and version > schema.SCHEMA_VERSION:
            raise InputError(f"{path}: made by a newer version of selective-rollout; upgrade to read it")
        return RunInfo.model_validate(content)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); make it readable, or give another run") from error
    except (ValueError, KeyError, TypeError, RecursionError, ValidationError) as error:
        raise InputError(f"{path}: cannot be read as a run; restore it from a copy") from error


def committed_parts(folder: Path, table: str) -> list[Path]:
    """The Parquet files of a table that readers may take, in order of writing.

    Raises InputError when a committed part is missing.
    """
    if table not in {t.name for t in _COMMITTED_WITH_GROUP}:
        return _parts(folder, _table(table))
    parts = [folder / table / part.name for part in _parts(folder, GROUPS)]
    there = set(_parts(folder, _table(table)))
    for part in parts:
        if part not in there:
            raise InputError(f"{part}: missing, though its groups are committed; restore the run from a copy")
    return parts


def committed_ids(folder: Path) -> set[str]:
    """The ids of the committed groups in the folder of a run; none where there is no run yet."""
    ids: set[str] = set()
    for part in _parts(folder, GROUPS):
        check_part(part)
        ids.update(pq.read_table(part, columns=["group_id"])["group_id"].to_pylist())
    return ids


def scan(folders: Path | Sequence[Path], table: str) -> "pl.LazyFrame":
    """The committed rows of a table as a lazy frame, with the columns of `collect.schema`.

    Labels come as strings. A column that an older run lacks is null. For several runs a column `run` comes first: the
    name of the run's folder, or its path where two have one name. Without a committed row the frame is empty.
    Raises InputError, naming the file, when a folder is no run or a file is unreadable, foreign or of a newer version.
    """
    import polars as pl

    if isinstance(folders, Path):
        return _scan_one(folders, table)
    names = run_names(folders)
    if len(folders) == 1:
        return _scan_one(folders[0], table)
    frames = [
        _scan_one(folder, table).select(pl.lit(name).alias("run"), pl.all())
        for folder, name in zip(folders, names, strict=True)
    ]
    return pl.concat(frames)


def run_names(folders: Sequence[Path]) -> list[str]:
    """A short distinct name for each run: its folder's, or its path where two have one name.

    Raises InputError when no run is given, or one twice.
    """
    if not folders:
        raise InputError("no run given; give the folder of a run")
    resolved = [folder.resolve() for folder in folders]
    for folder in folders:
        if resolved.count(folder.resolve()) > 1:
            raise InputError(f"{folder}: given twice; give each run once")
    short = [folder.name for folder in resolved]
    return [name if short.count(name) == 1 else str(folder) for name, folder in zip(short, folders, strict=True)]


def latest_run(parent: Path) -> Path:
    """The run in `parent` that was begun last; InputError when there is none."""
    runs = [folder for folder in parent.iterdir() if is_run(folder)] if parent.is_dir() else []
    if not runs:
        raise InputError(f"{parent}: holds no run; make one with sr collect, or give a run's folder")
    return max(runs, key=lambda folder: (read_run(folder).created, folder.name))


def new_run_folder(parent: Path, command: str) -> Path:
    """A path in `parent` for a new run, not yet made: `<command>-<date>-<time>` in UTC, so that names sort by time."""
    base = parent / f"{command}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    folder, number = base, 1
    while folder.exists():
        number += 1
        folder = base.with_name(f"{base.name}-{number}")
    return folder


def _scan_one(folder: Path, table: str) -> "pl.LazyFrame":
    import polars as pl

    read_run(folder)
    empty = pl.from_arrow(_table(table).arrow.empty_table())
    assert isinstance(empty, pl.DataFrame)
    parts = committed_parts(folder, table)
    for part in parts:
        check_part(part)
    frame = empty.lazy()
    if parts:
        frame = pl.scan_parquet(
            parts,
            schema=empty.schema,
            missing_columns="insert",
            extra_columns="ignore",
            glob=False,
            hive_partitioning=False,
        )
    return frame.with_columns(pl.col(pl.Categorical).cast(pl.String))


def check_part(path: Path) -> None:
    """Raise InputError when a file is no Parquet, none of ours, or of a newer version."""
    try:
        metadata = pq.read_schema(path).metadata or {}
    except PermissionError as error:
        raise InputError(f"{path}: cannot be read ({os.strerror(errno.EACCES)}); make it readable") from error
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: cannot be read as Parquet; restore it from a copy") from error
    version = metadata.get(b"selective_rollout_schema", b"").decode("ascii", "replace")
    if not version.isdecimal():
        raise InputError(f"{path}: Parquet that selective-rollout did not write; remove it from the run")
    if int(version) > schema.SCHEMA_VERSION:
        raise InputError(f"{path}: made by a newer version of selective-rollout; upgrade to read it")


def _table(name: str) -> Table:
    return {table.name: table for table in TABLES}[name]


def _parts(folder: Path, table: Table) -> list[Path]:
    """The parts in the folder of a table, none where there is no folder; InputError when it cannot be read."""
    place = folder / table.name
    try:
        return sorted(path for path in place.iterdir() if path.match("part-*.parquet"))
    except FileNotFoundError:
        return []
    except OSError as error:  # Path.glob would take it for an empty folder
        raise InputError(f"{place}: cannot be read ({error.strerror}); make it a folder that can be") from error
