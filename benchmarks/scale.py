"""How calibration scales: `python benchmarks/scale.py --groups 10000 30000 100000 1000000`.

Writes synthetic runs of G = 8 and horizon 30 as Parquet, part by part, and calibrates each with `sr calibrate` in a
process of its own: seconds, groups a second, and the most memory that it held; and as ratios, how much more CPU time
than the run before it took for how many more groups.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from collect.games import TASK_TYPES
from collect.schema import GROUPS, STEPS, TRAJECTORIES, Table
from collect.store import open_run

SIZE, HORIZON = 8, 30
GROUPS_A_PART = 5_000
ACTIONS = [
    f"{verb} {thing} {n}" for verb in ("go to", "open", "take", "move") for thing in ("desk", "mug") for n in range(5)
]
OBSERVATIONS = [f"You arrive at desk {n}. On the desk {n}, you see a mug {n}, and a pen {n}." for n in range(60)]
COMMANDS = [sorted({ACTIONS[(i * 7 + j * 3) % len(ACTIONS)] for j in range(6)}) for i in range(25)]


def write_run(folder: Path, groups: int, seed: int = 0) -> None:
    """A run whose failing groups repeat themselves: what a policy that has half learned leaves behind."""
    with open_run(folder, {"model": "synthetic"}, {}):
        pass
    rng = np.random.default_rng(seed)
    for part, first in enumerate(range(0, groups, GROUPS_A_PART), start=1):
        count = min(GROUPS_A_PART, groups - first)
        for table, columns in zip((TRAJECTORIES, STEPS, GROUPS), part_of(rng, first, count), strict=True):
            _write(folder / table.name / f"part-{part:06d}.parquet", table, columns)


def part_of(rng: np.random.Generator, first: int, count: int) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The rows of some groups: trajectories, steps, groups."""
    kind = rng.random(count)  # under 0.3 all-fail, over 0.8 all-succeed
    won = np.where(kind[:, None] < 0.3, False, np.where(kind[:, None] > 0.8, True, rng.random((count, SIZE)) < 0.5))
    lengths = np.where(won, rng.integers(6, HORIZON, won.shape), HORIZON)
    shape = (count, SIZE, HORIZON)
    alike = rng.random(shape) < np.where(kind < 0.3, 0.9, 0.4)[:, None, None]
    actions = np.where(alike, rng.integers(0, len(ACTIONS), (count, 1, HORIZON)), rng.integers(0, len(ACTIONS), shape))
    taken = np.arange(HORIZON) < lengths[:, :, None]
    ids = pa.array([f"task-{first + g}/trial#0" for g in range(count)])
    rows, flat_lengths = int(taken.sum()), lengths.ravel()
    offsets = pa.array(np.concatenate([[0], np.cumsum(flat_lengths)]), pa.int32())
    tokens = rng.integers(3, 10, rows).astype(np.int32)
    symbols = np.where(taken, actions + 0x4E00, 0).astype("<u4").reshape(-1, HORIZON)
    done, of_group = actions[taken], np.repeat(np.arange(count), SIZE)
    nothing = pa.array([[]] * (count * SIZE), pa.list_(pa.int32()))
    trajectories = {
        "group_id": ids.take(pa.array(of_group)),
        "trajectory": np.tile(np.arange(SIZE), count),
        "reward": won.ravel().astype(float),
        "won": won.ravel(),
        "length": flat_lengths,
        "ending": _chosen(["horizon", "won"], won.ravel().astype(int)),
        "actions": pa.ListArray.from_arrays(offsets, _chosen(ACTIONS, done)),
        "action_symbols": pa.array(symbols.copy().view(f"<U{HORIZON}").ravel()),
        "reply_tokens": pa.ListArray.from_arrays(offsets, pa.array(tokens)),
        "token_ids": nothing,
        "policy_mask": nothing,
        "logprobs": nothing,
        "final_observation": _chosen(["Nothing happens."], np.zeros(count * SIZE, int)),
    }
    seen = np.where(alike[taken], done, rng.integers(0, len(OBSERVATIONS), rows))
    steps = {
        "group_id": ids.take(pa.array(np.repeat(of_group, flat_lengths))),
        "trajectory": np.repeat(np.tile(np.arange(SIZE), count), flat_lengths),
        "step": np.broadcast_to(np.arange(1, HORIZON + 1), shape)[taken],
        "observation": _chosen(OBSERVATIONS, seen),
        "admissible_commands": pa.array(COMMANDS).take(pa.array(seen % len(COMMANDS))),
        "reply": _chosen(ACTIONS, done),
        "action": _chosen(ACTIONS, done),
        "match": _chosen(["exact", "none"], (rng.random(rows) < 0.2).astype(int)),
        "reward": np.zeros(rows),
        "prompt_tokens": np.full(rows, 100),
        "reply_tokens": tokens,
        "reply_logprob": -rng.random(rows) * tokens,
        "engine_seconds": np.zeros(rows),
        "environment_seconds": np.zeros(rows),
    }
    groups = {
        "group_id": ids,
        "game_id": pa.array([f"task-{first + g}/trial" for g in range(count)]),
        "split": _chosen(["train"], np.zeros(count, int)),
        "task_type": _chosen(list(TASK_TYPES), np.arange(count) % len(TASK_TYPES)),
        "visit": np.zeros(count, int),
        "group_size": np.full(count, SIZE),
        "horizon": np.full(count, HORIZON),
        "policy_version": np.zeros(count, int),
        "seed": np.arange(first, first + count),
        "rewards": pa.FixedSizeListArray.from_arrays(pa.array(won.ravel().astype(float)), SIZE).cast(
            pa.list_(pa.float64())
        ),
        "started": pa.array([datetime(2026, 1, 1, tzinfo=UTC)] * count),
        "seconds": np.ones(count),
        "gate_evaluated": np.zeros(count, bool),
        **{
            name: pa.nulls(count)
            for name in ("gate_step", "gate_score", "gate_threshold", "gate_flagged", "gate_enforced", "gate_audited")
        },
    }
    return trajectories, steps, groups


def _chosen(words: list[str], places: NDArray[Any]) -> pa.Array:
    return pa.array(words).take(pa.array(places))


def _write(path: Path, table: Table, columns: dict[str, Any]) -> None:
    arrays = [pa.array(columns[field.name]).cast(field.type) for field in table.arrow]
    pq.write_table(pa.Table.from_arrays(arrays, schema=table.arrow), path, compression="zstd")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, nargs="+", default=[10_000, 30_000, 100_000])
    parser.add_argument("--folder", type=Path, help="where the runs are written; by default a temporary folder")
    parser.add_argument("options", nargs="*", help="given to sr calibrate, after --")
    given = parser.parse_args()
    before: tuple[int, float] | None = None
    with tempfile.TemporaryDirectory() as temporary:
        for groups in given.groups:
            run = (given.folder or Path(temporary)) / f"run-{groups}"
            if not run.exists():
                write_run(run, groups)
            command = [sys.executable, "-c", "from sr import main; main()", "calibrate", str(run), *given.options]
            begun = time.perf_counter()
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            _, status, usage = os.wait4(process.pid, 0)
            seconds = time.perf_counter() - begun
            busy = usage.ru_utime + usage.ru_stime
            growth = f"{busy / before[1]:.1f} times for {groups / before[0]:g} times the groups, " if before else ""
            before = groups, busy
            print(
                f"{groups:9,} groups: {seconds:8.1f} s, {groups / seconds:7,.0f} groups/s, "
                f"{usage.ru_maxrss / 2**20:5.2f} GiB at most, {busy:.0f} s of CPU, {growth}"
                f"exit code {os.waitstatus_to_exitcode(status)}",
                flush=True,
            )


if __name__ == "__main__":
    main()
