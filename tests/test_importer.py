import csv
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from exported import LOG, brought, exported
from synthetic import make_group
from typer.testing import CliRunner
from user import ROOT, one_line, sr

import sr as command_line
from collect.errors import InputError
from collect.import_format import Format
from collect.importer import SUMMARY_FILE, import_log
from collect.store import read_run, scan

LOGS = Path(__file__).with_name("logs")
MAPPING = "group=prompt_id,trajectory=sample,step=t,action=command,reward=score,observation=saw"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_run_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("collect.store._write_part", full)
    with pytest.raises(Exception, match="No space left"):
        brought(LOG, tmp_path / "run")
    assert names(tmp_path) == []


def test_what_a_killed_import_of_the_same_process_number_left_is_no_hindrance(tmp_path: Path) -> None:
    brought(LOG, tmp_path / "run")
    whole = contents(tmp_path / "run" / "groups")
    (tmp_path / "run" / "import.json").unlink()
    (tmp_path / "run").rename(tmp_path / f".run.{os.getpid()}.importing")
    brought(LOG, tmp_path / "run")
    assert names(tmp_path) == ["run"]
    assert contents(tmp_path / "run" / "groups") == whole


def test_what_is_there_is_never_written_to(tmp_path: Path) -> None:
    brought(LOG, tmp_path / "run")
    before = names(tmp_path / "run")
    (tmp_path / "file").write_text("mine")
    for name in ("run", "file"):
        with pytest.raises(InputError, match="exists; give another folder"):
            brought(LOG, tmp_path / name)
    assert names(tmp_path / "run") == before
    (tmp_path / "empty").mkdir()
    assert brought(LOG, tmp_path / "empty").groups == 3


def test_a_log_without_a_group_leaves_nothing_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text("{}\n{}\n")
    with pytest.raises(InputError, match=r"no group can be imported: log.jsonl, line 1: task_id: Field required"):
        brought(tmp_path / "log.jsonl", tmp_path / "run")
    (tmp_path / "log.jsonl").write_text("")
    with pytest.raises(InputError, match="no group can be imported; it is empty"):
        brought(tmp_path / "log.jsonl", tmp_path / "run")
    assert names(tmp_path) == ["log.jsonl"]


def test_the_run_says_what_it_was_made_of_and_what_was_noticed(tmp_path: Path) -> None:
    brought(LOG, tmp_path / "run")
    made = read_run(tmp_path / "run")
    assert (made.command, made.configuration["format"]) == ("import", "selective-rollout")
    assert made.configuration["files"][0]["name"] == "rollouts.jsonl"
    assert made.configuration["files"][0]["bytes"] == LOG.stat().st_size
    noticed = json.loads((tmp_path / "run" / SUMMARY_FILE).read_text())
    assert (noticed["groups"], noticed["malformed"]["total"]) == (3, 0)


def test_the_same_log_gives_the_same_bytes(tmp_path: Path) -> None:
    for name, seed in (("one", "0"), ("two", "1")):
        program = "from sr import main; main()"
        subprocess.run(
            [sys.executable, "-c", program, "import", LOGS / "verl", tmp_path / name, "--format", "verl", "--quiet"],
            env={"PYTHONHASHSEED": seed, "PATH": ""},
            cwd=Path(__file__).parents[1],
            check=True,
            capture_output=True,
        )
    for table in ("groups", "trajectories", "steps"):
        parts = [(tmp_path / name / table / "part-000001.parquet").read_bytes() for name in ("one", "two")]
        assert parts[0] == parts[1]


def test_progress_reaches_the_size_of_the_log(tmp_path: Path) -> None:
    seen = list[tuple[int, int]]()
    import_log(LOG, Format.SELECTIVE_ROLLOUT, {}, tmp_path / "run", lambda done, total: seen.append((done, total)))
    assert seen[-1] == (LOG.stat().st_size, LOG.stat().st_size)


# The command


def test_the_command_says_what_came_of_it(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(LOG.read_bytes() + b"{broken\n" * 12 + b'{"task_id": "x')
    done = sr("import", log, tmp_path / "run", "--format", "selective-rollout", "--quiet")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == f"{log}: 3 groups of 2 trajectories, 28 steps; horizon 5"
    assert lines[1].startswith("not in the log, so null: groups: policy_version, seed, started; trajectories: ")
    assert lines[2] == "malformed: 12 records"
    assert len([line for line in lines if line.startswith("  log.jsonl, line ")]) == 10
    assert lines[-3:] == [
        "  … and 2 more",
        "torn: log.jsonl, line 16: cut off in the middle; left out",
        f"wrote {tmp_path / 'run'}",
    ]


def test_an_imported_run_is_calibrated_like_any_other(tmp_path: Path) -> None:
    rng, log = random.Random(0), tmp_path / "log.jsonl"
    plans = [["look"] * 6, ["look", "inventory"] * 3, ["go to desk 1", "look"] * 3]
    with log.open("w") as file:
        for number in range(60):
            alike = number % 2 == 0
            actions = [plans[0] if alike else rng.choice(plans) for _ in range(4)]
            won = [False] * 4 if alike else [False, True, rng.random() < 0.5, False]
            group = make_group(rng, 4, 6, number=number, actions=actions, won=won)
            file.write(json.dumps(exported(group)) + "\n")
    brought(log, tmp_path / "run")
    shown = CliRunner().invoke(command_line.app, ["calibrate", str(tmp_path / "run")])
    assert shown.exit_code == 0, shown.output
    assert "not known: commands_reached, refused_share, mean_logprob (this run was imported without" in shown.output
    assert "steps saved" in " ".join(shown.output.split())
    gate = json.loads((tmp_path / "run" / "gate.json").read_text())
    assert gate["evidence"]["saving_unit"] == "steps"
    everything = CliRunner().invoke(
        command_line.app, ["calibrate", str(tmp_path / "run"), "--gate", "auto", "--signal", "auto"]
    )
    assert everything.exit_code == 0, everything.output
    refused = CliRunner().invoke(command_line.app, ["calibrate", str(tmp_path / "run"), "--signal", "mean_logprob"])
    assert str(refused.exception).endswith("was imported without what mean_logprob reads; give another signal")
    replayed = CliRunner().invoke(command_line.app, ["replay", str(tmp_path / "run")])
    assert replayed.exit_code == 0, replayed.output
    asked = CliRunner().invoke(
        command_line.app, ["query", str(tmp_path / "run"), "SELECT DISTINCT mean_logprob FROM signals", "--csv"]
    )
    assert asked.output == 'mean_logprob\n""\n'


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nowhere.jsonl", "--format", "verl"], "nowhere.jsonl: no such file"),
        ([LOG], "--format: is missing; one of selective-rollout, verl, art, long"),
        ([LOG, "--format", "verl"], f"{LOG}: no group can be imported: rollouts.jsonl, line 1: input: Field required"),
        ([LOG, "--format", "art"], f"{LOG}: cannot be read as Parquet"),
        ([LOG, "--format", "verl", "--map", "group=x"], "--map: the columns of verl are known"),
        ([LOGS, "--format", "long"], f"{LOGS}: is a folder; give one file"),
        ([LOGS / "long.csv", "--format", "long"], "has no column 'group' for group; name it with --map group=COLUMN"),
        ([LOGS / "long.csv", "--format", "long", "--map", "group"], "--map 'group': write group=COLUMN"),
        ([LOGS / "long.csv", "--format", "long", "--map", "grp=x"], "--map grp: unknown; one of group, trajectory"),
        ([LOGS / "long.csv", "--format", "long", "--map", "group=a,group=b"], "--map group: given twice"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(tmp_path: Path, arguments: list[object], complaint: str) -> None:
    shown = CliRunner().invoke(
        command_line.app, ["import", *map(str, arguments[:1]), str(tmp_path / "run"), *map(str, arguments[1:])]
    )
    assert isinstance(shown.exception, InputError)
    assert complaint in str(shown.exception)
    assert "\n" not in str(shown.exception)
    assert names(tmp_path) == []


def test_by_default_the_run_is_a_new_one_in_runs(tmp_path: Path) -> None:
    done = sr("import", LOGS / "long.csv", "--format", "long", "--map", MAPPING, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name.startswith("import-")
    assert len(scan(run, "groups").collect()) == 2
    again = sr("import", LOGS / "long.csv", run, "--format", "long", "--map", MAPPING)
    assert again.returncode == 2
    assert one_line(again.stderr).endswith("exists; give another folder for the run")


def test_the_page_on_imports_tells_of_every_format() -> None:
    page = (ROOT / "docs" / "import.md").read_text(encoding="utf-8")
    for kind in Format:
        assert f"\n| `{kind}` | " in page
    assert all(f"`{name}`" in page for name in ("reward", "step_reward", "game", "group"))


@pytest.mark.slow
def test_a_large_log_streams_in_little_memory(tmp_path: Path) -> None:
    """A long table of 300 MB, its groups scattered all over it."""
    with (tmp_path / "log.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["trajectory", "group", "step", "action", "reward", "observation"])
        for trajectory in range(4):
            for group in range(25_000):
                for step in range(10):
                    rows.writerow(
                        [trajectory, group, step, f"go to {(group + step * trajectory) % 7}", group % 2, "x" * 270]
                    )
    program = (
        "import resource, sys; from pathlib import Path; from collect.importer import import_log; "
        "from collect.import_format import Format; "
        "import_log(Path(sys.argv[1]), Format.LONG, {}, Path(sys.argv[2]), lambda done, total: None); "
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "log.csv", tmp_path / "run"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) < 500  # MiB, of which an import of pyarrow takes 130
    assert scan(tmp_path / "run", "steps").select("step").collect().height == 1_000_000
