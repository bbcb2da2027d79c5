"""From a table of signals, one row a group and step K, to a sample.

Both the project's own signals.parquet and the tables that the paper's authors released are read as they are.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray
from polars.exceptions import PolarsError

from calibrate.outcomes import OUTCOMES, REWARD_TOLERANCE
from calibrate.sample import Cost, Sample
from calibrate.signals import PREFIX_EDIT_DISTANCE, REGISTRY, TERMINATION_FRACTION
from collect.errors import InputError

DEFAULT_MAX_STEPS = 30  # the paper's horizon

# Our name of a column, and the released tables' name where it differs. Where a table has both, ours counts.
_RELEASED_NAMES = {"group_id": "task_id", "step": "K", "outcome": "label", "reward_variance": "reward_var"}
_APPROXIMATELY_ELIGIBLE = (
    "note: eligibility is approximate: termination_fraction < 1, as the table has no column `eligible`"
)
_PARQUET_MAGIC = b"PAR1"
_ROUNDING = 1e-9  # how far a value may lie outside its range
# The most reward variance of all_fail and all_succeed, where a table does not say the tolerance that they were decided
# within. Over this, rewards differ by more than 0.2 and can hardly all be a failure's, or a success's; and
# one success among failures is over it in groups of up to 98. `uniform` is not held to it: its rewards have any scale.
_VARIANCE_OF_EQUALS = 0.01


def read_table(
    path: Path,
    *,
    max_steps: int | None,
    at_step: int | None,
    reward_tolerance: float | None,
    signals: Sequence[str] = (PREFIX_EDIT_DISTANCE.name,),
    otherwise: float = REWARD_TOLERANCE,
) -> Sample:
    """The sample of a CSV or Parquet table; with `at_step`, of its rows at that K alone.

    Needed are group_id (or task_id), step (or K), reward_variance (or reward_var), the columns of `signals` (where it
    names none, the column of some signal), and termination_fraction or eligible; outcome (or label), game_id,
    task_type, group_size, horizon, reward_tolerance, no_draw and every other signal are used where present. A column
    without any value counts as absent. Without `eligible`, a group counts as eligible when its termination fraction is
    under 1, which is approximate. Without an outcome, a group is zero-variance when its reward variance is at most
    (tolerance / 2)², the most that rewards within the tolerance can have. Without game_id, a group's task is its id up
    to the visit (`#0`, `#1`, …). The horizon is the table's, else `max_steps`, else 30; the tolerance is
    `reward_tolerance`, else the table's, else `otherwise`.

    Raises:
        InputError: the file cannot be read, a column is missing, or a value is absent, out of range or contradictory.
    """
    frame, empty = _renamed(_read(path))
    _check_columns(path, frame, empty, signals)
    rows = _checked(path, frame)
    if "outcome" in rows.columns and reward_tolerance is not None:
        raise InputError(f"{path}: its outcomes are decided already (column outcome or label); drop --reward-tolerance")
    horizon = _horizon(path, rows, max_steps)
    if at_step is not None:
        rows = _at(path, rows, at_step)
    rows = _rectangular(path, rows.sort("group_id", "step"))
    _check_steps(path, rows, horizon)
    told = _single(path, rows, "reward_tolerance")
    tolerance = next(known for known in (reward_tolerance, told, otherwise) if known is not None)
    steps = rows["step"].unique().sort().to_numpy()
    shape = (-1, len(steps))
    first = rows.gather_every(len(steps))
    exact = "eligible" in rows.columns
    running = (rows["eligible"] if exact else rows["termination_fraction"] < 1).to_numpy().reshape(shape)
    _check_ends(path, first["group_id"], running, steps)
    budget = np.broadcast_to(horizon - steps, (first.height, len(steps)))
    size = _single_whole(path, rows, "group_size")
    notes: tuple[str, ...] = () if exact else (_APPROXIMATELY_ELIGIBLE,)
    no_draw = _no_draw(path, frame)
    if no_draw:
        notes += (f"note: {no_draw}",)
    if "outcome" not in rows.columns and tolerance > REWARD_TOLERANCE:
        notes += (_approximate_outcomes(first["reward_variance"].to_numpy(), tolerance, size),)
    return Sample(
        group_size=size,
        horizon=horizon,
        steps=steps,
        group_ids=first["group_id"],
        tasks=first["game_id"] if "game_id" in rows.columns else first["group_id"].str.replace(r"#\d+$", ""),
        task_types=first["task_type"] if "task_type" in rows.columns else None,
        outcomes=_outcomes(first, tolerance),
        reward_variance=first["reward_variance"].to_numpy(),
        signals={
            signal.name: rows[signal.name].to_numpy().reshape(shape)
            for signal in REGISTRY
            if signal.name in rows.columns
        },
        eligible=running,
        eligible_exactly=exact,
        reward_tolerance=told if "outcome" in rows.columns else tolerance,
        cost=Cost("budget", budget, np.full(first.height, horizon)),
        notes=notes,
        no_draw=no_draw,
    )


def _read(path: Path) -> pl.DataFrame:
    """The file's rows; the columns of a CSV are all text, so that no number is guessed at, with null where empty."""
    try:
        if not path.is_file():
            what = "is a folder" if path.is_dir() else "is not a file" if path.exists() else "no such file"
            raise InputError(f"{path}: {what}; give a CSV or Parquet table of signals")
        # Polars gets the open file: a path it would take as a pattern where it holds [, * or ?.
        with path.open("rb") as file:
            parquet = file.read(len(_PARQUET_MAGIC)) == _PARQUET_MAGIC
            if not parquet and path.suffix == ".parquet":
                raise InputError(f"{path}: not Parquet, whatever its name says; give a CSV or Parquet table of signals")
            file.seek(0)
            if parquet:
                return pl.read_parquet(file)
            frame = pl.read_csv(file, infer_schema=False, null_values="")
    except (OSError, UnicodeDecodeError, PolarsError) as error:
        raise InputError(
            f"{path}: cannot be read as a table ({_first_line(error)}); give a CSV or Parquet table of signals"
        ) from error
    # Another separator leaves each line in one column, and UTF-16 halves of characters in the names.
    if frame.width == 1 or any("\0" in name for name in frame.columns):
        raise InputError(
            f"{path}: its first line is not names of columns separated by commas, in UTF-8; save the table so"
        )
    return frame


def _renamed(frame: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    """The columns that hold a value, under our names; and the file's names of those that hold none.

    Such a column says no more than an absent one: what is unknown of a whole run is null in its signals.parquet.
    """
    empty = [column.name for column in frame if column.null_count() == frame.height > 0]
    frame = frame.drop(empty)
    names = {theirs: ours for ours, theirs in _RELEASED_NAMES.items() if ours not in frame.columns}
    return frame.rename(names, strict=False).with_columns(pl.col(pl.Categorical).cast(pl.String)), empty


def _check_columns(path: Path, frame: pl.DataFrame, empty: Sequence[str], signals: Sequence[str]) -> None:
    """InputError where a column that is needed is missing, or is among the `empty` ones."""

    def need(name: str) -> None:
        if name not in frame.columns:
            known = _RELEASED_NAMES.get(name)
            what = "empty" if name in empty or known in empty else "missing"
            raise InputError(
                f"{path}: the column {name}{f' (or {known})' if known else ''} is {what}; a signals table needs it"
            )

    for name in ("group_id", "step", "reward_variance", *signals):
        need(name)
    if not any(signal.name in frame.columns for signal in REGISTRY):
        some = ", ".join(signal.name for signal in REGISTRY[:3])
        raise InputError(f"{path}: no column is a signal; a signals table needs at least one, such as {some}")
    if "eligible" not in frame.columns:
        need(TERMINATION_FRACTION.name)


def _checked(path: Path, frame: pl.DataFrame) -> pl.DataFrame:
    """The columns that are used, in their types, each value checked."""
    if not frame.height:
        raise InputError(f"{path}: the table has no rows; give one row per group and step")
    ranges = {
        "step": (1.0, np.inf),
        "reward_variance": (0.0, np.inf),
        **{signal.name: (signal.lowest, signal.highest) for signal in REGISTRY},
        "group_size": (2.0, np.inf),
        "horizon": (2.0, np.inf),
        "reward_tolerance": (0.0, np.inf),
    }
    whole = ("step", "group_size", "horizon")
    columns = [_text(path, frame, "group_id")]
    for name, (low, high) in ranges.items():
        if name in frame.columns:
            columns.append(_number(path, frame, name, low, high, whole=name in whole))
    if "eligible" in frame.columns:
        columns.append(_truth(path, frame, "eligible"))
    columns += [_text(path, frame, name) for name in ("game_id", "task_type") if name in frame.columns]
    if "outcome" in frame.columns:
        columns.append(_text(path, frame, "outcome"))
        _refuse(path, frame, "outcome", ~columns[-1].is_in(OUTCOMES), f"is none of {', '.join(OUTCOMES)}")
    checked = pl.DataFrame(columns)
    if "outcome" in checked.columns:
        _check_outcomes(path, checked)
    twice = ~checked.select("group_id", "step").to_struct().is_first_distinct()
    _refuse(path, checked, "group_id", twice, "has this step twice")
    return checked


def _check_outcomes(path: Path, checked: pl.DataFrame) -> None:
    """InputError where an outcome contradicts the reward variance of its row."""
    outcome, variance = checked["outcome"], checked["reward_variance"]
    mixed = (outcome == "mixed") & (variance == 0)
    _refuse(path, checked, "outcome", mixed, "contradicts the row's reward variance of 0")
    most, why = pl.repeat(_VARIANCE_OF_EQUALS, len(variance), eager=True), str(_VARIANCE_OF_EQUALS)
    if "reward_tolerance" in checked.columns:
        most, why = (checked["reward_tolerance"] / 2) ** 2, "the most that rewards within its reward tolerance can have"
    equal = outcome.is_in(["all_fail", "all_succeed"]) & (variance > most * (1 + _ROUNDING) + _ROUNDING)
    what = f"contradicts the row's reward variance, which is over {why}"
    _refuse(path, checked, "outcome", equal, what, "correct the table, or leave out its outcomes")


def _number(path: Path, frame: pl.DataFrame, name: str, low: float, high: float, *, whole: bool) -> pl.Series:
    """A column of finite numbers in [low, high]; of integers when `whole`."""
    raw = frame[name]
    if not (raw.dtype.is_numeric() or raw.dtype == pl.String):
        raise InputError(f"{path}: the column {name} holds {raw.dtype}, not numbers")
    values = raw.cast(pl.Float64, strict=False)
    _refuse(path, frame, name, raw.is_null(), "is missing")
    _refuse(path, frame, name, values.is_null(), "is not a number")
    _refuse(path, frame, name, values.is_nan(), "is not a number")
    within = "is not finite" if high == np.inf else f"is outside {low:g} to {high:g}"
    _refuse(path, frame, name, values.is_infinite() | (values > high + _ROUNDING), within)
    _refuse(path, frame, name, values < low - _ROUNDING, f"is under {low:g}" if high == np.inf else within)
    if whole:
        _refuse(path, frame, name, (values != values.floor()) | (values > 2**31 - 1), "is not a whole number in range")
        return values.cast(pl.Int64)
    return values


def _truth(path: Path, frame: pl.DataFrame, name: str) -> pl.Series:
    """A column of booleans, or of the words true and false."""
    raw = frame[name]
    if raw.dtype == pl.Boolean:
        _refuse(path, frame, name, raw.is_null(), "is missing")
        return raw
    word = _text(path, frame, name).str.to_lowercase()
    _refuse(path, frame, name, ~word.is_in(["true", "false"]), "is neither true nor false")
    return (word == "true").alias(name)


def _text(path: Path, frame: pl.DataFrame, name: str) -> pl.Series:
    raw = frame[name]
    if not (raw.dtype == pl.String or raw.dtype.is_integer()):
        raise InputError(f"{path}: the column {name} holds {raw.dtype}, not text")
    _refuse(path, frame, name, raw.is_null(), "is missing")
    return raw.cast(pl.String)


def _refuse(
    path: Path, frame: pl.DataFrame, name: str, bad: pl.Series, what: str, cure: str = "correct the table"
) -> None:
    """InputError that names the first row where `bad` holds, counting data rows from 1."""
    rows = bad.fill_null(value=False).arg_true()
    if len(rows):
        value = frame[name][int(rows[0])]
        said = "the value" if value is None else repr(value)
        also = f" (and {len(rows) - 1} more rows)" if len(rows) > 1 else ""
        raise InputError(f"{path}: row {int(rows[0]) + 1}, column {name}: {said} {what}{also}; {cure}")


def _no_draw(path: Path, frame: pl.DataFrame) -> str:
    """Why the groups guarantee nothing, where the table says so."""
    if "no_draw" not in frame.columns:
        return ""
    return str(_text(path, frame.drop_nulls("no_draw"), "no_draw")[0])


def _single(path: Path, rows: pl.DataFrame, name: str) -> float | None:
    """The one value of a column that must not vary, or None where there is no such column."""
    if name not in rows.columns:
        return None
    counts = rows.group_by(name).agg(pl.col("group_id").n_unique()).sort(name).rows()
    if len(counts) > 1:
        listed = ", ".join(f"{value} in {count}" for value, count in counts)
        raise InputError(f"{path}: {name} differs between groups ({listed} groups); a gate is fitted at one {name}")
    return counts[0][0]  # type: ignore[no-any-return]


def _single_whole(path: Path, rows: pl.DataFrame, name: str) -> int | None:
    value = _single(path, rows, name)
    return None if value is None else int(value)


def _horizon(path: Path, rows: pl.DataFrame, max_steps: int | None) -> int:
    horizon = _single_whole(path, rows, "horizon")
    if horizon is not None and max_steps not in (None, horizon):
        raise InputError(f"{path}: its horizon is {horizon}, not {max_steps}; drop --max-steps")
    return horizon or max_steps or DEFAULT_MAX_STEPS


def _check_steps(path: Path, rows: pl.DataFrame, horizon: int) -> None:
    last = int(rows["step"].max())  # type: ignore[arg-type]
    if last < horizon:
        return
    said = f"{path}: K = {last} leaves nothing to cut at"
    if "horizon" in rows.columns:
        raise InputError(
            f"{said} the table's own horizon of {horizon}; "
            f"correct its column horizon, or leave out its rows from K = {horizon} on"
        )
    raise InputError(f"{said} a horizon of {horizon}; give --max-steps over {last}")


def _at(path: Path, rows: pl.DataFrame, step: int) -> pl.DataFrame:
    chosen = rows.filter(pl.col("step") == step)
    if not chosen.height:
        there = ", ".join(str(k) for k in rows["step"].unique().sort())
        raise InputError(f"--at-step {step}: {path} has no such K; it has {there}")
    return chosen


def _rectangular(path: Path, rows: pl.DataFrame) -> pl.DataFrame:
    """Check that each group has a row at each K, and says the same of itself in all of them."""
    steps = rows["step"].unique()
    gaps = rows.group_by("group_id", maintain_order=True).agg("step").filter(pl.col("step").list.len() < len(steps))
    if gaps.height:
        group, there = gaps.row(0)
        absent = min(set(steps.to_list()) - set(there))
        raise InputError(
            f"{path}: group {group!r} has no row at K = {absent}, as others have; add it, or choose --at-step"
        )
    for name in ("outcome", "reward_variance", "game_id"):
        if name in rows.columns:
            varying = rows.filter(pl.col(name).n_unique().over("group_id") > 1)
            if varying.height:
                raise InputError(
                    f"{path}: group {varying['group_id'][0]!r} has more than one {name}; correct the table"
                )
    return rows


def _check_ends(path: Path, groups: pl.Series, running: NDArray[np.bool_], steps: NDArray[np.int64]) -> None:
    """InputError where a group that is over at one K runs at a later one."""
    again = np.argwhere(running[:, 1:] & ~running[:, :-1])
    if len(again):
        group, column = again[0]
        raise InputError(
            f"{path}: group {groups[int(group)]!r} is over at K = {steps[column]} and runs at K = {steps[column + 1]} "
            "(column eligible or termination_fraction); correct the table"
        )


def _outcomes(groups: pl.DataFrame, tolerance: float) -> np.ndarray[tuple[int], np.dtype[np.str_]]:
    if "outcome" in groups.columns:
        return np.array(groups["outcome"].to_list())
    return np.where(groups["reward_variance"].to_numpy() > (tolerance / 2) ** 2, "mixed", "uniform")


def _approximate_outcomes(variance: NDArray[np.float64], tolerance: float, size: int | None) -> str:
    """Rewards that differ by r have a variance of r²/(2G) to r²/4, by where the others lie."""
    most = (tolerance / 2) ** 2
    if size is None:
        doubtful = "some of them may differ by more"
    else:
        either = ((variance > tolerance**2 / (2 * size) * (1 + _ROUNDING)) & (variance <= most)).sum()
        doubtful = f"{either} of these may differ by more"
    return (
        "note: outcomes are approximate: the table has no column `outcome`, and groups whose reward variance is at "
        f"most {most:g} are taken as zero-variance; {doubtful}"
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
