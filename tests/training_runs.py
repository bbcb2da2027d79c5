"""Synthetic training runs for tests that need iterations but no training."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from synthetic import make_group

from collect.schema import EVALUATIONS, ITERATIONS, Table
from collect.store import open_run
from collect.trajectory import Decision

GAMES = [f"game-{number:02}" for number in range(20)]


def write_training(folder: Path, arm: str, seed: int, rows: Sequence[Mapping[str, Any]], groups: int = 0) -> None:
    """A run of `sr train` with these iterations, evaluations at its begin and end, and some groups."""
    rng = random.Random(f"{arm} {seed}")
    with open_run(folder, {"model": "tiny", "arm": arm, "seed": seed}, {}, command="train") as run:
        for number in range(groups):
            decision = Decision(
                2, 0.1, 0.3, flagged=True, enforced=arm == "on" and number % 2 == 0, audited=number % 2 == 1
            )
            run.add(make_group(rng, number=number, decision=decision if arm == "on" else None))
    write_table(folder, ITERATIONS, [iteration(number, row) for number, row in enumerate(rows, start=1)])
    won = [[rng.random() < rate for _ in GAMES] for rate in (0.3, 0.7)]
    write_table(folder, EVALUATIONS, [evaluation(at, games) for at, games in zip((0, len(rows)), won, strict=True)])


def iteration(number: int, known: Mapping[str, Any]) -> dict[str, Any]:
    """A row of iterations: what is `known`, and a plausible rest."""
    row: dict[str, Any] = {name: None if column.nullable else 0 for name, column in _columns(ITERATIONS).items()}
    seconds = {"seconds_rollout": 9.0, "seconds_gate": 0.5, "seconds_update": 1.0, "seconds": 10.0}
    rest = {"gate_mode": "on", "groups": 4, "tokens_sampled": 1000, "updated": True, "drift_alarm": False} | seconds
    return row | rest | {"iteration": number, "policy_version": number - 1, "gradient_norm": 0.2} | dict(known)


def evaluation(after: int, won: Sequence[bool]) -> dict[str, Any]:
    share = sum(won) / len(won)
    return {
        **{name: None if column.nullable else 0 for name, column in _columns(EVALUATIONS).items()},
        **{"iteration": after, "games": len(won), "won": sum(won), "game_ids": GAMES, "game_won": list(won)},
        **{"success": share, "success_low": share - 0.1, "success_high": share + 0.1},
    }


def write_table(folder: Path, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    columns = {name: [row[name] for row in rows] for name in table.arrow.names}
    arrays = [pa.array(columns[field.name], _plain(field.type)).cast(field.type) for field in table.arrow]
    pq.write_table(pa.Table.from_arrays(arrays, schema=table.arrow), folder / f"{table.name}.parquet")


def _columns(table: Table) -> dict[str, Any]:
    return {column.name: column for column in table.columns}


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind
