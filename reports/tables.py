"""The tables of a report: each is the data of a figure, a CSV beside it, and a table in the page."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrate.intervals import Interval
from collect.files import replacing
from reports.visible import visible

if TYPE_CHECKING:
    import polars as pl

Row = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Sheet:
    """One table. `name` is that of its file, `note` says what a row is and what its intervals mean."""

    name: str
    title: str
    note: str
    rows: "pl.DataFrame"


def sheet(name: str, title: str, note: str, rows: Sequence[Row]) -> Sheet:
    """A table of rows with the same keys. What is not known, NaN or infinite, is null; text is made visible."""
    import polars as pl

    names = list(rows[0]) if rows else []
    columns = [pl.Series(column, [_known(row[column]) for row in rows], strict=False) for column in names]
    # A number that is known nowhere is still a number.
    return Sheet(name, title, note, pl.DataFrame(columns).with_columns(pl.col(pl.Null).cast(pl.Float64)))


def bounds(name: str, interval: Interval | None) -> dict[str, float | None]:
    """An estimate and its 95 % interval as the columns `name`, `name_low`, `name_high`."""
    if interval is None:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    return {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}


def write_csv(table: Sheet, path: Path) -> None:
    """Write the table as CSV, whole or not at all; numbers in full precision, empty where not known."""
    with replacing(path) as temporary:
        table.rows.write_csv(temporary)


def _known(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return visible(value) if isinstance(value, str) else value
