"""What `sr calibrate` refuses before any work is done and anything is written."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from calibration_runs import KINDS, MANY, Run, write_run
from user import ROOT, Done, one_line

from calibrate.gate import load


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--target-precision", "0"], "--target-precision"),
        (["--target-precision", "1.01"], "--target-precision"),
        (["--target-precision", "nan"], "--target-precision"),
        (["--at-step", "6"], "--at-step 6: not there; the signals are known at K = 1 to 5"),
        (["--at-step", "0"], "--at-step"),
        (["--thresholds", "0.1,,0.2"], "--thresholds"),
        (["--thresholds", "low"], "'low' is not a number"),
        (["--thresholds", ""], "--thresholds"),
        (["--thresholds", "0.1,1.5"], "1.5 is outside 0 to 1"),
        (["--thresholds", "nan"], "--thresholds"),
        (["--thresholds", "-0.1", "--signal", "repetition"], "-0.1 is outside 0 to 1"),
        (["--thresholds", "0.1", "--signal", "mean_logprob"], "0.1 is outside at most 0"),
        (["--signal", "novelty"], "--signal novelty: unknown; give auto or one of prefix_edit_distance_mean"),
        (["--signal", "repetition", "--gate", "learned"], "--signal: a learned gate reads all signals"),
        (["--signal", "termination_fraction", "--gate", "either"], "--signal termination_fraction"),
        (["--gate", "oracle"], "'oracle' is not one of"),
        (["--confidence", "1"], "--confidence 1.0"),
        (["--confidence", "0"], "--confidence 0.0"),
        (["--confidence", "0.9999999999999999"], "--confidence 0.9999999999999999: must be 0.5 to 0.999999, such as"),
        (["--confidence", "1e-320"], "less guarantees nothing, and more no number of groups does"),
        (["--confidence", "0.4999"], "--confidence 0.4999"),
        (["--confidence", "nan"], "--confidence nan"),
        (["--confidence", "0.9", "--target-precision", "1"], "--confidence: no number of groups"),
        (["--confidence", "0.9", "--convention", "paper"], "--confidence: only real cuts"),
        (["--max-steps", "30"], "--max-steps"),
        (["--reward-tolerance", "-1"], "--reward-tolerance"),
        (["--out", "nowhere/gate.json"], "--out"),
        (["--out", "run"], "--out"),
        (["--signals", "table.csv"], "--signals"),
    ],
)
def test_a_mistake_in_an_option_is_one_line_and_nothing_is_written(
    calibrate: Run, tmp_path: Path, arguments: list[str], told: str
) -> None:
    write_run(tmp_path / "run", KINDS)
    before = sorted(tmp_path.rglob("*"))
    code, out, err = calibrate("run", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert told in err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("arguments", [[], ["nothing"], ["folder"], ["run.txt"], ["--signals", "none.csv"]])
def test_where_there_is_no_run_or_table_is_one_line(calibrate: Run, tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "run.txt").write_text("")
    code, out, err = calibrate(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("name", ["run.json", "groups/part-000001.parquet", "signals.parquet"])
def test_a_gate_never_takes_the_place_of_another_file(calibrate: Run, tmp_path: Path, name: str) -> None:
    write_run(tmp_path / "run", KINDS)
    calibrate(tmp_path / "run")
    before = (tmp_path / "run" / name).read_bytes()
    code, out, err = calibrate(tmp_path / "run", "--out", tmp_path / "run" / name)
    assert (code, out) == (2, "")
    refusal = "exists and cannot be read as a gate; give another place with --out"
    assert one_line(err) == f"{tmp_path / 'run' / name}: {refusal}"
    assert (tmp_path / "run" / name).read_bytes() == before
    assert calibrate(tmp_path / "run")[0] == 0  # an earlier gate may be replaced


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--thresholds", "0.1", "--confidence", "0.95"), "--confidence: --thresholds alone fits no gate"),
        (("--thresholds", "0.1", "--gate", "learned"), "--gate: --thresholds alone fits no gate"),
        (("--thresholds", "0.1", "--signal", "auto"), "--thresholds: are on one signal"),
        (("--thresholds=-inf", "--signal", "mean_logprob"), "'-inf': -inf is outside at most 0"),
    ],
)
def test_options_that_would_be_ignored_are_refused(
    calibrate: Run, tmp_path: Path, options: tuple[str, ...], told: str
) -> None:
    write_run(tmp_path / "run", MANY[:5])
    code, out, err = calibrate(tmp_path / "run", *options)
    assert (code, out) == (2, "")
    assert told in err


def test_a_file_where_the_folder_of_curves_goes_is_refused_before_anything_is_written(
    calibrate: Run, tmp_path: Path
) -> None:
    write_run(tmp_path / "run", MANY)
    (tmp_path / "run" / "calibration").write_text("mine")
    before = sorted((tmp_path / "run").rglob("*"))
    code, out, err = calibrate("run")
    assert (code, out) == (2, "")
    assert "calibration: is a file" in err
    assert sorted((tmp_path / "run").rglob("*")) == before


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("top_p", "0", "run.json: its top_p must be over 0 and at most 1; "),
        ("top_p", "5", "run.json: its top_p must be over 0 and at most 1; "),
        ("top_p", "1e400", "run.json: its top_p must be over 0 and at most 1; "),
        ("top_p", "NaN", "run.json: its top_p must be over 0 and at most 1; "),
        ("temperature", "-1", "run.json: its temperature must be a number of at least 0; "),
        ("temperature", "1e400", "run.json: its temperature must be a number of at least 0; "),
        ("temperature", "1" + "0" * 400, "run.json: its temperature must be a number of at least 0; "),
        ("model", r'"\ud800"', "run.json: its model holds half a character; "),
    ],
)
def test_a_run_json_that_says_what_no_gate_can_hold_is_refused_before_anything_is_written(
    calibrate: Run, tmp_path: Path, name: str, value: str, told: str
) -> None:
    write_run(tmp_path / "run", MANY, {name: "VALUE"})
    file = tmp_path / "run" / "run.json"
    file.write_text(file.read_text().replace('"VALUE"', value))
    before = sorted(tmp_path.rglob("*"))
    code, out, err = calibrate("run")
    assert (code, out) == (2, "")
    assert told in one_line(err)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_without_its_groups_folder_is_told_so(calibrate: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "run", KINDS)
    (tmp_path / "run" / "groups").rename(tmp_path / "elsewhere")
    code, out, err = calibrate("run")
    assert (code, out) == (2, "")
    assert one_line(err).startswith("run/groups: missing, so the run holds no groups")


def test_an_earlier_gate_that_is_damaged_is_not_called_something_else(calibrate: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "run", KINDS)
    assert calibrate("run")[0] == 0
    gate = tmp_path / "run" / "gate.json"
    gate.write_text(gate.read_text()[:-20])
    before = gate.read_bytes()
    code, _, err = calibrate("run")
    assert code == 2
    assert one_line(err) == "run/gate.json: exists and cannot be read as a gate; give another place with --out"
    assert gate.read_bytes() == before


def test_a_device_is_no_place_for_a_gate_and_is_not_read(calibrate: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "run", KINDS)
    code, _, err = calibrate("run", "--out", "/dev/zero")
    assert code == 2
    assert one_line(err).startswith("/dev/zero: ")


def test_a_link_to_a_gate_stays_one_and_the_gate_behind_it_is_written(calibrate: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "run", KINDS)
    (tmp_path / "gates").mkdir()
    (tmp_path / "link.json").symlink_to("gates/first.json")
    for _ in range(2):  # there is none yet, and then there is one
        assert calibrate("run", "--out", "link.json")[0] == 0
        assert (tmp_path / "link.json").is_symlink()
        assert load(tmp_path / "gates" / "first.json").rule.steps == (1,)


def test_a_link_that_goes_round_is_one_line(calibrate: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "run", KINDS)
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    before = sorted(tmp_path.rglob("*"))
    code, out, err = calibrate("run", "--out", "a")
    assert (code, out) == (2, "")
    assert one_line(err).startswith("a: cannot be read or written (Too many levels of symbolic links)")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_name_that_is_too_long_is_one_line_and_nothing_is_written(calibrate: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "run", KINDS)
    before = sorted(tmp_path.rglob("*"))
    code, out, err = calibrate("run", "--out", "x" * 300)
    assert (code, out) == (2, "")
    assert "x: cannot be read or written (File name too long)" in one_line(err)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("closed", "mode", "arguments", "told"),
    [
        ("run", 0o444, ["run"], "run/run.json: cannot be read (Permission denied); "),
        ("run", 0o555, ["run"], "run: signals.parquet cannot be written there; "),
        ("run/run.json", 0o000, ["run"], "run/run.json: cannot be read (Permission denied); "),
        ("run/groups", 0o000, ["run"], "run/groups: cannot be read (Permission denied); "),
        ("run/steps", 0o000, ["run"], "run/steps: cannot be read (Permission denied); "),
        ("run/steps", 0o444, ["run"], "part-000001.parquet: cannot be read (Permission denied); "),
        ("run/groups/part-000001.parquet", 0o000, ["run"], "part-000001.parquet: cannot be read (Permission denied); "),
        ("run/calibration", 0o555, ["run"], "run/calibration: the tables of curves cannot be written there; "),
        ("run/gate.json", 0o000, ["run"], "run/gate.json: exists and cannot be read; "),
        ("above", 0o000, ["above/run"], "above/run"),
        ("above", 0o000, ["run", "--out", "above/gate.json"], "above/gate.json: cannot be "),
        ("above", 0o000, ["run", "--out", "above/run/gate.json"], "above/run"),
    ],
)
def test_what_permissions_forbid_is_one_line_and_nothing_is_written(
    tmp_path: Path, closed: str, mode: int, arguments: list[str], told: str
) -> None:
    write_run(tmp_path / "run", KINDS)
    write_run(tmp_path / "above" / "run", KINDS[:1])
    for earlier in (tmp_path / "run" / "gate.json", tmp_path / "run" / "calibration" / "curves.parquet"):
        earlier.parent.mkdir(exist_ok=True)
        earlier.write_text("")
    if not closed.endswith("gate.json"):
        (tmp_path / "run" / "gate.json").unlink()
    before = sorted(tmp_path.rglob("*"))
    usual = (tmp_path / closed).stat().st_mode
    (tmp_path / closed).chmod(mode)
    try:
        done = unprivileged("calibrate", *arguments, cwd=tmp_path)
    finally:
        (tmp_path / closed).chmod(usual)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in one_line(done.stderr)
    assert sorted(tmp_path.rglob("*")) == before


def unprivileged(*arguments: str, cwd: Path) -> Done:
    """Run `sr …` as somebody whom permissions bind, which root is not."""
    command = [sys.executable, "-c", "import sr; sr.main()", *arguments]
    if os.geteuid() == 0:
        drop = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search", "--inh-caps", "-all"]
        if shutil.which("setpriv") is None or subprocess.run([*drop, "true"], check=False).returncode:
            pytest.skip("permissions do not bind root, and there is no setpriv that lets them")
        command = [*drop, *command]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
