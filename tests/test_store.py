import errno
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import make_game, make_group

from collect import schema, store
from collect.errors import InputError, SelectiveRolloutError
from collect.files import replacing
from collect.schema import Column, Table
from collect.store import (
    check_run,
    committed_parts,
    is_run,
    latest_run,
    new_run_folder,
    open_run,
    read_run,
    scan,
)
from collect.trajectory import Decision, Group

CONFIGURATION = {"model": "tiny", "temperature": 0.7, "splits": ("train",)}
WRITER = Path(__file__).parent / "store_writer.py"


@pytest.fixture
def rng() -> random.Random:
    return random.Random(0)


def write(folder: Path, *groups: Group, **options: Any) -> None:
    with open_run(folder, CONFIGURATION, {"version": "1"}, **options) as run:
        for group in groups:
            run.add(group)


def run_writer(folder: Path, groups: int, *options: str) -> "subprocess.Popen[str]":
    """Start a process that writes `groups` groups to the run, each group a part, and says "ready" when it begins."""
    command = [sys.executable, str(WRITER), str(folder), str(groups), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def check_whole(folder: Path) -> list[str]:
    """Assert that every committed group has all its rows, once, and nothing else is seen; return the groups' ids."""
    groups = scan(folder, "groups").collect()
    trajectories = scan(folder, "trajectories").collect()
    steps = scan(folder, "steps").collect()
    ids: list[str] = groups["group_id"].to_list()
    assert len(set(ids)) == len(ids)
    sizes = dict(groups.select("group_id", "group_size").iter_rows())
    assert dict(trajectories.group_by("group_id").agg(pl.len()).iter_rows()) == sizes
    lengths = dict(trajectories.group_by("group_id").agg(pl.col("length").sum()).iter_rows())
    assert dict(steps.group_by("group_id").agg(pl.len()).iter_rows()) == lengths
    assert not trajectories.select("group_id", "trajectory").is_duplicated().any()
    assert not steps.select("group_id", "trajectory", "step").is_duplicated().any()
    return ids


# What is written comes back


def as_stored(text: str) -> str:
    """Independent of the store: code points that are surrogates become U+FFFD."""
    paired = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert not any(0xD800 <= ord(character) <= 0xDFFF for character in paired)
    return paired


any_text = st.text(st.characters(), max_size=12)


@st.composite
def groups_with_any_text(draw: st.DrawFn) -> Group:
    decision = draw(
        st.none()
        | st.builds(
            Decision,
            step=st.integers(1, 4),
            score=st.floats(0, 1),
            threshold=st.floats(0, 1),
            flagged=st.booleans(),
            enforced=st.booleans(),
            audited=st.booleans(),
        )
    )
    group = make_group(random.Random(draw(st.integers(0, 2**32))), 2, 4, decision=decision)
    return replace(
        group,
        trajectories=tuple(
            replace(
                trajectory,
                final_observation=draw(any_text),
                steps=tuple(
                    replace(step, reply=draw(any_text), action=draw(any_text), observation=draw(any_text))
                    for step in trajectory.steps
                ),
            )
            for trajectory in group.trajectories
        ),
    )


@given(group=groups_with_any_text())
@settings(max_examples=40, deadline=None)
def test_a_group_comes_back_as_it_was_added_whatever_the_model_said(group: Group) -> None:
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "run"
        write(folder, group)
        stored = scan(folder, "groups").collect().row(0, named=True)
        trajectories = scan(folder, "trajectories").collect().rows(named=True)
        steps = scan(folder, "steps").collect().rows(named=True)

    assert stored["group_id"] == f"{group.game.id}#0"
    assert stored["rewards"] == [t.reward for t in group.trajectories]
    assert (stored["started"], stored["seconds"], stored["seed"]) == (group.started, group.seconds, group.seed)
    assert (stored["group_size"], stored["horizon"]) == (2, 4)
    decision = group.decision
    assert stored["gate_evaluated"] == (decision is not None)
    for name in ("step", "score", "threshold", "flagged", "enforced", "audited"):
        assert stored[f"gate_{name}"] == (getattr(decision, name) if decision else None)

    for row, trajectory in zip(trajectories, group.trajectories, strict=True):
        assert row["actions"] == [as_stored(step.action) for step in trajectory.steps]
        assert tuple(row["token_ids"]) == trajectory.token_ids
        assert tuple(row["policy_mask"]) == trajectory.policy_mask
        assert row["logprobs"] == pytest.approx(trajectory.logprobs, rel=1e-6)
        assert row["final_observation"] == as_stored(trajectory.final_observation)
        assert (row["reward"], row["won"], row["ending"]) == (trajectory.reward, trajectory.won, trajectory.ending)

    flat = [
        (index, number, step)
        for index, trajectory in enumerate(group.trajectories)
        for number, step in enumerate(trajectory.steps, start=1)
    ]
    for row, (index, number, step) in zip(steps, flat, strict=True):
        assert (row["trajectory"], row["step"]) == (index, number)
        assert (row["observation"], row["reply"], row["action"]) == (
            as_stored(step.observation),
            as_stored(step.reply),
            as_stored(step.action),
        )
        assert tuple(row["admissible_commands"]) == step.admissible_commands
        assert row["reply_logprob"] == step.reply_logprob
        assert (row["match"], row["prompt_tokens"], row["reply_tokens"]) == (
            step.match,
            step.prompt_tokens,
            step.reply_tokens,
        )


def test_action_symbols_are_equal_exactly_where_actions_are(tmp_path: Path, rng: random.Random) -> None:
    group = make_group(rng, actions=[["look", "go", "look"], ["eat", "look"]], won=[False, False], group_size=2)
    write(tmp_path / "run", group)
    first, second, third = "\u4e00\u4e01\u4e02"
    symbols = scan(tmp_path / "run", "trajectories").collect()["action_symbols"].to_list()
    assert symbols == [first + second + first, third + first]


def test_action_symbols_stay_distinct_and_writable_beyond_the_surrogates(tmp_path: Path, rng: random.Random) -> None:
    actions = [[f"say {i}" for i in range(20_000)], [f"say {i}" for i in range(20_000, 40_000)]]
    write(tmp_path / "run", make_group(rng, 2, 20_000, actions=actions, won=[False, False]))
    symbols = "".join(scan(tmp_path / "run", "trajectories").collect()["action_symbols"])
    assert len(symbols) == len(set(symbols)) == 40_000


def test_the_arrow_types_on_disk_are_those_of_the_schema(tmp_path: Path, rng: random.Random) -> None:
    write(tmp_path / "run", make_group(rng))
    for table in (schema.GROUPS, schema.TRAJECTORIES, schema.STEPS):
        (part,) = committed_parts(tmp_path / "run", table.name)
        on_disk = pq.read_schema(part)
        assert on_disk.equals(table.arrow)
        assert [on_disk.field(c.name).metadata[b"comment"].decode() for c in table.columns] == [
            c.comment for c in table.columns
        ]
        assert pq.ParquetFile(part).metadata.row_group(0).column(0).compression == "ZSTD"


def test_a_failed_attempt_is_recorded_and_its_group_stays_owed(tmp_path: Path, rng: random.Random) -> None:
    group = make_group(rng)
    with open_run(tmp_path / "run", {}, {}) as run:
        run.add_error(group.id, "environment", "the game's process died")
    with open_run(tmp_path / "run", {}, {}) as run:
        assert run.committed == set()
        run.add(group)
        run.add_error("other#0", "engine", "out of memory")
    errors = scan(tmp_path / "run", "errors").collect()
    assert errors.select("group_id", "boundary", "message").rows() == [
        (group.id, "environment", "the game's process died"),
        ("other#0", "engine", "out of memory"),
    ]
    assert check_whole(tmp_path / "run") == [group.id]


def contradict(**changes: Any) -> Callable[[Group], Group]:
    def apply(group: Group) -> Group:
        first = replace(group.trajectories[0], **changes)
        return replace(group, trajectories=(first, *group.trajectories[1:]))

    return apply


@pytest.mark.parametrize(
    ("break_it", "complaint"),
    [
        (contradict(token_ids=(1, 2, 3)), "3 token ids"),
        (contradict(logprobs=()), "0 log-probabilities"),
        (contradict(steps=()), "its steps count another number"),
        (lambda group: replace(group, trajectories=group.trajectories[:1]), "at least 2"),
        (lambda group: replace(group, horizon=1), "at horizon 1"),
        (lambda group: replace(group, started=datetime(2026, 1, 1)), "no time zone"),
    ],
)
def test_a_group_that_contradicts_itself_is_refused(
    tmp_path: Path, rng: random.Random, break_it: Callable[[Group], Group], complaint: str
) -> None:
    with open_run(tmp_path / "run", {}, {}) as run:
        with pytest.raises(ValueError, match=complaint):
            run.add(break_it(make_group(rng)))
        assert check_whole(tmp_path / "run") == []


def test_the_same_group_is_not_taken_twice(tmp_path: Path, rng: random.Random) -> None:
    group = make_group(rng)
    with open_run(tmp_path / "run", {}, {}) as run:
        run.add(group)
        with pytest.raises(ValueError, match="added before"):
            run.add(group)
    with open_run(tmp_path / "run", {}, {}) as run, pytest.raises(ValueError, match="added before"):
        run.add(group)


# Flushing


def test_a_part_holds_as_many_groups_as_asked_and_the_end_writes_the_rest(tmp_path: Path, rng: random.Random) -> None:
    write(tmp_path / "run", *(make_group(rng, number=i) for i in range(7)), flush_groups=3)
    parts = committed_parts(tmp_path / "run", "groups")
    assert [pq.read_metadata(part).num_rows for part in parts] == [3, 3, 1]
    assert [part.name for part in parts] == [part.name for part in committed_parts(tmp_path / "run", "steps")]


def test_a_group_is_written_when_it_has_waited_long_enough(tmp_path: Path, rng: random.Random) -> None:
    with open_run(tmp_path / "run", {}, {}, flush_seconds=0) as run:
        run.add(make_group(rng))
        assert len(run.committed) == len(check_whole(tmp_path / "run")) == 1


def test_a_flush_that_the_disk_refuses_keeps_the_groups_and_can_be_repeated(
    tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = [make_group(rng, number=i) for i in range(3)]
    write(tmp_path / "run", groups[0])
    really_write = pq.write_table

    def refuse_steps(content: pa.Table, path: Path, **options: Any) -> None:
        if path.parent.name == "steps":
            path.write_bytes(b"half a part")
            raise OSError(errno.ENOSPC, "No space left on device")
        really_write(content, path, **options)

    with open_run(tmp_path / "run", CONFIGURATION, {}) as run:
        run.add(groups[1])
        with monkeypatch.context() as full_disk:
            full_disk.setattr(pq, "write_table", refuse_steps)
            with pytest.raises(SelectiveRolloutError, match="No space left on device"):
                run.flush()
            assert check_whole(tmp_path / "run") == [groups[0].id]
        run.add(groups[2])
    assert check_whole(tmp_path / "run") == [group.id for group in groups]
    assert not list((tmp_path / "run").rglob("*.tmp"))


# Kill -9


def test_25_kills_at_random_moments_lose_no_committed_group_and_repeat_none(tmp_path: Path) -> None:
    folder, wanted, moments = tmp_path / "run", 150, random.Random(7)
    committed: set[str] = set()
    for _ in range(25):
        writer = run_writer(folder, wanted)
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        time.sleep(moments.uniform(0, 0.08))
        writer.kill()
        writer.communicate()
        now = set(check_whole(folder))
        assert committed <= now
        committed = now
    last = run_writer(folder, wanted)
    last.communicate()
    assert last.returncode == 0
    assert sorted(check_whole(folder)) == sorted(f"{make_game(i).id}#0" for i in range(wanted))
    assert not list(folder.rglob("*.tmp"))


@pytest.mark.parametrize("synced", range(1, 9))
def test_a_kill_between_any_two_writes_of_a_flush_leaves_a_whole_run(tmp_path: Path, synced: int) -> None:
    """A flush of one group makes six fsyncs (file and folder, three times); die at each, and in the next flush."""
    folder = tmp_path / "run"
    writer = run_writer(folder, 3, str(synced))
    writer.communicate()
    assert writer.returncode == -signal.SIGKILL
    before = check_whole(folder)
    assert len(before) == (0 if synced < 6 else 1)

    writer = run_writer(folder, 3)
    writer.communicate()
    assert writer.returncode == 0
    ids = check_whole(folder)
    assert ids[: len(before)] == before
    assert len(ids) == 3
    for table in ("trajectories", "steps"):
        on_disk = sorted((folder / table).iterdir())
        assert on_disk == committed_parts(folder, table)


def test_only_one_process_writes_and_the_kernel_frees_the_run_of_a_killed_one(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = run_writer(folder, 10**9)
    assert first.stdout is not None
    first.stdout.readline()
    with pytest.raises(InputError, match=rf"another process \(pid {first.pid}\) is writing"):
        open_run(folder, {}, {})
    first.kill()
    first.communicate()
    with open_run(folder, {}, {}) as run:
        assert run.committed == set(check_whole(folder))


# Resuming and refusing


def test_a_run_is_resumed_by_the_same_configuration_only(tmp_path: Path, rng: random.Random) -> None:
    write(tmp_path / "run", make_group(rng))
    with open_run(tmp_path / "run", {**CONFIGURATION, "splits": ["train"]}, {"version": "2"}) as run:
        assert len(run.committed) == 1
    assert read_run(tmp_path / "run").facts == {"version": "1"}

    other = {"model": "tiny", "temperature": 1.0, "splits": ("train",), "seed": 3}
    with pytest.raises(InputError) as refusal:
        open_run(tmp_path / "run", other, {})
    message = str(refusal.value)
    assert "temperature is 0.7 there, 1.0 here" in message
    assert "seed is absent there, 3 here" in message
    assert "model" not in message
    assert "\n" not in message

    with pytest.raises(InputError, match="a run of sr collect, not of sr train"):
        open_run(tmp_path / "run", CONFIGURATION, {}, command="train")
    with open_run(tmp_path / "run", CONFIGURATION, {}):
        pass  # a refusal lets go of the lock


@pytest.mark.parametrize(
    ("name", "configuration", "command"),
    [
        ("run", {"model": "huge"}, "collect"),
        ("run", CONFIGURATION, "train"),
        ("damaged", CONFIGURATION, "collect"),
        ("thesis", CONFIGURATION, "collect"),
        ("thesis/thesis.tex", CONFIGURATION, "collect"),
    ],
)
def test_a_check_refuses_in_the_words_of_opening_and_touches_nothing(
    tmp_path: Path, rng: random.Random, name: str, configuration: dict[str, Any], command: str
) -> None:
    write(tmp_path / "run", make_group(rng))
    for folder, file in (("damaged", "run.json"), ("thesis", "thesis.tex")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / file).write_text("years of work")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}

    with pytest.raises(InputError) as checked:
        check_run(tmp_path / name, configuration, command=command)

    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    with pytest.raises(InputError) as opened:
        open_run(tmp_path / name, configuration, {}, command=command)
    assert str(checked.value) == str(opened.value)


def test_a_check_passes_what_opening_takes_even_while_another_writes(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with open_run(tmp_path / "run", CONFIGURATION, {}):
        check_run(tmp_path / "run", CONFIGURATION)
    check_run(tmp_path / "empty", CONFIGURATION)
    check_run(tmp_path / "new" / "run", CONFIGURATION)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "run"]
    assert list((tmp_path / "empty").iterdir()) == []


def test_run_json_gives_back_what_was_configured(tmp_path: Path) -> None:
    before = datetime.now(UTC)
    with open_run(tmp_path / "run", CONFIGURATION, {"machine": "laptop"}, command="collect"):
        pass
    info = read_run(tmp_path / "run")
    assert info.configuration == {"model": "tiny", "temperature": 0.7, "splits": ["train"]}
    assert (info.command, info.facts, info.schema_version) == ("collect", {"machine": "laptop"}, 1)
    assert before <= info.created <= datetime.now(UTC)


def test_a_folder_with_something_else_in_it_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match=r"not empty \(thesis.tex\) and not a run"):
        open_run(tmp_path, {}, {})
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    for inside in ("", "run", "run/1"):
        with pytest.raises(InputError, match=r"thesis\.tex: is a file"):
            open_run(tmp_path / "thesis.tex" / inside, {}, {})
    with pytest.raises(InputError, match="cannot be written to"):
        open_run(Path("/proc/run"), {}, {})  # not even root can


def test_a_folder_that_a_writer_left_in_its_first_instant_is_taken(tmp_path: Path, rng: random.Random) -> None:
    (tmp_path / ".lock").touch()
    (tmp_path / ".run.json.123.tmp").write_text('{"schema_ver')
    write(tmp_path, make_group(rng))
    assert len(check_whole(tmp_path)) == 1
    assert not list(tmp_path.glob("*.tmp"))


# Reading


def test_an_empty_run_scans_to_no_rows_with_all_columns(tmp_path: Path) -> None:
    write(tmp_path / "run")
    for table in schema.TABLES:
        frame = scan(tmp_path / "run", table.name).collect()
        assert frame.height == 0
        assert frame.columns == [column.name for column in table.columns]


def test_labels_scan_as_strings_so_that_runs_can_be_joined(tmp_path: Path, rng: random.Random) -> None:
    write(tmp_path / "run", make_group(rng))
    assert scan(tmp_path / "run", "groups").collect_schema()["task_type"] == pl.String


def test_several_runs_scan_as_one_with_the_run_named(tmp_path: Path, rng: random.Random) -> None:
    a, b, other_a = tmp_path / "a", tmp_path / "b", tmp_path / "deeper" / "a"
    for folder in (a, b, other_a):
        write(folder, make_group(rng, number=1), make_group(rng, number=2))
    both = scan([a, b], "groups").collect()
    assert both["run"].to_list() == ["a", "a", "b", "b"]
    assert scan([a], "groups").collect().equals(scan(a, "groups").collect())
    assert set(scan([a, other_a], "groups").collect()["run"]) == {str(a), str(other_a)}
    with pytest.raises(InputError, match="given twice"):
        scan([a, a], "groups")


def test_a_run_of_an_older_schema_still_reads(
    tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "run", make_group(rng))
    newer = Column("mood", schema.LABEL, "of the game; null before version 2", nullable=True)
    groups = Table("groups", "", ("group_id",), (newer, *schema.GROUPS.columns))
    monkeypatch.setattr(schema, "SCHEMA_VERSION", 2)
    monkeypatch.setattr(store, "TABLES", (groups, *schema.TABLES[1:]))
    frame = scan(tmp_path / "run", "groups").collect()
    assert frame.columns[0] == "mood"
    assert frame["mood"].to_list() == [None]
    assert frame["group_size"].to_list() == [4]


def corrupt(run: Path) -> None:
    part = run / "trajectories" / "part-000001.parquet"
    part.write_bytes(part.read_bytes()[:-50])


def put_foreign(run: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), run / "groups" / "part-000001.parquet")


def lose_part(run: Path) -> None:
    (run / "trajectories" / "part-000001.parquet").unlink()


def make_part_newer(run: Path) -> None:
    content = schema.TRAJECTORIES.arrow.with_metadata({"selective_rollout_schema": "99"}).empty_table()
    pq.write_table(content, run / "trajectories" / "part-000001.parquet")


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (corrupt, "trajectories/part-000001.parquet: cannot be read as Parquet"),
        (put_foreign, "groups/part-000001.parquet: Parquet that selective-rollout did not write"),
        (lose_part, "trajectories/part-000001.parquet: missing"),
        (make_part_newer, "trajectories/part-000001.parquet: made by a newer version"),
    ],
)
def test_a_damaged_run_is_refused_in_one_line_that_names_the_file(
    tmp_path: Path, rng: random.Random, damage: Callable[[Path], None], complaint: str
) -> None:
    write(tmp_path / "run", make_group(rng))
    damage(tmp_path / "run")
    with pytest.raises(InputError, match=complaint) as refusal:
        scan([tmp_path / "run"], "groups" if damage is put_foreign else "trajectories")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ('{"schema_version": 99, "mood": "new"}', "made by a newer version"),
        ('{"schema_version": 1}', "cannot be read as a run"),
        ("[]", "cannot be read as a run"),
        ("{", "cannot be read as a run"),
        ("\xff", "cannot be read as a run"),
        ("[" * 100_000, "cannot be read as a run"),
    ],
)
def test_a_run_json_that_is_none_is_refused(tmp_path: Path, content: str, complaint: str) -> None:
    (tmp_path / "run.json").write_text(content, encoding="latin-1")
    with pytest.raises(InputError, match=complaint):
        read_run(tmp_path)


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    assert not is_run(tmp_path)
    with pytest.raises(InputError, match="not a run"):
        scan(tmp_path, "groups")
    with pytest.raises(InputError, match="no such folder"):
        scan(tmp_path / "nowhere", "groups")


def test_a_file_where_a_table_has_its_folder_is_no_empty_table(tmp_path: Path, rng: random.Random) -> None:
    write(tmp_path / "run", make_group(rng))
    (tmp_path / "run" / "steps").rename(tmp_path / "steps")
    with pytest.raises(InputError, match=r"steps/part-000001[.]parquet: missing, though its groups are committed"):
        scan(tmp_path / "run", "steps")
    (tmp_path / "run" / "steps").write_text("")
    with pytest.raises(InputError, match=r"run/steps: cannot be read \(Not a directory\)"):
        scan(tmp_path / "run", "steps")


def test_the_latest_run_is_the_one_begun_last_whatever_its_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no run"):
        latest_run(tmp_path / "runs")
    for name in ("zebra", "aardvark"):
        write(tmp_path / "runs" / name)
    (tmp_path / "runs" / "zz-notes").mkdir()
    assert latest_run(tmp_path / "runs").name == "aardvark"
    content = json.loads((tmp_path / "runs" / "zebra" / "run.json").read_text())
    content["created"] = "2999-01-01T00:00:00+00:00"
    (tmp_path / "runs" / "zebra" / "run.json").write_text(json.dumps(content))
    assert latest_run(tmp_path / "runs").name == "zebra"


def test_new_run_folders_do_not_collide_and_sort_by_time(tmp_path: Path) -> None:
    made = []
    for _ in range(3):
        folder = new_run_folder(tmp_path, "collect")
        assert folder.name.startswith("collect-")
        write(folder)
        made.append(folder)
    assert made == sorted(made)
    assert latest_run(tmp_path) == made[-1]


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "gate.json"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), replacing(path) as temporary:
        temporary.write_text(f"half of the n{1 // 0}")
    assert path.read_text() == "old"
    with replacing(path) as temporary:
        temporary.write_text("new")
    assert path.read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["gate.json"]


def test_the_store_imports_with_the_core_install_only() -> None:
    check = (
        "import sys, collect.store; "
        "print(sorted({'torch', 'transformers', 'alfworld', 'textworld', 'vllm'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
