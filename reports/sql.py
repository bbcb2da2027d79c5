"""SQL over the committed rows of one run or several: DuckDB views that can be read and nothing else.

The views read the files through arrow, so DuckDB itself is denied all access to the file system: whatever the SQL says,
it cannot change a run, nor read or write any other file. What answers are written to files is written by this module.
"""

import contextlib
import csv
import io
import json
import math
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import IO, Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs
import pyarrow.parquet as pq

from calibrate.signals import SIGNALS
from collect.errors import InputError
from collect.files import replacing
from collect.schema import ERRORS, GROUPS, TABLES, TEXT, TRAINING_TABLES, Column, Table
from collect.store import check_part, committed_parts, read_run, run_names
from reports.macros import create_macros, quoted

RUN_COLUMN = Column("run", TEXT, "the run's folder; only when several runs are asked")
# The tables that are one file in the run, and the command that writes it.
WRITTEN_BY: Mapping[str, str] = {SIGNALS.name: "calibrate", **dict.fromkeys((t.name for t in TRAINING_TABLES), "train")}
VIEWS = (*TABLES, SIGNALS, *TRAINING_TABLES)

# Types of DuckDB whose values have no like in Python.
_TOLD_IN_TEXT = ("bignum", "bit", "blob", "interval", "time with time zone", "time_ns", "timestamp_ns", "variant")
_ROWS_SHOWN = 200
_WIDTH_ELSEWHERE = 240  # of a table that does not go to a terminal


@dataclass(frozen=True)
class Database:
    """The views of some runs, as `open_runs` made them; `lacking` holds, for each view that is not there, a run that
    has no such file yet. What does not fit into memory waits in `scratch`, which goes with the database.
    """

    connection: duckdb.DuckDBPyConnection
    lacking: Mapping[str, Path]
    scratch: tempfile.TemporaryDirectory[str]

    def run(self, sql: str) -> duckdb.DuckDBPyRelation:
        """Run SQL statements and return the last one's rows; InputError, in one line, when DuckDB refuses them."""
        with self._one_line():
            rows = self.connection.sql(sql)
            if rows is None:
                raise InputError("the SQL is empty; ask something, such as: SELECT * FROM groups")
            return rows

    def columns(self, view: Table) -> list[tuple[str, str, str]]:
        """Name, type and comment of every column of a view; empty when the runs lack it."""
        if view.name in self.lacking:
            return []
        comments = {column.name: column.comment for column in (RUN_COLUMN, *view.columns)}
        rows = self.run(f"SELECT column_name, lower(column_type) FROM (DESCRIBE {view.name})").fetchall()
        return [(name, kind, comments[name]) for name, kind in rows]

    def as_table(self, sql: str, width: int | None = None) -> str:
        """The answer as an aligned table, at most 200 rows, no wider than the terminal, nothing unprintable in it.

        `width` in characters takes the place of the terminal's.
        """
        rows, drawn = self.run(sql), io.StringIO()
        width = width or shutil.get_terminal_size((_WIDTH_ELSEWHERE, 0)).columns
        with contextlib.redirect_stdout(drawn):
            self._ask(lambda: rows.show(max_rows=_ROWS_SHOWN, max_width=width))
        return printable(drawn.getvalue().rstrip("\n"))

    def as_csv(self, sql: str) -> Iterator[str]:
        """The answer as lines of CSV, the header first. Lists and times are written as DuckDB writes them."""
        rows = self.run(sql)
        yield _csv_line(rows.columns)
        with self._one_line():
            texts = rows.select("CAST(COLUMNS(*) AS VARCHAR)")
        for batch in self._batches(texts):
            yield from map(_csv_line, zip(*(column.to_pylist() for column in batch.columns), strict=True))

    def as_json(self, sql: str) -> Iterator[str]:
        """The answer as lines of one JSON array of objects. What JSON has no word for (NaN, infinity) becomes null;
        values that are bytes or spans of time are written as DuckDB writes them.

        Of columns with one name the second is called `name_1`, and so on. Raises InputError for dates beyond Python's.
        """
        separator = "["
        for batch in self._batches(self._told(self.run(sql))):
            for row in _values(batch):
                yield separator + json.dumps(_plain(row), default=str)
                separator = ","
        yield "]" if separator == "," else "[]"

    def _told(self, rows: duckdb.DuckDBPyRelation) -> duckdb.DuckDBPyRelation:
        """The rows, the columns of types that mean nothing outside DuckDB as text."""
        if not any(kind.id in _TOLD_IN_TEXT for kind in rows.types):
            return rows
        columns = [
            f"{f'CAST(#{place} AS VARCHAR)' if kind.id in _TOLD_IN_TEXT else f'#{place}'} AS {_identifier(name)}"
            for place, (name, kind) in enumerate(zip(rows.columns, rows.types, strict=True), start=1)
        ]
        with self._one_line():
            return rows.select(", ".join(columns))

    def as_parquet(self, sql: str, file: Path | IO[bytes]) -> None:
        """Write the answer as Parquet, in DuckDB's types: to a path, whole or not at all, or to an open file.

        Columns with one name are told apart as in `as_json`. Raises InputError when the path cannot be written to.
        """
        if isinstance(file, Path):
            if file.exists() and not file.is_file():  # a device such as /dev/null would be replaced by a file
                raise InputError(f"--parquet {file}: is no file; give another name, or - for standard output")
            try:
                with replacing(file) as temporary:
                    self._write_parquet(sql, temporary)
            except OSError as error:
                raise InputError(
                    f"--parquet {file}: cannot be written ({error.strerror}); give another file"
                ) from error
        else:
            self._write_parquet(sql, file)

    def _write_parquet(self, sql: str, file: Path | IO[bytes]) -> None:
        batches = self._batches(self.run(sql))
        first = next(batches)
        try:
            with pq.ParquetWriter(file, first.schema, compression="zstd") as writer:
                writer.write_batch(first)
                for batch in batches:
                    writer.write_batch(batch)
        except pa.ArrowException as error:
            raise InputError(f"--parquet: {printable(_first_line(error))}; cast the column to VARCHAR") from error

    def _batches(self, rows: duckdb.DuckDBPyRelation) -> Iterator[pa.RecordBatch]:
        """The rows, each column under a name of its own; at least one batch, if an empty one."""
        reader = self._ask(lambda: pa.RecordBatchReader.from_stream(rows))
        schema = pa.schema([f.with_name(n) for f, n in zip(reader.schema, _distinct(reader.schema.names), strict=True)])
        some = False
        while True:
            batch = self._ask(lambda: next(reader, None))
            if batch is None:
                break
            some = True
            yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)
        if not some:
            yield pa.RecordBatch.from_pylist([], schema)

    def _ask(self, work: Callable[[], Any]) -> Any:
        """Have DuckDB work in another thread: in the one that Ctrl-C comes to it may not look for it until its end."""
        with self._one_line(), ThreadPoolExecutor(1) as thread:
            answer = thread.submit(work)
            try:
                return answer.result()
            except KeyboardInterrupt:
                self.connection.interrupt()
                raise

    @contextlib.contextmanager
    def _one_line(self) -> Iterator[None]:
        try:
            yield
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            message = " ".join(str(error).split("\n\nLINE ")[0].split())
            for view, run in self.lacking.items():
                if f"Table with name {view} does not exist" in message:
                    message = f"{run}: {absent(view, run)}"
            raise InputError(printable(message)) from error


def open_runs(folders: Sequence[Path]) -> Database:
    """Open the runs read-only: views groups, trajectories, steps, errors, and those of `WRITTEN_BY` where every run has
    them, with the macros of `reports.macros`.

    Several runs get a first column `run` in every view. Raises InputError when a folder is no run, or a file is damaged
    or foreign.
    """
    sources, lacking = read_sources(folders)
    connection = duckdb.connect()
    for table, source in sources:
        connection.register(table.name, source)
    create_macros(connection, several_runs=len(folders) > 1)
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET python_enable_replacements = false")
    # Whatever is denied, SQL may write where DuckDB spills; left alone, that is `.tmp` in the working directory.
    try:
        scratch = tempfile.TemporaryDirectory(prefix="sr-query-")
    except OSError as error:
        raise InputError("there is no folder for temporary files; set TMPDIR to one that can be written to") from error
    connection.execute(f"SET temp_directory = {quoted(scratch.name)}")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return Database(connection, lacking, scratch)


def read_sources(folders: Sequence[Path]) -> tuple[list[tuple[Table, ds.Dataset]], dict[str, Path]]:
    """The rows of every table that the runs have, and for each table that they lack a run without it."""
    names = run_names(folders)
    for folder in folders:
        read_run(folder)
    # Listed once: were each table to look for itself, a run that is being written would have steps without their group.
    committed = [{part.name for part in committed_parts(folder, GROUPS.name)} for folder in folders]
    sources, lacking = [], {}
    for table in VIEWS:
        if table is ERRORS:
            parts = [committed_parts(folder, table.name) for folder in folders]
        elif table.name not in WRITTEN_BY:
            parts = [
                [part for part in committed_parts(folder, table.name) if part.name in there]
                for folder, there in zip(folders, committed, strict=True)
            ]
        else:
            files = [folder / f"{table.name}.parquet" for folder in folders]
            without = [folder for folder, file in zip(folders, files, strict=True) if not file.exists()]
            if without:
                lacking[table.name] = without[0]
                continue
            parts = [[file] for file in files]
        sources.append((table, _dataset(table, parts, names)))
    return sources, lacking


def absent(view: str, run: Path) -> str:
    """Why a view is not there, and what would make it."""
    command = WRITTEN_BY[view]
    doing = f"compute them with: sr calibrate {run}" if command == "calibrate" else "sr train writes them"
    return f"has no {view} yet; {doing}"


def printable(text: str) -> str:
    """The text with U+FFFD for all that could move a terminal's cursor or change its state; newlines stay."""
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)


def _dataset(table: Table, parts_of_runs: Sequence[Sequence[Path]], names: Sequence[str]) -> ds.Dataset:
    """All parts of all runs as one table, in the columns and types of the schema; what an old part lacks is null."""
    fields = [(column.name, _without_dictionary(column.type)) for column in table.columns]
    if len(names) > 1:
        fields.insert(0, (RUN_COLUMN.name, RUN_COLUMN.type))
    files, runs = [], []
    for name, parts in zip(names, parts_of_runs, strict=True):
        for part in parts:
            check_part(part)
            files.append(str(part))
            runs.append(ds.field(RUN_COLUMN.name) == name)
    return ds.FileSystemDataset.from_paths(
        files,
        schema=pa.schema(fields),
        format=ds.ParquetFileFormat(),
        filesystem=pyarrow.fs.LocalFileSystem(),
        partitions=runs if len(names) > 1 else None,
    )


def _without_dictionary(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _distinct(names: Sequence[str]) -> list[str]:
    """The names, a second `x` as `x_1`: never one that another column has."""
    taken: list[str] = []
    for name in names:
        candidates = (name, *(f"{name}_{number}" for number in range(1, len(names) + 1)))
        others = {*taken, *(names if name in taken else ())}
        taken.append(next(candidate for candidate in candidates if candidate not in others))
    return taken


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _values(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    try:
        return list(batch.to_pylist())
    except (ValueError, OverflowError) as error:  # such as dates after the year 9999
        raise InputError(f"--json: {printable(_first_line(error))}; cast the column to VARCHAR") from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _csv_line(values: Sequence[Any]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\r\n").writerow(values)  # it quotes a value that holds what ends a line
    return line.getvalue().removesuffix("\r\n")


def _plain(value: Any) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case Decimal():  # DuckDB's sum of integers comes as one
            return int(value) if value == value.to_integral_value() else float(value)
        case list() | tuple():
            return [_plain(item) for item in value]
        case dict():
            return {key: _plain(item) for key, item in value.items()}
    return value
