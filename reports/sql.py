"""SQL over the committed rows of one run or several: DuckDB views that can be read and nothing else.

The views read the files through arrow, so DuckDB itself is denied all access to the file system: whatever the SQL says,
it cannot change a run, nor read or write any other file.
"""

import contextlib
import csv
import io
import json
import math
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs

from calibrate.signals import SIGNALS
from collect.errors import InputError
from collect.schema import TABLES, TEXT, Column, Table
from collect.store import check_part, committed_parts, read_run, run_names

VIEWS = (*TABLES, SIGNALS)
PREFIX_DISTANCE = "FROM prefix_distance(k): the mean prefix edit distance of every group at step k, END padded."
RUN_COLUMN = Column("run", TEXT, "the run's folder; only when several runs are asked")

_SIGNALS_FILE = "signals.parquet"
_ROWS_SHOWN = 200
_WIDTH_ELSEWHERE = 240  # of a table that does not go to a terminal

# '$' stands for END, which fills up the prefix of a trajectory that ended before k: no action is written as it.
_PREFIX_DISTANCE_SQL = """
CREATE MACRO prefix_distance(k) AS TABLE
SELECT {key}, avg(levenshtein(rpad(left(a.action_symbols, k), k, '$'), rpad(left(b.action_symbols, k), k, '$')) / k)
    AS prefix_distance
FROM trajectories a JOIN trajectories b USING ({key})
WHERE a.trajectory < b.trajectory AND k >= 1
GROUP BY {key}
"""


@dataclass(frozen=True)
class Database:
    """The views of some runs, as `open_runs` made them; `lacking` holds a run without signals, if there is one."""

    connection: duckdb.DuckDBPyConnection
    lacking: Path | None

    def run(self, sql: str) -> duckdb.DuckDBPyRelation:
        """Run SQL statements and return the last one's rows; InputError, in one line, when DuckDB refuses them."""
        with self._one_line():
            rows = self.connection.sql(sql)
            if rows is None:
                raise InputError("the SQL is empty; ask something, such as: SELECT * FROM groups")
            return rows

    def columns(self, view: Table) -> list[tuple[str, str, str]]:
        """Name, type and comment of every column of a view; empty when the runs lack it."""
        if view is SIGNALS and self.lacking is not None:
            return []
        comments = {column.name: column.comment for column in (RUN_COLUMN, *view.columns)}
        rows = self.run(f"SELECT column_name, lower(column_type) FROM (DESCRIBE {view.name})").fetchall()
        return [(name, kind, comments[name]) for name, kind in rows]

    def as_table(self, sql: str) -> str:
        """The answer as an aligned table, at most 200 rows, no wider than the terminal, nothing unprintable in it."""
        rows, drawn = self.run(sql), io.StringIO()
        width = shutil.get_terminal_size((_WIDTH_ELSEWHERE, 0)).columns
        with self._one_line(), contextlib.redirect_stdout(drawn):
            rows.show(max_rows=_ROWS_SHOWN, max_width=width)
        return printable(drawn.getvalue().rstrip("\n"))

    def as_csv(self, sql: str) -> Iterator[str]:
        """The answer as lines of CSV, the header first. Lists and times are written as DuckDB writes them."""
        rows = self.run(sql)
        yield _csv_line(rows.columns)
        with self._one_line():
            yield from map(_csv_line, rows.select("CAST(COLUMNS(*) AS VARCHAR)").fetchall())

    def as_json(self, sql: str) -> Iterator[str]:
        """The answer as lines of one JSON array of objects. What JSON has no word for (NaN, infinity) becomes null."""
        rows = self.run(sql)
        separator = "["
        with self._one_line():
            for batch in rows.to_arrow_table().to_batches():
                for row in batch.to_pylist():
                    yield separator + json.dumps(_plain(row), default=str)
                    separator = ","
        yield "]" if separator == "," else "[]"

    @contextlib.contextmanager
    def _one_line(self) -> Iterator[None]:
        try:
            yield
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            message = " ".join(str(error).split("\n\nLINE ")[0].split())
            if self.lacking is not None and "Table with name signals does not exist" in message:
                message = f"{self.lacking}: has no signals yet; compute them with: sr calibrate {self.lacking}"
            raise InputError(printable(message)) from error


def open_runs(folders: Sequence[Path]) -> Database:
    """Open the runs read-only: views groups, trajectories, steps, errors, and signals where every run has them.

    Several runs get a first column `run` in every view. `FROM prefix_distance(k)` is the mean prefix distance of every
    group at step k, in plain SQL. Raises InputError when a folder is no run, or a file is damaged or foreign.
    """
    names = run_names(folders)
    for folder in folders:
        read_run(folder)
    connection = duckdb.connect()
    for table in TABLES:
        parts = [committed_parts(folder, table.name) for folder in folders]
        connection.register(table.name, _dataset(table, parts, names))
    lacking = next((folder for folder in folders if not (folder / _SIGNALS_FILE).exists()), None)
    if lacking is None:
        connection.register(SIGNALS.name, _dataset(SIGNALS, [[folder / _SIGNALS_FILE] for folder in folders], names))
    connection.execute(_PREFIX_DISTANCE_SQL.format(key="run, group_id" if len(names) > 1 else "group_id"))
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET python_enable_replacements = false")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return Database(connection, lacking)


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
