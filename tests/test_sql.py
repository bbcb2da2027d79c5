import csv
import hashlib
import io
import json
import random
import subprocess
import sys
import tempfile
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import duckdb
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rapidfuzz.distance import Levenshtein
from synthetic import make_group

from calibrate.rollouts import read_rollouts, write_signals
from collect.errors import InputError
from collect.schema import TABLES
from collect.store import open_run, scan
from collect.trajectory import Group
from reports.sql import open_runs


def write(folder: Path, *groups: Group) -> Path:
    with open_run(folder, {}, {}, flush_groups=2) as run:
        for group in groups:
            run.add(group)
        run.add_error("other#0", "engine", "out of memory")
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Five groups of four, in three parts, one part of each later table not committed."""
    rng = random.Random(0)
    folder = write(tmp_path / "run", *(make_group(rng, number=i) for i in range(5)))
    for table in ("trajectories", "steps"):
        committed = folder / table / "part-000001.parquet"
        (folder / table / "part-000009.parquet").write_bytes(committed.read_bytes())
    return folder


def sr(*arguments: object, cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", "from sr import main; main()", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


def contents(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


# What the views hold


def test_views_hold_the_committed_rows_in_the_columns_of_the_schema(run: Path) -> None:
    database = open_runs([run])
    for table in TABLES:
        rows = database.run(f"SELECT * FROM {table.name}")
        assert rows.columns == [column.name for column in table.columns]
        assert [tuple(row.values()) for row in rows.to_arrow_table().to_pylist()] == scan(
            run, table.name
        ).collect().rows()
    assert database.run("SELECT count(*) FROM trajectories").fetchall() == [(20,)]


def test_several_runs_are_told_apart_by_their_name(tmp_path: Path) -> None:
    rng = random.Random(0)
    one = write(tmp_path / "one", make_group(rng, number=1))
    two = write(tmp_path / "two", make_group(rng, number=1), make_group(rng, number=2))
    empty = write(tmp_path / "empty")
    counted = open_runs([one, two, empty]).run("SELECT run, count(*) FROM groups GROUP BY ALL ORDER BY ALL")
    assert counted.fetchall() == [("one", 1), ("two", 2)]


def test_an_empty_run_answers_with_no_rows(tmp_path: Path) -> None:
    with open_run(tmp_path / "run", {}, {}):
        pass
    database = open_runs([tmp_path / "run"])
    assert database.run("SELECT * FROM steps JOIN groups USING (group_id)").fetchall() == []
    assert list(database.as_json("FROM groups")) == ["[]"]


def test_signals_are_a_view_once_every_run_has_them(tmp_path: Path) -> None:
    rng = random.Random(0)
    runs = [write(tmp_path / name, *(make_group(rng, number=i) for i in range(4))) for name in ("a", "b")]
    write_signals(runs[0] / "signals.parquet", read_rollouts(runs[0], 1e-8))
    assert open_runs(runs[:1]).run("SELECT DISTINCT step FROM signals ORDER BY step").fetchall() == [
        (step,) for step in range(1, 6)
    ]
    with pytest.raises(InputError, match=rf"^{runs[1]}: has no signals yet; compute them with: sr calibrate"):
        open_runs(runs).run("FROM signals")


def mean_prefix_distance(group: Group, k: int) -> float:
    """The definition, by rapidfuzz on the actions themselves."""
    prefixes = [[*t.actions[:k], *["END"] * (k - len(t.actions))] for t in group.trajectories]
    pairs = list(combinations(prefixes, 2))
    return sum(Levenshtein.distance(a, b) for a, b in pairs) / (k * len(pairs))


@given(
    actions=st.lists(
        st.lists(st.sampled_from(["look", "$", "go to desk 1", "END"]), min_size=1, max_size=8), min_size=2, max_size=5
    ),
    k=st.integers(1, 10),
)
@settings(max_examples=25, deadline=None)
def test_the_macro_is_the_mean_prefix_distance(actions: list[list[str]], k: int) -> None:
    size = len(actions)
    group = make_group(random.Random(0), size, 8, actions=actions, won=[True] * size)
    with tempfile.TemporaryDirectory() as parent:
        database = open_runs([write(Path(parent) / "run", group)])
        (answer,) = database.run(f"FROM prefix_distance({k})").fetchall()
    renamed = [[f"<{action}>" for action in sequence] for sequence in actions]  # no action is taken for END
    expected = mean_prefix_distance(make_group(random.Random(0), size, 8, actions=renamed, won=[True] * size), k)
    assert answer == (group.id, pytest.approx(expected, abs=1e-12))


@pytest.mark.parametrize("k", ["0", "-3", "NULL"])
def test_the_macro_has_no_answer_where_there_is_no_prefix(run: Path, k: str) -> None:
    assert open_runs([run]).run(f"FROM prefix_distance({k})").fetchall() == []


def test_the_macro_never_pairs_trajectories_of_different_runs(tmp_path: Path) -> None:
    alike = make_group(random.Random(0), 2, actions=[["look"] * 3, ["look"] * 3], won=[False, False])
    unlike = make_group(random.Random(0), 2, actions=[["look"] * 3, ["eat"] * 3], won=[False, False])
    runs = [write(tmp_path / "alike", alike), write(tmp_path / "unlike", unlike)]
    answer = open_runs(runs).run("FROM prefix_distance(3) ORDER BY run").fetchall()
    assert answer == [("alike", alike.id, 0.0), ("unlike", unlike.id, 1.0)]


# What SQL may not do


@pytest.mark.parametrize(
    "sql",
    [
        "COPY groups TO '{out}/x.parquet'",
        "COPY (SELECT 1) TO '{part}'",
        "EXPORT DATABASE '{out}/x'",
        "ATTACH '{out}/x.duckdb'",
        "ATTACH '{part}'",
        "SELECT * FROM read_parquet('{part}')",
        "SELECT * FROM '{part}'",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM glob('/*')",
        "SET enable_external_access = true",
        "RESET enable_external_access",
        "SET temp_directory = '{out}'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "INSERT INTO groups SELECT * FROM groups",
        "DELETE FROM groups",
        "UPDATE groups SET visit = 7",
        "SELECT * FROM folder",
    ],
)
def test_sql_reads_the_views_and_touches_nothing_else(run: Path, tmp_path: Path, sql: str) -> None:
    before = contents(tmp_path)
    folder = pl.DataFrame({"x": [1]})  # a Python variable is no table either
    with pytest.raises(InputError) as refusal:
        open_runs([run]).run(sql.format(out=tmp_path, part=run / "groups" / "part-000001.parquet"))
    assert "\n" not in str(refusal.value)
    assert contents(tmp_path) == before
    assert folder.height == 1


def test_what_sql_drops_is_dropped_in_memory_only(run: Path) -> None:
    before = contents(run)
    open_runs([run]).run("DROP VIEW groups; CREATE TABLE groups AS SELECT 1 AS x; SELECT * FROM groups")
    assert contents(run) == before
    assert open_runs([run]).run("SELECT count(*) FROM groups").fetchall() == [(5,)]


def test_a_damaged_part_is_one_line(run: Path) -> None:
    part = run / "steps" / "part-000001.parquet"
    content = bytearray(part.read_bytes())
    content[100:2000] = bytes(1900)  # the footer stays readable
    part.write_bytes(content)
    with pytest.raises(InputError) as refusal:
        open_runs([run]).as_table("SELECT * FROM steps")
    assert "\n" not in str(refusal.value)


# How answers look


def test_what_a_model_said_cannot_reach_the_terminal(tmp_path: Path) -> None:
    said = "\x1b[2J\x1b]0;title\x07 \x9b31m \u202eevil\u2028\r\n\x00end"
    group = make_group(random.Random(0), 2, 2)
    first = group.trajectories[0]
    first = replace(first, steps=(replace(first.steps[0], reply=said), *first.steps[1:]))
    group = replace(group, trajectories=(first, *group.trajectories[1:]))
    database = open_runs([write(tmp_path / "run", group)])
    sql = "SELECT reply, [reply] AS listed, reply AS \"na\x1bme\" FROM steps WHERE reply LIKE '%evil%'"

    drawn = database.as_table(sql)
    assert "evil" in drawn
    assert all(character.isprintable() or character == "\n" for character in drawn)
    with pytest.raises(InputError) as refusal:
        database.run("SELECT \x1b[31m")
    assert str(refusal.value).isprintable()

    _, row = csv.reader(io.StringIO("\n".join(database.as_csv(sql)), newline=""))
    assert row[0] == said
    assert json.loads("".join(database.as_json(sql)))[0]["reply"] == said
    assert "".join(database.as_json(sql)).isascii()


def test_csv_and_json_hold_every_row_and_value(run: Path) -> None:
    database = open_runs([run])
    sql = "SELECT group_id, rewards, started, gate_step, 'NaN'::DOUBLE AS score FROM groups"
    stored = scan(run, "groups").collect()

    header, *lines = csv.reader(database.as_csv(sql))
    assert header == ["group_id", "rewards", "started", "gate_step", "score"]
    assert [line[0] for line in lines] == stored["group_id"].to_list()
    assert [json.loads(line[1]) for line in lines] == stored["rewards"].to_list()
    assert {tuple(line[2:]) for line in lines} == {("2026-01-02 03:04:05.678901+00", "", "nan")}

    objects = json.loads("".join(database.as_json(sql)))
    assert [item["rewards"] for item in objects] == stored["rewards"].to_list()
    assert {(item["started"], item["gate_step"], item["score"]) for item in objects} == {
        ("2026-01-02 03:04:05.678901+00:00", None, None)
    }
    many = list(database.as_csv("FROM range(5000)"))
    assert len(many) == 5001


# The command


def test_the_command_answers_in_a_table_csv_or_json(run: Path) -> None:
    sql = "SELECT count(*) AS groups, sum(group_size) AS trajectories FROM groups"
    table = sr("query", run, sql)
    assert (table.returncode, table.stderr) == (0, "")
    assert "│      5 │           20 │" in table.stdout
    assert sr("query", run, sql, "--csv").stdout == "groups,trajectories\n5,20\n"
    assert json.loads(sr("query", run, sql, "--json").stdout) == [{"groups": 5, "trajectories": 20}]


def test_the_command_lists_views_with_their_comments(run: Path) -> None:
    listed = sr("query", run)
    assert listed.returncode == 0
    for table in TABLES:
        for column in table.columns:
            assert column.name in listed.stdout
    assert "sampling log-probability of each sampled token" in listed.stdout
    assert f"absent: compute it with sr calibrate {run}" in " ".join(listed.stdout.split())
    assert "prefix_distance(k)" in listed.stdout


def test_latest_is_the_newest_run_in_runs(tmp_path: Path) -> None:
    missing = sr("query", "latest", "SELECT 1", cwd=tmp_path)
    assert (missing.returncode, missing.stdout) == (2, "")
    assert missing.stderr.startswith("error: runs: holds no run")
    write(tmp_path / "runs" / "b", make_group(random.Random(0)))
    write(tmp_path / "runs" / "a", make_group(random.Random(0)), make_group(random.Random(0), number=1))
    assert sr("query", "latest", "SELECT count(*) AS n FROM groups", "--csv", cwd=tmp_path).stdout == "n\n2\n"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["SELECT nothing FROM groups"], 'error: Binder Error: Referenced column "nothing" not found'),
        (["SELEC 1"], 'error: Parser Error: syntax error at or near "SELEC"'),
        (["  "], "error: the SQL is empty"),
        (["FROM signals"], "error: {run}: has no signals yet; compute them with: sr calibrate {run}"),
        (["SELECT 1", "--csv", "--json"], "error: --csv and --json exclude each other"),
        (["SELECT 1", "--also", "nowhere"], "error: nowhere: no such folder"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(run: Path, arguments: list[str], complaint: str) -> None:
    answer = sr("query", run, *arguments)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.startswith(complaint.format(run=run))
    assert answer.stderr.count("\n") == 1


def test_the_files_answer_to_plain_duckdb_and_polars(run: Path) -> None:
    for table in ("trajectories", "steps"):
        (run / table / "part-000009.parquet").unlink()  # as resuming the run would
    sql = f"""
        SELECT max(levenshtein(a.action_symbols, b.action_symbols))
        FROM '{run}/trajectories/*.parquet' a JOIN '{run}/trajectories/*.parquet' b USING (group_id)
    """
    ((farthest,),) = duckdb.connect().execute(sql).fetchall()
    trajectories = pl.read_parquet(run / "trajectories" / "*.parquet")
    actions = trajectories.group_by("group_id").agg("actions")["actions"].to_list()
    assert farthest == max(Levenshtein.distance(a, b) for group in actions for a, b in combinations(group, 2))


def test_reports_import_with_the_core_install_only() -> None:
    check = (
        "import sys, reports.sql, reports.command; "
        "print(sorted({'torch', 'transformers', 'alfworld', 'textworld', 'vllm'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
