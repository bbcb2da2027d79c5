"""Streams the trajectories and the steps of a run as blocks of whole groups, some thousands of rows at a time.

Text becomes numbers here: the actions have their symbols already, verbs, observations and commands go by their 64-bit
hash, numbered anew within each group. What an imported run lacks is null there, and said with each block.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from calibrate.prefixes import END, Deeds, Views, renumbered
from calibrate.signals import verb
from collect.errors import InputError
from collect.store import check_part, committed_parts

# Rows read at a time: what bounds the memory of a large run.
_TRAJECTORIES_AT_ONCE = 16_384
_STEPS_AT_ONCE = 131_072

_TRAJECTORY_COLUMNS = ("group_id", "trajectory", "length", "action_symbols", "actions", "reply_tokens")
_STEP_COLUMNS = (
    "group_id",
    "trajectory",
    "step",
    "observation",
    "admissible_commands",
    "match",
    "reply_tokens",
    "reply_logprob",
)
# Text that is read as numbers into a dictionary, and so hashed once a distinct value; arrow cannot do so in lists.
_DICTIONARIES = ("group_id", "observation", "match")
# What a field of Views is read from.
_COLUMN_OF = {
    "observations": "observation",
    "commands": "commands",
    "refused": "refused",
    "logprobs": "reply_logprob",
    "tokens": "reply_tokens",
}

Ints = NDArray[np.int64]
Hashes = NDArray[np.uint64]


def deeds(run: Path, groups: pl.Series, size: int, horizon: int) -> Iterator[tuple[Ints, Deeds, Ints | None]]:
    """For each block of n groups: their places (n,), what they did, and the tokens of each reply (n, G, horizon), None
    where a trajectory lacks them.

    `groups` are the ids of those asked for, each at its place; one with trajectories missing does not come.

    Raises:
        InputError: a part is damaged, or a trajectory contradicts itself.
    """
    expected = np.full(len(groups), size)
    for found in _whole(run, "trajectories", _TRAJECTORY_COLUMNS, _TRAJECTORIES_AT_ONCE, groups, expected):
        rows = found.sort("place", "trajectory")
        _check_trajectories(run, rows, groups, size, horizon)
        lengths = rows["length"].to_numpy()
        taken = (np.arange(horizon) < lengths[:, None]).reshape(-1, size, horizon)

        def laid_out(values: NDArray[Any], taken: NDArray[np.bool_] = taken) -> NDArray[Any]:
            array = np.zeros(taken.shape, values.dtype)
            array[taken] = values
            return array

        # One character a distinct action of the group: its code point, counted from the lowest, is the symbol.
        codes = np.frombuffer("".join(rows["action_symbols"]).encode("utf-32-le"), "<u4").astype(np.int32)
        codes = codes - codes.min(initial=np.iinfo(np.int32).max) + END + 1
        yield (
            rows["place"].to_numpy().reshape(-1, size)[:, 0],
            Deeds(
                lengths=lengths.reshape(-1, size),
                actions=laid_out(codes),
                verbs=renumbered(laid_out(_flat(rows["verbs"])), taken),
            ),
            None if rows["reply_tokens"].has_nulls() else laid_out(_flat(rows["reply_tokens"]).astype(np.int64)),
        )


def views(
    run: Path, groups: pl.Series, lengths: NDArray[np.int32], horizon: int
) -> Iterator[tuple[Ints, Views, frozenset[str]]]:
    """For each block of n groups: their places (n,), what they met, given the `lengths` (N, G) of all groups, and which
    fields of it mean nothing, as a step lacks them.

    `groups` are the ids of those asked for, each at its place; one with steps missing does not come.

    Raises:
        InputError: a part is damaged, or a group's steps contradict the lengths.
    """
    size, expected = lengths.shape[1], lengths.sum(axis=1)
    for found in _whole(run, "steps", _STEP_COLUMNS, _STEPS_AT_ONCE, groups, expected):
        rows = found.sort("place", "trajectory", "step")
        here = np.unique(rows["place"].to_numpy())
        taken = np.arange(horizon) < lengths[here][:, :, None]
        _check_steps(run, rows, groups, here, taken)

        def laid_out(name: str, rows: pl.DataFrame = rows, taken: NDArray[np.bool_] = taken) -> NDArray[Any]:
            values = rows[name].fill_null(strategy="zero").to_numpy()
            array = np.zeros(taken.shape, values.dtype)
            array[taken] = values
            return array

        yield (
            here,
            Views(
                lengths=lengths[here],
                observations=renumbered(laid_out("observation"), taken),
                commands=renumbered(laid_out("commands"), taken),
                refused=laid_out("refused"),
                logprobs=laid_out("reply_logprob"),
                tokens=laid_out("reply_tokens").astype(np.int64),
            ),
            frozenset(field for field, column in _COLUMN_OF.items() if rows[column].has_nulls()),
        )
    silent = np.flatnonzero(expected == 0)
    if len(silent):
        nothing = np.zeros((len(silent), size, horizon), np.int32)
        yield (
            silent,
            Views(
                lengths=lengths[silent],
                observations=nothing,
                commands=nothing,
                refused=nothing.astype(np.bool_),
                logprobs=nothing.astype(np.float64),
                tokens=nothing.astype(np.int64),
            ),
            frozenset(),
        )


def _read(run: Path, table: str, columns: Sequence[str], at_once: int) -> Iterator[pa.RecordBatch]:
    dictionaries = [name for name in _DICTIONARIES if name in columns]
    for part in committed_parts(run, table):
        check_part(part)
        try:
            with pq.ParquetFile(part, read_dictionary=dictionaries) as file:
                yield from file.iter_batches(at_once, columns=columns)
        except (OSError, pa.ArrowException) as error:
            told = str(error).strip().partition("\n")[0]
            raise InputError(f"{part}: damaged ({told}); restore the run from a copy") from error


def _whole(
    run: Path, table: str, columns: Sequence[str], at_once: int, groups: pl.Series, expected: Ints
) -> Iterator[pl.DataFrame]:
    """The rows of a table as numbers, regrouped so that each group comes whole: with as many as `expected` of it."""
    places = {group: place for place, group in enumerate(groups)}
    waiting: list[pl.DataFrame] = []
    for batch in _read(run, table, columns, at_once):
        ids = batch["group_id"]
        known = np.array([places.get(group, -1) for group in ids.dictionary.to_pylist()], np.int64)
        place = known[ids.indices.to_numpy()]
        waiting.append(_numbers(batch).with_columns(place=place).filter(place >= 0))
        if sum(frame.height for frame in waiting) >= at_once:
            ready, rest = _split(waiting, expected)
            waiting = [rest]
            yield from ready
    yield from _split(waiting, expected)[0] if waiting else ()


def _split(frames: list[pl.DataFrame], expected: Ints) -> tuple[list[pl.DataFrame], pl.DataFrame]:
    """The rows of the groups that are whole, if there are some, and the other rows."""
    rows = pl.concat(frames)
    places, of, there = np.unique(rows["place"].to_numpy(), return_inverse=True, return_counts=True)
    whole = (there >= expected[places])[of]
    return [rows.filter(whole)] if whole.any() else [], rows.filter(~whole)


def _numbers(batch: pa.RecordBatch) -> pl.DataFrame:
    """The batch with its long text as hashes."""
    columns: dict[str, Any] = {}
    for name in batch.schema.names:
        column = batch[name]
        match name:
            case "group_id":
                pass
            case "actions":
                verbs = _hashes_of_verbs(column.flatten())
                columns["verbs"] = pl.from_arrow(_lists(column, verbs))
            case "observation":
                columns[name] = pl.from_arrow(pa.array(_hashes(column.dictionary)).take(column.indices))
            case "admissible_commands":
                sums = _sums(column, _hashes(column.flatten()))
                columns["commands"] = pl.from_arrow(
                    pa.array(sums, mask=pc.is_null(column).to_numpy(zero_copy_only=False))
                )
            case "match":
                columns["refused"] = pl.from_arrow(pc.equal(column, "none"))
            case _:
                columns[name] = pl.from_arrow(column)
    return pl.DataFrame(columns)


def _hashes(texts: pa.Array) -> Hashes:
    """A 64-bit hash of each text: equal for equal texts, and in effect for no others."""
    return np.asarray(pl.Series(texts, dtype=pl.String).hash().to_numpy(), np.uint64)


def _hashes_of_verbs(actions: pa.Array) -> Hashes:
    """The hash of the first word of each action."""
    known = actions.dictionary_encode()
    verbs = pa.array([verb(action) for action in known.dictionary.to_pylist()], pa.string())
    return np.asarray(_hashes(verbs)[known.indices.to_numpy()])


def _sums(lists: pa.ListArray, hashes: Hashes) -> Hashes:
    """One hash a list, whatever the order of its items: the sum of theirs, modulo 2^64."""
    offsets = lists.offsets.to_numpy()
    running = np.concatenate([np.zeros(1, np.uint64), np.cumsum(hashes, dtype=np.uint64)])
    offsets = offsets - offsets[0]
    return np.asarray(running[offsets[1:]] - running[offsets[:-1]])


def _lists(like: pa.ListArray, values: Hashes) -> pa.ListArray:
    offsets = like.offsets.to_numpy()
    return pa.ListArray.from_arrays(pa.array(offsets - offsets[0], pa.int32()), pa.array(values))


def _flat(lists: pl.Series) -> NDArray[Any]:
    return np.asarray(pc.list_flatten(lists.to_arrow()).to_numpy())


def _check_trajectories(run: Path, rows: pl.DataFrame, groups: pl.Series, size: int, horizon: int) -> None:
    """Refuse trajectories that contradict themselves."""
    length = pl.col("length")
    numbered = (pl.int_range(pl.len()).over("place") == pl.col("trajectory")) & (pl.col("trajectory") < size)
    told = (
        (pl.col("action_symbols").str.len_chars() == length)
        & (pl.col("reply_tokens").list.len() == length).fill_null(value=True)
        & (pl.col("verbs").list.len() == length)
    )
    bad = rows.filter(~(numbered & length.is_between(0, horizon) & told).fill_null(value=False))
    if bad.height:
        raise InputError(
            f"{run}: group {groups[bad['place'][0]]!r}, trajectory {bad['trajectory'][0]}: its number, length, actions "
            "and tokens do not fit together; restore the run from a copy"
        )


def _check_steps(run: Path, rows: pl.DataFrame, groups: pl.Series, here: Ints, taken: NDArray[np.bool_]) -> None:
    """Refuse steps that are not those which the lengths of the trajectories tell of."""
    block, trajectory, step = np.nonzero(taken)
    same = len(step) == rows.height and (
        (rows["place"].to_numpy() == here[block])
        & (rows["trajectory"].to_numpy() == trajectory)
        & (rows["step"].to_numpy() == step + 1)
        & rows["reply_logprob"].is_finite().fill_null(value=True).to_numpy()
    )
    if not np.all(same):
        first = 0 if isinstance(same, bool) else int(np.argmin(same))
        raise InputError(
            f"{run}: the steps of group {groups[rows['place'][first]]!r} do not fit its trajectories; "
            "restore the run from a copy"
        )
