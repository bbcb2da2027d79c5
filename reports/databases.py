"""Runs as DuckDB files: a copy that stands on its own, and views for DuckDB's own shell."""

import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.dataset as ds

from calibrate.signals import SIGNALS
from collect.errors import InputError
from collect.files import replacing
from collect.schema import Table
from reports.macros import create_macros, quoted
from reports.sql import RUN_COLUMN, absent, read_sources

SHELL = "duckdb"
_STORAGE = "v1.0.0"  # the oldest that DuckDB still writes: every client since can open it


def save(folders: Sequence[Path], file: Path) -> None:
    """Copy all rows of the runs into a new DuckDB file, with the comments of tables and columns, and the macros.

    The file needs nothing else: it goes on working wherever it is moved and whatever becomes of the runs. It is written
    whole or not at all. Raises InputError when `file` exists or cannot be written, or a folder is no run.
    """
    if file.exists():
        raise InputError(f"--save {file}: exists; remove it or give another name")
    sources, _ = read_sources(folders)
    try:
        with replacing(file) as temporary:
            log = temporary.with_name(f"{temporary.name}.wal")
            log.unlink(missing_ok=True)  # of a process that was killed
            try:
                _write(temporary, sources, several_runs=len(folders) > 1)
            finally:
                log.unlink(missing_ok=True)
    except (duckdb.Error, OSError) as error:
        told = " ".join(str(error).split())
        raise InputError(f"--save {file}: cannot be written ({told}); give another place") from error


def has_shell() -> bool:
    """Whether DuckDB's own shell is installed."""
    return shutil.which(SHELL) is not None


def open_shell(folders: Sequence[Path]) -> int:
    """Open DuckDB's shell on views of the runs, which read their files; returns what the shell exits with.

    The database behind it is opened read-only and lasts as long as the shell. Unlike `sr query RUN SQL` the shell may
    read and write any file: it is the user's own.
    """
    sources, lacking = read_sources(folders)
    with tempfile.TemporaryDirectory(prefix="sr-query-") as folder:
        views = Path(folder, "run.duckdb")
        with _database(views) as connection:
            for table, source in sources:
                connection.execute(_view(table, source))
                _comment(connection, "VIEW", table, source.schema.names)
            create_macros(connection, several_runs=len(folders) > 1)
        if SIGNALS.name in lacking:
            print(f"{lacking[SIGNALS.name]}: {absent(SIGNALS.name, lacking[SIGNALS.name])}")
        with _interrupts_ignored():
            return subprocess.run([SHELL, "-readonly", str(views)], check=False).returncode


def _write(file: Path, sources: Sequence[tuple[Table, ds.Dataset]], *, several_runs: bool) -> None:
    with _database(file) as connection:
        for table, source in sources:
            connection.register("source", source)
            connection.execute(f"CREATE TABLE {table.name} AS FROM source")
            connection.unregister("source")
            _comment(connection, "TABLE", table, source.schema.names)
        create_macros(connection, several_runs=several_runs)


@contextmanager
def _database(file: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(f"ATTACH {quoted(str(file))} AS saved (STORAGE_VERSION '{_STORAGE}')")
        connection.execute("USE saved")
        yield connection
        connection.execute("CHECKPOINT saved")


def _view(table: Table, source: ds.Dataset) -> str:
    """A view of the same rows through DuckDB's own reader of Parquet; a column that no file has is null."""
    files: dict[tuple[str | None, tuple[str, ...]], list[str]] = {}
    for fragment in source.get_fragments():
        run = ds.get_partition_keys(fragment.partition_expression).get(RUN_COLUMN.name)
        path = quoted(str(Path(fragment.path).absolute()))
        files.setdefault((run, tuple(fragment.physical_schema.names)), []).append(path)
    parts = []
    for (run, there), paths in files.items():
        columns = [
            f"{quoted(run)} AS {name}"
            if name == RUN_COLUMN.name and run is not None
            else f'"{name}"'
            if name in there
            else f'NULL AS "{name}"'
            for name in source.schema.names
        ]
        parts.append(f"SELECT {', '.join(columns)} FROM read_parquet([{', '.join(paths)}])")
    empty = ", ".join(f'NULL::{_sql_type(source, name)} AS "{name}"' for name in source.schema.names)
    return f"CREATE VIEW {table.name} AS " + " UNION ALL ".join([f"SELECT {empty} WHERE false", *parts])


def _sql_type(source: ds.Dataset, name: str) -> str:
    """The type that DuckDB gives a column."""
    rows = duckdb.from_arrow(source.schema.empty_table())
    return str(dict(zip(rows.columns, rows.types, strict=True))[name])


def _comment(connection: duckdb.DuckDBPyConnection, kind: str, table: Table, there: Sequence[str]) -> None:
    connection.execute(f"COMMENT ON {kind} {table.name} IS {quoted(table.comment)}")
    for column in (RUN_COLUMN, *table.columns):
        if column.name in there:
            connection.execute(f'COMMENT ON COLUMN {table.name}."{column.name}" IS {quoted(column.comment)}')


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Leave Ctrl-C to the shell, which shares the terminal."""
    before: Any = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
