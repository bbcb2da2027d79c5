"""The groups of a run on disk, as they were when they had been rolled out: to learn from, or to gate, without rolling
out again.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from collect.errors import InputError
from collect.games import Game
from collect.store import check_part, committed_parts, read_run
from collect.trajectory import Decision, Group, Step, Trajectory

Row = dict[str, Any]


def stored_groups(run: Path, only: Collection[str] | None = None, *, steps_logged: bool = True) -> Iterator[Group]:
    """The committed groups of a run, in the order in which they were committed, one part in memory at a time.

    What Parquet does not hold of a game is its path: it is the game's id below its split.

    Args:
        run: its folder.
        only: the ids of the groups that are wanted; all of them where it is None.
        steps_logged: where it is False, steps need not have been logged, and hold what the trajectories tell of them:
            the actions and the numbers of tokens, and nothing of what was read or said.

    Raises:
        InputError: not a run; a part is damaged; the trajectories or steps of a group were not logged.
    """
    read_run(run)
    parts = (committed_parts(run, table) for table in ("groups", "trajectories", "steps"))
    # Groups are listed first: of a run that is being written, the others may have a part more by then.
    for groups_part, trajectories_part, steps_part in zip(*parts, strict=False):
        group_rows = _rows(groups_part, only)
        if not group_rows:
            continue
        trajectories, steps = defaultdict(list), defaultdict(list)
        for row in _rows(trajectories_part, only):
            trajectories[row["group_id"]].append(row)
        for row in _rows(steps_part, only) if steps_logged else ():
            steps[row["group_id"], row["trajectory"]].append(row)
        for row in group_rows:
            name = row["group_id"]
            try:
                members = [
                    _trajectory(t, steps[name, t["trajectory"]] if steps_logged else _bare_steps(t))
                    for t in trajectories[name]
                ]
                yield _group(row, members)
            except ValueError as error:
                raise InputError(f"{groups_part}: group {name}: {error}; take a run that logged all of it") from None


def _rows(part: Path, only: Collection[str] | None) -> list[Row]:
    check_part(part)
    try:
        wanted = None if only is None else pc.field("group_id").isin(list(only))
        rows: list[Row] = pq.read_table(part, filters=wanted).to_pylist()
        return rows
    except (OSError, pa.ArrowException) as error:
        told = str(error).strip().partition("\n")[0]
        raise InputError(f"{part}: damaged ({told}); restore the run from a copy") from error


def _group(row: Row, trajectories: list[Trajectory]) -> Group:
    if len(trajectories) != row["group_size"]:
        raise ValueError(f"{len(trajectories)} of its {row['group_size']} trajectories are there")
    return Group(
        game=Game(row["game_id"], Path(row["split"], row["game_id"], "game.tw-pddl"), row["split"], row["task_type"]),
        visit=row["visit"],
        horizon=row["horizon"],
        policy_version=row["policy_version"],
        seed=row["seed"],
        started=row["started"],
        seconds=row["seconds"],
        trajectories=tuple(trajectories),
        decision=_decision(row) if row["gate_evaluated"] else None,
    )


def _decision(row: Row) -> Decision:
    return Decision(
        step=row["gate_step"],
        score=row["gate_score"],
        threshold=row["gate_threshold"],
        flagged=row["gate_flagged"],
        enforced=row["gate_enforced"],
        audited=row["gate_audited"],
    )


def _trajectory(row: Row, steps: list[Row]) -> Trajectory:
    if None in (row["token_ids"], row["policy_mask"], row["logprobs"]):
        raise ValueError(f"the tokens of trajectory {row['trajectory']} were not logged")
    if len(steps) != row["length"]:
        raise ValueError(f"{len(steps)} of the {row['length']} steps of trajectory {row['trajectory']} are there")
    return Trajectory(
        reward=row["reward"],
        won=row["won"],
        ending=row["ending"],
        steps=tuple(_step(step) for step in steps),
        token_ids=tuple(row["token_ids"]),
        policy_mask=tuple(row["policy_mask"]),
        logprobs=tuple(row["logprobs"]),
        final_observation=row["final_observation"],
    )


def _step(row: Row) -> Step:
    values = {name: row[name] for name in Step.__dataclass_fields__}
    return Step(**values | {"admissible_commands": tuple(row["admissible_commands"])})


def _bare_steps(trajectory: Row) -> list[Row]:
    """Rows of steps as far as a row of trajectories tells of them."""
    nothing = dict.fromkeys(("observation", "reply"), "") | dict.fromkeys(("reply_logprob", "reward"), 0.0)
    nothing |= dict.fromkeys(("engine_seconds", "environment_seconds"), 0.0)
    return [
        {**nothing, "admissible_commands": (), "match": "none", "prompt_tokens": 0, "action": action, "reply_tokens": n}
        for action, n in zip(trajectory["actions"], trajectory["reply_tokens"], strict=True)
    ]
