"""What a training run tells: iterations.parquet and evaluations.parquet, and whoever else listens.

Both files are small and written anew, whole, with every row. A row is there once its iteration is done; when an
interrupted iteration is done again, its rows replace those of the first time.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from collect.errors import InputError, SelectiveRolloutError
from collect.files import replacing
from collect.rows import Row, as_arrow
from collect.schema import EVALUATIONS, ITERATIONS, Table
from collect.store import check_part
from train.evaluation import Evaluation


class Tracker(Protocol):
    """Something else that takes numbers, such as TensorBoard."""

    def write(self, iteration: int, numbers: Mapping[str, float]) -> None:
        """Take the numbers of an iteration, by names such as `iteration/loss`."""
        ...

    def close(self) -> None:
        """No more are coming."""
        ...


class Log:
    """Appends rows to the two files of a run, and hands their numbers to the trackers."""

    def __init__(self, run: Path, done: int, trackers: Sequence[Tracker] = ()) -> None:
        """Go on after `done` iterations: what the files hold of later ones is dropped. InputError for damaged files."""
        self._run = run
        self._trackers = trackers
        self._rows = {table.name: _rows_until(run, table, done) for table in (ITERATIONS, EVALUATIONS)}

    def iteration(self, row: Row) -> None:
        """Add a row of `iterations`."""
        self._add(ITERATIONS, row)

    def evaluation(self, row: Row) -> None:
        """Add a row of `evaluations`."""
        self._add(EVALUATIONS, row)

    def rows(self, table: Table) -> list[Row]:
        """The rows so far."""
        return list(self._rows[table.name])

    def close(self) -> None:
        """Let the trackers finish."""
        for tracker in self._trackers:
            tracker.close()

    def _add(self, table: Table, row: Row) -> None:
        rows = self._rows[table.name]
        rows[:] = [other for other in rows if other["iteration"] < row["iteration"]] + [row]
        try:
            with replacing(path_of(self._run, table)) as temporary:
                pq.write_table(as_arrow(table, rows), temporary, compression="zstd")
        except OSError as error:
            raise SelectiveRolloutError(
                f"{self._run}: cannot be written to ({error.strerror}); go on with sr train {self._run} --resume"
            ) from error
        numbers = {f"{table.name}/{name}": float(value) for name, value in row.items() if _is_number(value)}
        for tracker in self._trackers:
            tracker.write(row["iteration"], numbers)


def path_of(run: Path, table: Table) -> Path:
    """The file of one of the two tables."""
    return run / f"{table.name}.parquet"


def evaluation_row(iteration: int, evaluation: Evaluation) -> Row:
    """An evaluation as a row."""
    games, success = len(evaluation.won), evaluation.success
    return {
        "iteration": iteration,
        "policy_version": iteration,
        "games": games,
        "games_failed": evaluation.failed,
        "won": sum(evaluation.won.values()),
        "success": number(success.value),
        "success_low": number(success.low),
        "success_high": number(success.high),
        "mean_steps": evaluation.steps / games if games else None,
        "tokens": evaluation.tokens,
        "seconds": evaluation.seconds,
        "game_ids": list(evaluation.won),
        "game_won": list(evaluation.won.values()),
    }


def number(value: float) -> float | None:
    """What is not known, or not finite, is null in the tables."""
    return value if abs(value) < float("inf") else None


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float)


def _rows_until(run: Path, table: Table, done: int) -> list[Row]:
    """The rows of the first iterations; columns that an older version did not write yet are null."""
    path = path_of(run, table)
    if not path.is_file():
        return []
    check_part(path)
    try:
        rows: list[Row] = pq.read_table(path).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: damaged; restore the run from a copy") from error
    unknown = dict.fromkeys(table.arrow.names)
    return [unknown | row for row in rows if row["iteration"] <= done]
