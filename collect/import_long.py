"""A long table, CSV, JSON Lines or Parquet: one row a step, in columns that the user names."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from collect.errors import InputError
from collect.import_gathered import Parts, gathered
from collect.import_groups import Import
from collect.logged import LoggedGroup, LoggedStep, LoggedTrajectory
from collect.source import Place, Source
from collect.spool import Spool

# What a column may be mapped as, and whether there must be one.
REQUIRED = ("group", "trajectory", "action")
OPTIONAL = ("step", "reward", "step_reward", "observation", "reply", "game", "task_type", "won")
_PARQUET_MAGIC = b"PAR1"
_COLUMNS_TOLD = 500  # characters; what is no table may be one endless header

Row = Mapping[str, Any]


def read_mapping(text: str | None) -> dict[str, str]:
    """The columns of `group=COLUMN,trajectory=COLUMN,…`. Raises InputError where it is none."""
    mapping: dict[str, str] = {}
    for pair in (text or "").split(",") if text else []:
        name, equals, column = pair.partition("=")
        name = name.strip()
        if not equals or not column.strip():
            raise InputError(f"--map {pair!r}: write group=COLUMN,trajectory=COLUMN,action=COLUMN,reward=COLUMN")
        if name not in (*REQUIRED, *OPTIONAL):
            raise InputError(f"--map {name}: unknown; one of {', '.join((*REQUIRED, *OPTIONAL))}")
        if name in mapping:
            raise InputError(f"--map {name}: given twice; give each once")
        mapping[name] = column.strip()
    return mapping


def groups(log: Import, mapping: Mapping[str, str]) -> Iterator[LoggedGroup]:
    """The groups of a table. What is not mapped is looked for under its own name.

    Without steps the order of rows counts. `reward` is a trajectory's final reward, on every row or on one of them;
    `step_reward` is a step's, and their sum is the final one where there is no other.
    """
    with Spool() as spool:
        for file in log.source.files:
            for place, row in _rows(log.source, file, mapping):
                try:
                    group, trajectory, content = _part(row)
                except ValueError as error:
                    log.source.malformed.add(place, str(error))
                else:
                    spool.add(group, trajectory, 1, content)
        yield from gathered(log, spool, _group)


def _rows(source: Source, file: Path, mapping: Mapping[str, str]) -> Iterator[tuple[Place, Row]]:
    """The rows of a file under our names; what kind of file it is shows in its first bytes."""
    with file.open("rb") as opened:
        begin = opened.read(4096)
    if begin.startswith(_PARQUET_MAGIC):
        try:
            there = pq.read_schema(file).names
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{file}: cannot be read as Parquet; restore it from a copy") from error
        named = _named(file, there, mapping)
        rows: Iterator[tuple[Place, Row]] = source.parquet_rows(file, sorted(set(named.values())))
    elif begin.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        named = {name: mapping.get(name, name) for name in (*REQUIRED, *OPTIONAL)}
        rows = _json_rows(source, file)
    else:
        rows = source.csv_rows(file)
        named = _named(file, _header(file), mapping)
    for place, row in rows:
        yield place, {name: row.get(column) for name, column in named.items()}


def _json_rows(source: Source, file: Path) -> Iterator[tuple[Place, Row]]:
    for place, line, unended in source.lines(file):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            source.refuse(place, str(error), torn=unended)
            continue
        if isinstance(row, dict):
            yield place, row
        else:
            source.malformed.add(place, "no JSON object")


def _header(file: Path) -> list[str]:
    import csv

    with file.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as opened:
        return next(csv.reader(opened), [])


def _named(file: Path, there: Sequence[str], mapping: Mapping[str, str]) -> dict[str, str]:
    """The column of each name that the table has. Raises InputError where one that is needed is missing."""
    named = {name: mapping.get(name, name) for name in (*REQUIRED, *OPTIONAL)}
    missing = [name for name in named if named[name] not in there and (name in mapping or name in REQUIRED)]
    if not missing and "reward" not in mapping and named["reward"] not in there and named["step_reward"] not in there:
        missing = ["reward"]
    if missing:
        columns = ", ".join(there) if there else "none"
        columns = columns if len(columns) <= _COLUMNS_TOLD else f"{columns[:_COLUMNS_TOLD]}…"
        raise InputError(
            f"{file}: has no column {named[missing[0]]!r} for {missing[0]}; name it with --map {missing[0]}=COLUMN "
            f"(its columns are: {columns})"
        )
    return {name: column for name, column in named.items() if column in there}


def _part(row: Row) -> tuple[str, str, list[Any]]:
    """A row: its group, its trajectory, and what else it tells, as JSON values; ValueError where something is wrong."""
    action = row.get("action")
    if action is None:
        raise ValueError("action: is null")
    content = [
        _whole(row, "step"),
        _number(row, "reward"),
        _number(row, "step_reward"),
        _text(action),
        _text(row.get("observation")),
        _text(row.get("reply")),
        _unicode(_text(row.get("game")) or "", "game"),
        _text(row.get("task_type")),
        _truth(row, "won"),
    ]
    return _key(row, "group"), _key(row, "trajectory"), content


def _group(name: str, parts: Parts) -> LoggedGroup:
    """A group; ValueError where its rows do not fit together."""
    rows = [row for _, one in parts for row in one]
    games = {row[6] for row in rows} - {None, ""}
    if len(games) > 1:
        raise ValueError("its rows name several games")
    types = sorted({row[7] for row in rows} - {None, ""})
    return LoggedGroup(
        game_id=next(iter(games), name),
        trajectories=tuple(_trajectory(trajectory, one) for trajectory, one in parts),
        task_type=types[0] if len(types) == 1 else None,
    )


def _trajectory(name: str, rows: Sequence[Sequence[Any]]) -> LoggedTrajectory:
    ordered = _in_order(name, rows)
    finals = {row[1] for row in rows} - {None}
    if len(finals) > 1:
        raise ValueError(f"trajectory {name}: its rewards differ from row to row; map those of steps as step_reward")
    of_steps = [row[2] for row in ordered]
    if not finals and all(reward is None for reward in of_steps):
        raise ValueError(f"trajectory {name}: has no reward")
    won = [row[8] for row in ordered if row[8] is not None]
    return LoggedTrajectory(
        reward=finals.pop() if finals else math.fsum(reward or 0.0 for reward in of_steps),
        steps=tuple(LoggedStep(row[3], row[4], row[5], row[2]) for row in ordered),
        won=won[-1] if won else None,
    )


def _in_order(name: str, rows: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
    """The rows by their steps, which must follow each other from 0 or 1; as they are where none has a step."""
    steps = [row[0] for row in rows]
    if all(step is None for step in steps):
        return rows
    if None in steps:
        raise ValueError(f"trajectory {name}: a row has no step, others have")
    ordered = sorted(steps)
    first = ordered[0]
    expected = list(range(first, first + len(ordered)))
    if first not in (0, 1) or ordered != expected:
        wrong = next(step for step, due in zip(ordered, expected, strict=True) if step != due or first not in (0, 1))
        told = f"step {wrong} twice" if steps.count(wrong) > 1 else f"a step before {wrong} is missing"
        raise ValueError(f"trajectory {name}: {told}")
    return sorted(rows, key=lambda row: int(row[0]))


def _key(row: Row, name: str) -> str:
    value = row.get(name)
    if value is None or value == "" or isinstance(value, bool | list | dict):
        raise ValueError(f"{name}: is {'empty' if value in (None, '') else 'no name or number'}")
    return _unicode(str(int(value)) if isinstance(value, float) and value.is_integer() else str(value), name)


def _unicode(text: str, name: str) -> str:
    """A name, which must survive being written; other text may lose its lone surrogates."""
    if not text.isascii() and text.encode(errors="replace").decode() != text:
        raise ValueError(f"{name}: is no Unicode text")
    return text


def _number(row: Row, name: str) -> float | None:
    value = row.get(name)
    if value is None or value == "":
        return None
    try:
        number = float(value) if not isinstance(value, bool) else math.nan
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{name}: is no finite number")
    return number


def _whole(row: Row, name: str) -> int | None:
    number = _number(row, name)
    if number is not None and not number.is_integer():
        raise ValueError(f"{name}: is no whole number")
    return None if number is None else int(number)


def _text(value: Any) -> str | None:
    """Text as it is; what is no text (such as the number of an action) as JSON."""
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)


def _truth(row: Row, name: str) -> bool | None:
    value = row.get(name)
    if value is None or value == "":
        return None
    told = {True: True, False: False, "true": True, "false": False, "1": True, "0": False}
    key = value.strip().lower() if isinstance(value, str) else value
    if isinstance(key, bool | int | float | str) and key in told:
        return told[key]
    raise ValueError(f"{name}: is neither true nor false")
