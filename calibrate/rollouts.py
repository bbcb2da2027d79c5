"""From the rollouts of a run to a sample, and to the run's signals.parquet."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from polars.exceptions import PolarsError

from calibrate.outcomes import outcomes
from calibrate.sample import Cost, Sample
from calibrate.signals import END, PREFIX_EDIT_DISTANCE, SIGNALS, eligible, termination_fraction
from collect.errors import InputError
from collect.files import replacing
from collect.store import check_part, committed_parts, scan

# How many trajectories are read, and how many groups written, at a time: what bounds the memory of a large run.
_TRAJECTORIES_AT_ONCE = 16_384
_GROUPS_AT_ONCE = 4096
_TRAJECTORY_COLUMNS = ["group_id", "trajectory", "length", "action_symbols", "reply_tokens"]


@dataclass(frozen=True, eq=False)
class _Block:
    """n groups' trajectories: places in the sample (n,), lengths (n, G), symbols and tokens (n, G, horizon)."""

    places: NDArray[np.int64]
    lengths: NDArray[np.int32]
    symbols: NDArray[np.int32]
    tokens: NDArray[np.int64]


def read_rollouts(run: Path, reward_tolerance: float) -> Sample:
    """The sample of a run's groups at every K = 1 to horizon - 1.

    Groups that a gate cut (their rewards are truncated) and groups with missing trajectories are left out, and noted.

    Raises:
        InputError: no run, a damaged one, nothing left to calibrate on, or groups that differ in size or horizon.
    """
    try:
        return _read(run, reward_tolerance)
    except PolarsError as error:
        raise InputError(f"{run}: damaged ({_first_line(error)}); restore the run from a copy") from error


def _read(run: Path, reward_tolerance: float) -> Sample:
    groups, notes = _whole_groups(run)
    size, horizon = (_same(run, groups, column) for column in ("group_size", "horizon"))
    if size < 2 or horizon < 2:
        raise InputError(f"{run}: group size {size}, horizon {horizon}; both must be at least 2 to calibrate a gate")
    rewards = _rewards(run, groups, size)
    steps = np.arange(1, horizon)
    shape = (groups.height, len(steps))
    scores, fraction, running = np.zeros(shape), np.zeros(shape), np.zeros(shape, np.bool_)
    after, total = np.zeros(shape, np.int64), np.zeros(groups.height, np.int64)
    present = np.zeros(groups.height, np.bool_)
    for block in _blocks(run, groups, size, horizon):
        here = block.places
        present[here] = True
        scores[here] = PREFIX_EDIT_DISTANCE.sweep(block.symbols[:, :, :-1])
        fraction[here] = termination_fraction(block.lengths, steps)
        running[here] = eligible(block.lengths, steps)
        spent = block.tokens.sum(axis=1).cumsum(axis=1)
        total[here] = spent[:, -1]
        after[here] = spent[:, -1:] - spent[:, :-1]
    if not present.all():
        missing = groups.filter(~present)["group_id"]
        notes += (f"left out: {len(missing)} groups with missing trajectories (the first is {missing[0]!r})",)
        groups, rewards = groups.filter(present), rewards[present]
    if not groups.height:
        raise InputError(f"{run}: no group has all its trajectories; restore the run from a copy")
    return Sample(
        signal=PREFIX_EDIT_DISTANCE.name,
        group_size=size,
        horizon=horizon,
        steps=steps,
        group_ids=groups["group_id"],
        task_types=groups["task_type"],
        outcomes=outcomes(rewards, reward_tolerance),
        reward_variance=rewards.var(axis=1),
        scores=scores[present],
        termination_fraction=fraction[present],
        eligible=running[present],
        eligible_exactly=True,
        cost=Cost("tokens", after[present], total[present]),
        notes=notes,
    )


def write_signals(path: Path, sample: Sample) -> None:
    """Write the sample of a run as a table of `SIGNALS`, sorted by group and step, whole or not at all.

    Raises:
        InputError: the place cannot be written to.
    """
    try:
        with replacing(path) as temporary, pq.ParquetWriter(temporary, SIGNALS.arrow, compression="zstd") as writer:
            for start in range(0, sample.size, _GROUPS_AT_ONCE):
                writer.write_table(_signal_rows(sample, slice(start, start + _GROUPS_AT_ONCE)))
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); make the run's folder writable") from error


def _signal_rows(sample: Sample, part: slice) -> pa.Table:
    assert sample.task_types is not None
    assert sample.termination_fraction is not None
    ids = sample.group_ids[part]
    groups, steps = len(ids), len(sample.steps)
    of_group = np.repeat(np.arange(groups), steps)
    columns = {
        "group_id": ids.to_numpy()[of_group],
        "task_type": sample.task_types[part].to_numpy()[of_group],
        "group_size": np.full(groups * steps, sample.group_size),
        "horizon": np.full(groups * steps, sample.horizon),
        "step": np.tile(sample.steps, groups),
        "eligible": sample.eligible[part].ravel(),
        "outcome": sample.outcomes[part][of_group],
        "reward_variance": sample.reward_variance[part][of_group],
        sample.signal: sample.scores[part].ravel(),
        "termination_fraction": sample.termination_fraction[part].ravel(),
    }
    return pa.table([pa.array(columns[name]) for name in SIGNALS.arrow.names], names=SIGNALS.arrow.names).cast(
        SIGNALS.arrow
    )


def _whole_groups(run: Path) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """The groups to calibrate on, sorted by id, and what was left out."""
    columns = ("group_id", "task_type", "group_size", "horizon", "rewards", "gate_enforced")
    groups = scan(run, "groups").select(columns).sort("group_id").collect()
    failed = scan(run, "errors").select("group_id").unique().collect()
    notes: tuple[str, ...] = ()
    owed = failed.join(groups, on="group_id", how="anti").height
    if owed:
        notes += (f"left out: {owed} groups that failed and are owed (run sr collect again to have them)",)
    cut = pl.col("gate_enforced").fill_null(value=False)
    whole = groups.filter(~cut)
    if whole.height < groups.height:
        notes += (f"left out: {groups.height - whole.height} groups that a gate cut (their rewards are truncated)",)
    if not whole.height:
        left_out = f" ({'; '.join(notes)})" if notes else ""
        raise InputError(f"{run}: no finished ungated group to calibrate on{left_out}; let sr collect finish some")
    return whole, notes


def _same(run: Path, groups: pl.DataFrame, column: str) -> int:
    """The one value of a column; InputError with the counts when groups differ."""
    counts = groups[column].value_counts().sort(column).rows()
    if len(counts) > 1:
        listed = ", ".join(f"{value} in {count}" for value, count in counts)
        raise InputError(f"{run}: {column} differs between groups ({listed} groups); a gate is fitted at one {column}")
    return int(counts[0][0])


def _rewards(run: Path, groups: pl.DataFrame, size: int) -> NDArray[np.float64]:
    """Final rewards, (N, G)."""
    odd = groups.filter(pl.col("rewards").list.len() != size)
    if odd.height:
        raise InputError(
            f"{run}: group {odd['group_id'][0]!r} has {len(odd['rewards'][0])} rewards, not {size}; "
            "restore the run from a copy"
        )
    rewards = groups["rewards"].explode().to_numpy().reshape(-1, size)
    bad = np.flatnonzero(~np.isfinite(rewards).all(axis=1))
    if len(bad):
        raise InputError(
            f"{run}: group {groups['group_id'][int(bad[0])]!r} has a reward that is no finite number; "
            "restore the run from a copy"
        )
    return np.asarray(rewards, np.float64)


def _blocks(run: Path, groups: pl.DataFrame, size: int, horizon: int) -> Iterator[_Block]:
    """The trajectories of the groups, in blocks of whole groups; groups with trajectories missing do not come."""
    places = {group: place for place, group in enumerate(groups["group_id"])}
    for rows in _whole(_batches(run, places), size):
        _check(run, rows, size, horizon)
        lengths = rows["length"].to_numpy()
        # One character a distinct action of the group: its code point, counted from the lowest, is the symbol.
        codes = np.frombuffer("".join(rows["action_symbols"]).encode("utf-32-le"), "<u4").astype(np.int32)
        codes = codes - codes.min(initial=np.iinfo(np.int32).max) + END + 1
        tokens = pc.list_flatten(rows["reply_tokens"].to_arrow()).to_numpy()
        yield _Block(
            places=rows["place"].to_numpy().reshape(-1, size)[:, 0].astype(np.int64),
            lengths=lengths.reshape(-1, size),
            symbols=_padded(codes, lengths, horizon, END).reshape(-1, size, horizon),
            tokens=_padded(tokens.astype(np.int64), lengths, horizon, 0).reshape(-1, size, horizon),
        )


def _batches(run: Path, places: dict[str, int]) -> Iterator[pl.DataFrame]:
    """The trajectories of the given groups, some thousands at a time, with each group's place."""
    waiting: list[pa.RecordBatch] = []
    for part in committed_parts(run, "trajectories"):
        check_part(part)
        try:
            with pq.ParquetFile(part) as file:
                for batch in file.iter_batches(_TRAJECTORIES_AT_ONCE, columns=_TRAJECTORY_COLUMNS):
                    waiting.append(batch)
                    if sum(map(len, waiting)) >= _TRAJECTORIES_AT_ONCE:
                        yield _placed(waiting, places)
                        waiting = []
        except (OSError, pa.ArrowException) as error:
            raise InputError(f"{part}: damaged ({_first_line(error)}); restore the run from a copy") from error
    if waiting:
        yield _placed(waiting, places)


def _placed(batches: list[pa.RecordBatch], places: dict[str, int]) -> pl.DataFrame:
    rows = pl.DataFrame(pa.Table.from_batches(batches))
    place = pl.Series("place", [places.get(group) for group in rows["group_id"]], pl.Int64)
    return rows.with_columns(place).drop_nulls("place")


def _whole(batches: Iterable[pl.DataFrame], size: int) -> Iterator[pl.DataFrame]:
    """Regroup batches of trajectories so that each group comes whole, its trajectories in order."""
    waiting: pl.DataFrame | None = None
    for batch in batches:
        rows = batch if waiting is None else pl.concat([waiting, batch])
        rows = rows.with_columns((pl.len().over("place") >= size).alias("whole"))
        ready = rows.filter("whole").drop("whole")
        waiting = rows.filter(~pl.col("whole")).drop("whole")
        if ready.height:
            yield ready.sort("place", "trajectory")


def _check(run: Path, rows: pl.DataFrame, size: int, horizon: int) -> None:
    """Refuse trajectories that contradict themselves."""
    length = pl.col("length")
    numbered = (pl.int_range(pl.len()).over("place") == pl.col("trajectory")) & (pl.col("trajectory") < size)
    bounded = length.is_between(0, horizon)
    told = (pl.col("action_symbols").str.len_chars() == length) & (pl.col("reply_tokens").list.len() == length)
    bad = rows.filter(~(numbered & bounded & told).fill_null(value=False))
    if bad.height:
        raise InputError(
            f"{run}: group {bad['group_id'][0]!r}, trajectory {bad['trajectory'][0]}: its number, length, actions and "
            "tokens do not fit together; restore the run from a copy"
        )


def _padded(values: NDArray[Any], lengths: NDArray[np.int32], width: int, padding: int) -> NDArray[Any]:
    """Rows of the given lengths, laid one after another in `values`, as one array (rows, width)."""
    array = np.full((len(lengths), width), padding, values.dtype)
    array[np.arange(width) < lengths[:, None]] = values
    return array


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
