import csv
import hashlib
import io
import json
import os
import pty
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rapidfuzz.distance import Levenshtein
from scipy.stats import beta
from synthetic import make_group

from calibrate.convention import Convention
from calibrate.edit_distance import prefix_edit_distance
from calibrate.fit import apply
from calibrate.outcomes import outcomes
from calibrate.rollouts import read_rollouts, write_signals
from calibrate.rules import Threshold
from calibrate.signals import BY_NAME, SIGNALS
from collect.errors import InputError
from collect.schema import TABLES, TRAINING_TABLES
from collect.store import committed_parts, open_run, scan
from collect.trajectory import Decision, Group
from reports.databases import save
from reports.macros import OUTCOME
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


def test_the_views_of_a_run_that_is_being_written_fit_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(0)
    with open_run(tmp_path / "run", {}, {}, flush_groups=1) as writer:

        def meanwhile(folder: Path, table: str) -> list[Path]:
            writer.add(make_group(rng, number=len(writer.committed)))
            return committed_parts(folder, table)

        monkeypatch.setattr("reports.sql.committed_parts", meanwhile)
        database = open_runs([tmp_path / "run"])
    for view in ("groups", "trajectories", "steps"):
        assert database.run(f"SELECT count(DISTINCT group_id) FROM {view}").fetchall() == [(1,)]


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


def test_signals_of_earlier_versions_in_single_precision_still_read(run: Path) -> None:
    write_signals(run / "signals.parquet", read_rollouts(run, 1e-8))
    table = pq.read_table(run / "signals.parquet")
    single = pa.schema(
        [f.with_type(pa.float32()) if f.name in BY_NAME else f for f in table.schema], metadata=table.schema.metadata
    )
    pq.write_table(table.cast(single), run / "signals.parquet")
    column = "action_entropy"
    values = open_runs([run]).run(f"SELECT {column} FROM signals ORDER BY group_id, step").fetchall()
    assert values == [(value,) for value in table[column].cast(pa.float32()).cast(pa.float64()).to_pylist()]


def test_a_training_run_has_its_iterations_and_evaluations_too(tmp_path: Path) -> None:
    rng = random.Random(0)
    runs = [write(tmp_path / name, make_group(rng)) for name in ("off", "on")]
    for table in TRAINING_TABLES:
        for run in runs:
            row = {c.name: None if c.nullable else _some(c.type) for c in table.columns} | {"iteration": 3}
            pq.write_table(pa.Table.from_pylist([row], schema=table.arrow), run / f"{table.name}.parquet")
    database = open_runs(runs)
    for table in TRAINING_TABLES:
        assert database.run(f"SELECT run, iteration FROM {table.name} ORDER BY run").fetchall() == [
            ("off", 3),
            ("on", 3),
        ]
        assert [name for name, _, _ in database.columns(table)] == ["run", *(c.name for c in table.columns)]
    with pytest.raises(InputError, match=rf"^{tmp_path / 'none'}: has no evaluations yet; sr train writes them$"):
        open_runs([write(tmp_path / "none", make_group(rng))]).run("FROM evaluations")


def _some(kind: pa.DataType) -> object:
    if pa.types.is_list(kind):
        return []
    return "x" if pa.types.is_dictionary(kind) or pa.types.is_string(kind) else False if kind == pa.bool_() else 0


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


def test_the_macro_is_what_calibrate_computes_to_the_last_bit(run: Path) -> None:
    symbols = scan(run, "trajectories").sort("group_id", "trajectory").collect()
    codes = [[ord(c) - 0x4E00 + 1 for c in text.ljust(6, "\u4dff")] for text in symbols["action_symbols"]]
    computed = prefix_edit_distance(np.array(codes, np.int32).reshape(5, 4, 6))
    asked = open_runs([run]).run(
        "SELECT k, prefix_distance FROM range(1, 7) t(k), prefix_distance(k) ORDER BY group_id, k"
    )
    assert asked.fetchall() == [(k, value) for row in computed.tolist() for k, value in enumerate(row, start=1)]


@pytest.fixture(scope="module")
def with_outcome() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        connection.execute(OUTCOME.sql)
        yield connection


@given(
    rewards=st.lists(st.sampled_from([0.0, 1e-9, 0.5, 1.0, 1 - 1e-9, 0.3, -1.0]), min_size=2, max_size=5),
    tolerance=st.sampled_from([1e-8, 0.2, 0.6]),
)
@settings(max_examples=60, deadline=None)
def test_the_outcome_of_rewards_is_what_calibrate_calls_it(
    with_outcome: duckdb.DuckDBPyConnection, rewards: list[float], tolerance: float
) -> None:
    ((plain, loose),) = with_outcome.execute(
        "SELECT outcome($r::DOUBLE[]), outcome($r::DOUBLE[], tolerance := $t)", {"r": rewards, "t": tolerance}
    ).fetchall()
    assert plain == outcomes(np.array(rewards)[None])[0]
    assert loose == outcomes(np.array(rewards)[None], tolerance)[0]


@pytest.mark.parametrize("total", [0, 1, 7, 60, 3000])
def test_the_interval_of_a_rate_is_clopper_and_pearsons(run: Path, total: int) -> None:
    hits = sorted({0, total // 3, total // 2, total})
    sql = f"SELECT lowest_rate(x, {total}), highest_rate(x, {total}) FROM (SELECT unnest({hits}) AS x)"
    for x, bounds in zip(hits, open_runs([run]).run(sql).fetchall(), strict=True):
        low = 0.0 if x == 0 else beta.ppf(0.025, x, total - x + 1)
        high = 1.0 if x == total else beta.ppf(0.975, x + 1, total - x)
        assert bounds == pytest.approx((low, high), abs=1e-9)


def test_precision_at_a_threshold_counts_as_calibrate_does(tmp_path: Path) -> None:
    rng = random.Random(4)
    groups = [make_group(rng, 4, 6, number=i) for i in range(40)]
    cut = Decision(2, 0.0, 0.1, flagged=True, enforced=True)
    run = write(tmp_path / "run", *groups, make_group(rng, 4, 6, number=40, decision=cut))
    database, sample = open_runs([run]), read_rollouts(run, 1e-8)
    seen = 0
    for k in (1, 3, 5):
        for threshold in (0.5, 0.65, 2 / 3, 0.75, 0.9):
            rule = Threshold(signal="prefix_edit_distance_mean", step=k, threshold=threshold)
            expected = apply(sample, rule, Convention.ELIGIBLE)
            (row,) = database.run(f"FROM precision_at({k}, {threshold!r})").to_arrow_table().to_pylist()
            names = ("groups", "flagged", "cut", "true_positives", "false_positives")
            assert [row[name] for name in names] == [getattr(expected, name) for name in names]
            if row["cut"]:
                seen += 1
                interval = expected.precision  # no two groups share a task, so it is Clopper and Pearson's too
                told = (row["precision"], row["lowest"], row["highest"], row["recall"])
                assert told == pytest.approx((interval.value, interval.low, interval.high, expected.recall.value))
    assert seen > 5


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
        "COPY (SELECT 1) TO '.tmp/x.csv'",
        "ATTACH '.tmp/x.duckdb'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "INSERT INTO groups SELECT * FROM groups",
        "DELETE FROM groups",
        "UPDATE groups SET visit = 7",
        "SELECT * FROM folder",
    ],
)
def test_sql_reads_the_views_and_touches_nothing_else(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sql: str
) -> None:
    (tmp_path / ".tmp").mkdir()  # where DuckDB spills by default, and lets SQL write
    monkeypatch.chdir(tmp_path)
    before = contents(tmp_path)
    folder = pl.DataFrame({"x": [1]})  # a Python variable is no table either
    with pytest.raises(InputError) as refusal:
        open_runs([run]).run(sql.format(out=tmp_path, part=run / "groups" / "part-000001.parquet"))
    assert "\n" not in str(refusal.value)
    assert contents(tmp_path) == before
    assert folder.height == 1


def test_what_does_not_fit_into_memory_waits_in_a_folder_that_goes_with_the_database(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    database = open_runs([run])
    ((folder,),) = database.run("SELECT current_setting('temp_directory')").fetchall()
    assert Path(folder).is_dir()
    assert Path(folder).parent == tmp_path
    del database
    assert not Path(folder).exists()


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


def test_json_and_parquet_tell_columns_of_one_name_apart(run: Path, tmp_path: Path) -> None:
    database = open_runs([run])
    sql = "SELECT 1 AS a, 2 AS a, 3 AS a_1, 4 AS a, 5 AS A"
    expected = [{"a": 1, "a_2": 2, "a_1": 3, "a_3": 4, "A": 5}]
    assert json.loads("".join(database.as_json(sql))) == expected
    database.as_parquet(sql, tmp_path / "x.parquet")
    assert pq.read_table(tmp_path / "x.parquet").to_pylist() == expected
    assert next(database.as_csv(sql)) == "a,a,a_1,a,A"


def test_parquet_holds_every_row_in_its_type(run: Path, tmp_path: Path) -> None:
    database = open_runs([run])
    database.as_parquet("FROM steps", tmp_path / "steps.parquet")
    assert pl.read_parquet(tmp_path / "steps.parquet").rows() == scan(run, "steps").collect().rows()
    database.as_parquet("FROM groups WHERE false", tmp_path / "none.parquet")
    assert pl.read_parquet(tmp_path / "none.parquet").schema["rewards"] == pl.List(pl.Float64)
    database.as_parquet("FROM range(200000)", tmp_path / "many.parquet")
    assert pl.read_parquet(tmp_path / "many.parquet")["range"].sum() == 199_999 * 100_000


def test_parquet_is_written_whole_or_not_at_all(run: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "x.parquet").write_text("as it was")
    sql = "SELECT CASE WHEN range = 199999 THEN error('too far') ELSE range END FROM range(200000)"
    with pytest.raises(InputError, match="too far"):
        open_runs([run]).as_parquet(sql, tmp_path / "out" / "x.parquet")
    assert [path.read_text() for path in (tmp_path / "out").iterdir()] == ["as it was"]


def test_values_that_a_format_cannot_hold_are_one_line(run: Path, tmp_path: Path) -> None:
    database = open_runs([run])
    for sql in ("SELECT DATE '10000-01-01'", "SELECT [TIMESTAMP 'infinity']"):
        with pytest.raises(InputError, match=r"--json: .*; cast the column to VARCHAR"):
            list(database.as_json(sql))
    with pytest.raises(InputError, match=r"--parquet: .*; cast the column to VARCHAR"):
        database.as_parquet("SELECT INTERVAL 1 MONTH", tmp_path / "x.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


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
    odd = "SELECT 'a\\xFF'::BLOB AS x, INTERVAL 1 MONTH AS x, TIMETZ '01:02:03+05' AS \"a\"\"b\", 1 AS n"
    assert json.loads("".join(database.as_json(odd))) == [
        {"x": "a\\xFF", "x_1": "1 month", 'a"b': "01:02:03+05", "n": 1}
    ]
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
    assert f"has no signals yet; compute them with: sr calibrate {run}" in " ".join(listed.stdout.split())
    assert "FROM prefix_distance(k)" in listed.stdout
    assert "FROM precision_at(k, threshold)" in listed.stdout
    assert "\noutcome(rewards)" in listed.stdout


def test_parquet_goes_to_a_file_or_to_standard_output(run: Path, tmp_path: Path) -> None:
    sql = "SELECT group_id, rewards FROM groups"
    command = [sys.executable, "-c", "from sr import main; main()", "query", str(run), sql, "--parquet"]
    piped = subprocess.run([*command, "-"], capture_output=True, check=True)
    (tmp_path / "piped.parquet").write_bytes(piped.stdout)
    subprocess.run([*command, tmp_path / "file.parquet"], check=True)
    expected = scan(run, "groups").select("group_id", "rewards").collect().rows()
    for name in ("piped", "file"):
        assert pl.read_parquet(tmp_path / f"{name}.parquet").rows() == expected


@pytest.mark.parametrize("asked", [["FROM range(300000)", "--csv"], ["FROM range(300000)", "--json"], []])
def test_a_reader_that_has_seen_enough_ends_it_without_a_word(run: Path, asked: list[str]) -> None:
    command = [sys.executable, "-c", "from sr import main; main()", "query", str(run), *asked]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as asking:
        assert asking.stdout is not None
        assert asking.stderr is not None
        if asked:
            assert asking.stdout.readline()
        asking.stdout.close()
        assert asking.stderr.read() == b""
        assert asking.wait() == 141


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="there is no /dev/full")
@pytest.mark.parametrize("asked", [["--csv"], ["--json"], ["--parquet", "-"], []])
def test_a_full_disk_behind_standard_output_is_one_line(run: Path, asked: list[str]) -> None:
    command = [sys.executable, "-c", "from sr import main; main()", "query", str(run), "SELECT 1", *asked]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("error: standard output: cannot be written to (")


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Python's own answer to Ctrl-C, which it does not give where it was started with Ctrl-C ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_a_question_without_an_end(run: Path) -> None:
    database = open_runs([run])
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        database.as_table("SELECT sum(i) FROM range(1000000000000) t(i)")
    timer.join()


@pytest.mark.skipif(shutil.which("duckdb") is None, reason="DuckDB's shell is not installed (pip install duckdb-cli)")
def test_alone_on_a_terminal_it_opens_duckdbs_shell_which_cannot_change_the_views(run: Path) -> None:
    before = contents(run)
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, [sys.executable, "-c", "from sr import main; main()", "query", str(run)])
    said, asked = b"", [b"DROP VIEW groups;\n", b"SELECT 1000 + count(*) AS many FROM groups;\n", b".exit\n"]
    while True:
        try:
            new = os.read(terminal, 65_536)
        except OSError:  # the other end is closed
            break
        said += new
        # The shell asks what terminal this is and where its cursor stands, and waits for the answers.
        os.write(terminal, b"\x1b[?1;2c" * new.count(b"\x1b[c") + b"\x1b[1;1R" * new.count(b"\x1b[6n"))
        if asked and b" D " in new:
            os.write(terminal, asked.pop(0))
    os.waitpid(child, 0)
    assert b"read-only mode" in said
    assert b"1005" in said
    assert contents(run) == before


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
        (["SELECT 1", "--json", "--parquet", "x"], "error: --json and --parquet exclude each other"),
        (["--csv"], "error: --csv: there is nothing to answer"),
        (["SELECT 1", "--save", "x"], "error: --save: copies whole runs"),
        (["SELECT 1", "--parquet", "nowhere/x"], "error: --parquet nowhere/x: cannot be written"),
        (["SELECT 1", "--parquet", "/dev/null"], "error: --parquet /dev/null: is no file; give another name"),
        (["--save", "nowhere/x"], "error: --save nowhere/x: cannot be written"),
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


# Databases on disk


def test_a_saved_database_stands_on_its_own(run: Path, tmp_path: Path) -> None:
    write_signals(run / "signals.parquet", read_rollouts(run, 1e-8))
    expected = {t.name: open_runs([run]).run(f"FROM {t.name}").fetchall() for t in (*TABLES, SIGNALS)}
    distances = open_runs([run]).run("FROM prefix_distance(3) ORDER BY ALL").fetchall()
    before = contents(run)
    assert sr("query", run, "--save", tmp_path / "run.duckdb").stdout == f"wrote {tmp_path / 'run.duckdb'}\n"
    assert contents(run) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "run.duckdb"]

    shutil.rmtree(run)
    moved = (tmp_path / "run.duckdb").rename(tmp_path / "elsewhere.duckdb")
    with duckdb.connect(moved, read_only=True) as saved:
        saved.execute("SET TimeZone = 'UTC'")
        assert {name: saved.execute(f"FROM {name}").fetchall() for name in expected} == expected
        assert saved.execute("FROM prefix_distance(3) ORDER BY ALL").fetchall() == distances
        assert len(saved.execute("FROM precision_at(3, 0.9)").fetchall()) == 1
        comments = dict(
            saved.execute("SELECT column_name, comment FROM duckdb_columns() WHERE comment IS NOT NULL").fetchall()
        )
        assert comments["horizon"] == "the most steps a trajectory may take"


def test_several_runs_are_saved_together(tmp_path: Path) -> None:
    rng = random.Random(0)
    runs = [write(tmp_path / name, make_group(rng, number=1)) for name in ("one", "two")]
    save(runs, tmp_path / "both.duckdb")
    with duckdb.connect(tmp_path / "both.duckdb", read_only=True) as saved:
        assert saved.execute("SELECT DISTINCT run FROM steps ORDER BY run").fetchall() == [("one",), ("two",)]
        assert len(saved.execute("FROM prefix_distance(2)").fetchall()) == 2
        apart = saved.execute("SELECT run, groups FROM precision_at(2, 0.9) ORDER BY run").fetchall()
    assert apart == [("one", 1), ("two", 1)]


def test_a_database_is_never_saved_over_a_file_nor_by_halves(run: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.duckdb").write_text("as it was")
    with pytest.raises(InputError, match="exists; remove it"):
        save([run], tmp_path / "mine.duckdb")
    part = run / "steps" / "part-000002.parquet"
    content = bytearray(part.read_bytes())
    content[100:2000] = bytes(1900)
    part.write_bytes(content)
    with pytest.raises(InputError) as refusal:
        save([run], tmp_path / "new.duckdb")
    assert "\n" not in str(refusal.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.duckdb", "run"]
    assert (tmp_path / "mine.duckdb").read_text() == "as it was"


def test_what_a_killed_save_of_the_same_process_number_left_is_no_hindrance(run: Path, tmp_path: Path) -> None:
    half = tmp_path / f".new.duckdb.{os.getpid()}.tmp"
    for left in (half, half.with_name(f"{half.name}.wal")):
        left.write_text("half of it")
    save([run], tmp_path / "new.duckdb")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.duckdb", "run"]


def test_reports_import_with_the_core_install_only() -> None:
    check = (
        "import sys, reports.sql, reports.command; "
        "print(sorted({'torch', 'transformers', 'alfworld', 'textworld', 'vllm'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
