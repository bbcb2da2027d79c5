import json
import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collect.errors import InputError
from collect.import_format import Format
from collect.import_long import read_mapping
from collect.importer import Imported, import_log
from collect.store import scan

LOG = Path(__file__).with_name("logs") / "long.csv"
MAPPING = "group=prompt_id,trajectory=sample,step=t,action=command,reward=score,observation=saw"


def brought(log: Path, run: Path, mapping: str | None = None) -> Imported:
    return import_log(log, Format.LONG, read_mapping(mapping), run, lambda done, total: None)


def rows(run: Path, table: str, *columns: str) -> list[tuple[Any, ...]]:
    return scan(run, table).select(columns).collect().rows()


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def row(group: Any, trajectory: Any, action: Any, reward: Any = 0, **more: Any) -> dict[str, Any]:
    return {"group": group, "trajectory": trajectory, "action": action, "reward": reward, **more}


def test_a_table_becomes_a_run_by_the_columns_that_are_named(tmp_path: Path) -> None:
    imported = brought(LOG, tmp_path / "run", MAPPING)
    assert rows(tmp_path / "run", "groups", "group_id", "game_id", "rewards", "horizon") == [
        ("g1#0", "g1", [0.0, 1.0], 2),
        ("g2#0", "g2", [0.0, 0.0], 2),
    ]
    assert rows(tmp_path / "run", "trajectories", "actions")[:2] == [
        (["go to desk 1", "look"],),
        (["go to desk 1", 'take mug 1, then "look"'],),
    ]
    assert rows(tmp_path / "run", "steps", "step", "observation")[:2] == [
        (1, "You are in a room."),
        (2, "You see\na mug\u2028here."),
    ]
    assert (imported.groups, imported.steps, imported.horizon, imported.actions) == (2, 8, 2, {})
    assert {"reply", "reward"} < set(imported.null["steps"])


def test_csv_json_lines_and_parquet_give_the_same_run(tmp_path: Path) -> None:
    table = pl.read_csv(LOG)
    table.write_parquet(tmp_path / "x.parquet")
    table.write_ndjson(tmp_path / "x.jsonl")
    for log in (LOG, tmp_path / "x.parquet", tmp_path / "x.jsonl"):
        brought(log, tmp_path / log.suffix[1:], MAPPING)
    for name in ("groups", "trajectories", "steps"):
        whole = [scan(tmp_path / run, name).collect().rows() for run in ("csv", "parquet", "jsonl")]
        assert whole[0] == whole[1] == whole[2]


@given(seed=st.integers(0, 1000), first=st.sampled_from([0, 1]))
@settings(max_examples=20, deadline=None)
def test_rows_may_come_in_any_order_where_they_have_steps(
    tmp_path_factory: pytest.TempPathFactory, seed: int, first: int
) -> None:
    folder, rng = tmp_path_factory.mktemp("long"), random.Random(seed)
    actions = {(g, t): [rng.choice("abc") for _ in range(rng.randint(1, 4))] for g in range(3) for t in range(2)}
    records = [
        row(g, t, action, g + t, step=k) for (g, t), some in actions.items() for k, action in enumerate(some, first)
    ]
    rng.shuffle(records)
    brought(write(folder / "log.jsonl", records), folder / "run")
    found = {
        (game, reward - int(game)): done
        for game, reward, done in scan(folder / "run", "trajectories")
        .join(scan(folder / "run", "groups"), on="group_id")
        .select("game_id", "reward", "actions")
        .collect()
        .rows()
    }
    assert found == {(str(g), t): some for (g, t), some in actions.items()}


def test_without_steps_the_order_of_the_rows_counts(tmp_path: Path) -> None:
    records = [row("g", t, action) for action in "cab" for t in (1, 0)]
    brought(write(tmp_path / "log.jsonl", records), tmp_path / "run")
    assert rows(tmp_path / "run", "trajectories", "actions") == [(["c", "a", "b"],)] * 2


def test_a_reward_stands_on_every_row_or_on_one_or_is_the_sum_of_those_of_steps(tmp_path: Path) -> None:
    last = [row("g", t, "a", reward) for t in (0, 1) for reward in (None, None, t + 0.5)]
    brought(write(tmp_path / "last.jsonl", last), tmp_path / "last")
    assert rows(tmp_path / "last", "groups", "rewards") == [([0.5, 1.5],)]
    assert rows(tmp_path / "last", "steps", "reward") == [(None,)] * 6
    steps = [row("g", t, "a", r) for t in (0, 1) for r in (0.25, 0.25, t)]
    brought(write(tmp_path / "steps.jsonl", steps), tmp_path / "steps", "step_reward=reward,reward=none")
    assert rows(tmp_path / "steps", "groups", "rewards") == [([0.5, 1.5],)]
    assert rows(tmp_path / "steps", "steps", "reward")[:3] == [(0.25,), (0.25,), (0.0,)]
    with pytest.raises(InputError, match="trajectory 0: its rewards differ from row to row; map those of steps as"):
        brought(tmp_path / "steps.jsonl", tmp_path / "guessed")


def test_optional_columns_are_taken_over(tmp_path: Path) -> None:
    records = [
        row("g", t, 3, t, game="desk", task_type="tidy", won=won, observation="o", reply="r")
        for t, won in ((0, False), (1, True))
    ]
    imported = brought(write(tmp_path / "log.jsonl", records), tmp_path / "run")
    assert rows(tmp_path / "run", "groups", "group_id", "task_type") == [("desk#0", "tidy")]
    assert rows(tmp_path / "run", "trajectories", "actions", "won", "ending") == [
        (["3"], False, None),
        (["3"], True, "won"),
    ]
    assert rows(tmp_path / "run", "steps", "observation", "reply") == [("o", "r")] * 2
    assert imported.null["groups"] == ["split", "policy_version", "seed", "started", "seconds"]


def test_rows_that_cannot_be_read_are_counted_and_named(tmp_path: Path) -> None:
    bad: list[Any] = [
        row(None, 0, "a"),
        row("g", "", "a"),
        row("g", 0, None),
        row("g", 0, "a", "many"),
        row("g", 0, "a", True),
        row("g", 0, "a", step=1.5),
        row("g", 0, "a", won="perhaps"),
        row(["g"], 0, "a"),
        row("\ud800", 0, "a"),
        [1],
    ]
    log = write(tmp_path / "log.jsonl", [row("g", 0, "a"), *bad, row("g", 1.0, "a")])
    with log.open("a") as file:
        file.write("not JSON\n" + '{"group": "g", "traj')
    imported = brought(log, tmp_path / "run")
    assert imported.malformed.total == 11
    assert imported.malformed.first == [
        "log.jsonl, line 2: group: is empty",
        "log.jsonl, line 3: trajectory: is empty",
        "log.jsonl, line 4: action: is null",
        "log.jsonl, line 5: reward: is no finite number",
        "log.jsonl, line 6: reward: is no finite number",
        "log.jsonl, line 7: step: is no whole number",
        "log.jsonl, line 8: won: is neither true nor false",
        "log.jsonl, line 9: group: is no name or number",
        "log.jsonl, line 10: group: is no Unicode text",
        "log.jsonl, line 11: no JSON object",
    ]
    assert imported.torn == ["log.jsonl, line 14: cut off in the middle; left out"]


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ([1, 2, 2], "step 2 twice"),
        ([1, 2, 4], "a step before 4 is missing"),
        ([5, 6, 7], "a step before 5 is missing"),
        ([1, None, 2], "a row has no step, others have"),
    ],
)
def test_a_group_with_gaps_is_left_out_and_named(tmp_path: Path, steps: list[int | None], why: str) -> None:
    whole = [row("whole", t, "a", step=k) for t in (0, 1) for k in (1, 2, 3)]
    gap = [row("gap", t, "a", step=k) for t in (0, 1) for k in (steps if t else [1, 2, 3])]
    imported = brought(write(tmp_path / "log.jsonl", [*gap, *whole]), tmp_path / "run")
    assert imported.groups == 1
    assert imported.left_out.first == [f"group gap: trajectory 1: {why}"]


def test_text_that_is_no_unicode_and_numbers_beyond_all_bounds_do_no_harm(tmp_path: Path) -> None:
    records = [row("g", t, "\ud800look", observation="\udfff") for t in (0, 1)]
    far = [row("far", t, "a", step=1e308) for t in (0, 1)]
    log = write(tmp_path / "log.jsonl", [*records, row("g", 0, "a", 10**400), *far])
    imported = brought(log, tmp_path / "run")
    assert rows(tmp_path / "run", "trajectories", "actions") == [(["\ufffdlook"],)] * 2
    assert imported.malformed.first == ["log.jsonl, line 3: reward: is no finite number"]
    assert imported.left_out.total == 1


def test_a_trajectory_without_a_reward_and_two_games_in_a_group_are_named(tmp_path: Path) -> None:
    records = [
        *(row("none", t, "a", None if t else 1.0) for t in (0, 1)),
        *(row("two", t, "a", game=f"game {t}") for t in (0, 1)),
        *(row("good", t, "a") for t in (0, 1)),
    ]
    imported = brought(write(tmp_path / "log.jsonl", records), tmp_path / "run")
    assert imported.left_out.first == [
        "group none: trajectory 1: has no reward",
        "group two: its rows name several games",
    ]
