"""Standard output of calibrate's commands: hostile text, narrow terminals, readers that are gone, full disks."""

import fcntl
import json
import os
import re
import struct
import subprocess
import sys
import termios
from dataclasses import replace
from pathlib import Path

import pytest
from calibration_runs import KINDS, a_group
from gates import make_gate
from rich.text import Text
from user import ROOT, one_line, sr

from calibrate.console import Console
from calibrate.gate import save
from calibrate.printing import table
from collect.printable import printable_line
from collect.store import open_run

STYLE = re.compile(r"\x1b\[[0-9;]*m")
SR = [sys.executable, "-c", "from sr import main; main()"]
HOSTILE = "a\x1b]0;title\x07b\nforged: a whole line\u202e\ud800"
IN_A_FILE = HOSTILE.replace("\ud800", "")  # no JSON and no Parquet file holds half a character
TAMED = "a\ufffd]0;title\ufffdb forged: a whole line\ufffd\ufffd"


def on_terminal(columns: int, *command: str, **environment: str) -> str:
    """What a command writes to a terminal of so many columns."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    surroundings = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    surroundings |= {"PYTHONPATH": str(ROOT), "TERM": "xterm-256color"} | environment
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.PIPE, env=surroundings) as process:
        os.close(theirs)
        read = b""
        try:
            while some := os.read(ours, 65536):
                read += some
        except OSError:  # so it ends where nobody holds the other end any more
            pass
        os.close(ours)
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode == 0
    return read.decode().replace("\r\n", "\n")


def lines(drawn: str) -> list[str]:
    """The lines of a table, without styles and empty ones."""
    return [line.rstrip() for line in STYLE.sub("", drawn).split("\n") if line.strip()]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run in which a model and a task type were named by somebody who means no good."""
    configuration = {"model": IN_A_FILE, "prompt": "act", "adapter": None}
    with open_run(tmp_path / "run", configuration, {}) as run:
        for number, kind in enumerate(KINDS):
            group = a_group(number, kind)
            if number % 2:
                group = replace(group, game=replace(group.game, task_type="t\x1b[2J\nforged"))
            run.add(group)
    return tmp_path / "run"


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A gate with such names in it."""
    path = tmp_path / "gate.json"
    save(make_gate(model="MODEL"), path)
    content = json.loads(path.read_text())
    content["model"] = IN_A_FILE
    content["versions"] = {IN_A_FILE: "1"}
    path.write_text(json.dumps(content))
    return path


# Text that was not made to be printed


def test_a_line_holds_nothing_that_moves_a_cursor_or_begins_another_line() -> None:
    assert printable_line(HOSTILE) == TAMED
    assert printable_line("  naïve\t工具 …") == "  naïve\t工具 …"
    assert printable_line("") == ""
    assert printable_line("a\rb\x85c\u2028d\r\ne") == "a b c d e"


def test_lines_and_cells_are_tamed_and_headers_keep_their_lines(capsys: pytest.CaptureFixture[str]) -> None:
    shown = table("a", "zero-\nvar.")
    shown.add_row(HOSTILE, Text("\x1b[2Jx\ny\ud800"))
    console = Console()
    console.print(HOSTILE)
    console.print("")
    console.print("[bold]x[/bold] :smile:")
    console.print(shown)
    line, empty, markup, *rest = capsys.readouterr().out.split("\n")
    assert (line, empty, markup) == (TAMED, "", "[bold]x[/bold] :smile:")
    first, second, _, row = (line.split() for line in rest if line.strip())
    assert (first, second, row) == (["zero-"], ["a", "var."], [*TAMED.split(), "\ufffd[2Jx", "y\ufffd"])


def test_names_in_a_run_reach_the_terminal_tamed(run: Path) -> None:
    calibrated = sr("calibrate", run)
    assert (calibrated.returncode, calibrated.stderr) == (0, "")
    replayed = sr("replay", run)
    assert (replayed.returncode, replayed.stderr) == (0, "")
    for out in (calibrated.stdout, replayed.stdout):
        assert out.splitlines()[0].endswith("; model a\ufffd]0;title\ufffdb forged: a whole line\ufffd, prompt act")
        assert "\x1b" not in out
        assert not any(line.startswith("forged") for line in out.splitlines())
    assert "prefix_edit_distance_mean, t\ufffd[2J forged" in calibrated.stdout


def test_names_in_a_gate_reach_the_terminal_tamed(gate: Path) -> None:
    done = sr("gate", "show", gate)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"; policy: model {TAMED[:-1]}, prompt act; " in done.stdout
    assert done.stdout.endswith(f"…; {TAMED[:-1]} 1\n")


def test_an_encoding_that_lacks_a_character_is_no_crash(gate: Path) -> None:
    done = sr("gate", "show", gate, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert r"data: 0000000000000000\u2026; " in done.stdout


# Tables on terminals

DRAW = """
from calibrate.console import Console
from calibrate.printing import table
from rich.text import Text
shown = table("policy", "precision", "zero-\\nvar.")
shown.columns[0].justify = "left"
shown.add_row("random at the same rate", "0.200 [0.03,0.56]", Text("0.116", style="black on rgb(1,255,1)"))
shown.add_row("gate", "n/a", "工具")
shown.add_row("", "", "")
Console().print(shown)
"""
WHOLE = [
    "                                             zero-",
    " policy                           precision   var.",
    " ─────────────────────────────────────────────────",
    " random at the same rate  0.200 [0.03,0.56]  0.116",
    " gate                                   n/a   工具",
]
BROKEN = [
    "                             zero-",
    " policy           precision   var.",
    " ─────────────────────────────────",
    " random at the        0.200  0.116",
    " same rate      [0.03,0.56]",
    " gate                   n/a   工具",
]
SMALLEST = [
    "                      zero-",
    " policy    precision   var.",
    " ──────────────────────────",
    " random        0.200  0.116",
    " at the  [0.03,0.56]",
    " same",
    " rate",
    " gate            n/a   工具",
]


@pytest.mark.parametrize(
    ("columns", "drawn"), [(200, WHOLE), (51, WHOLE), (35, BROKEN), (28, SMALLEST), (27, SMALLEST), (1, SMALLEST)]
)
def test_cells_are_broken_at_spaces_only_and_only_as_far_as_needed(columns: int, drawn: list[str]) -> None:
    assert lines(on_terminal(columns, sys.executable, "-c", DRAW)) == drawn


def test_colours_stay_on_a_terminal() -> None:
    assert "\x1b[30;48;2;1;255;1m0.116\x1b[0m" in on_terminal(28, sys.executable, "-c", DRAW, COLORTERM="truecolor")


def test_in_a_pipe_a_row_is_a_line_however_long(capsys: pytest.CaptureFixture[str]) -> None:
    shown = table("K", "precision")
    shown.add_row("word " * 100 + "end", "0.116")
    Console().print(shown)
    assert lines(capsys.readouterr().out)[2:] == [" " + "word " * 100 + "end      0.116"]


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_every_number_that_calibrate_prints_is_whole_at_any_width(run: Path, columns: int) -> None:
    told = [on_terminal(width, *SR, "calibrate", str(run)) for width in (1000, columns)]
    whole, narrow = (sorted(re.findall(r"[0-9][0-9.,%]*", STYLE.sub("", out))) for out in told)
    assert len(whole) > 100
    assert narrow == whole


# Readers that are gone, and full disks


def test_a_gate_is_written_though_nobody_reads_on(run: Path) -> None:
    command = [*SR, "calibrate", str(run)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as calibrating:
        assert calibrating.stdout is not None
        assert calibrating.stderr is not None
        calibrating.stdout.close()
        assert calibrating.stderr.read() == b""
        assert calibrating.wait() == 0
    assert (run / "gate.json").is_file()


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="there is no /dev/full")
def test_a_full_disk_behind_standard_output_is_one_line(gate: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*SR, "gate", "show", str(gate)], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    assert one_line(done.stderr).startswith("standard output: cannot be written to (")


# Standard streams that were closed


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_closed_streams_are_written_nowhere_and_the_gate_is_what_it_would_be(run: Path, closed: str) -> None:
    assert sr("calibrate", run).returncode == 0
    expected = {path.name: path.read_bytes() for path in (run / "gate.json", run / "signals.parquet")}
    done = shell(f"calibrate run --out again.json {closed}", cwd=run.parent)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("run: run; ") == (">&-" not in closed.split())
    assert (run.parent / "again.json").read_bytes() == expected["gate.json"]
    assert (run / "signals.parquet").read_bytes() == expected["signals.parquet"]


@pytest.mark.parametrize("closed", ["2>&-", "2>/dev/full", "2>/dev/full --debug"])
def test_a_refusal_that_nobody_can_be_told_exits_as_usual(tmp_path: Path, closed: str) -> None:
    done = shell(f"calibrate nowhere {closed}", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")


@pytest.mark.parametrize("closed", ["2>&-", "2>/dev/full"])
def test_work_goes_on_though_nobody_can_be_told_how_far_it_is(closed: str) -> None:
    program = """
from collect.printable import open_closed_streams
from collect.progress import counted
open_closed_streams()
with counted("counting", "things") as update:
    update(1, 2)
    update(2, 2)
print("done")
"""
    command = f"exec {sys.executable} -c '{program}' {closed}"
    done = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n")


def shell(words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run `sr …` with the redirections of a shell."""
    command = f"exec {sys.executable} -c 'from sr import main; main()' {words}"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(["sh", "-c", command], cwd=cwd, env=environment, capture_output=True, text=True, check=False)
