"""What a user does: types `sr …`, in some folder, perhaps without some packages installed."""

import contextlib
import io
import os
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from importlib.metadata import distribution
from pathlib import Path

ROOT = Path(__file__).parents[1]
SR = Path(sysconfig.get_path("scripts"), "sr")

Done = subprocess.CompletedProcess[str]


def sr(*arguments: object, cwd: Path | None = None, **environment: str) -> Done:
    """Run the installed command to its end."""
    command = [str(SR), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env={**os.environ, **environment})


def sr_here(*arguments: object) -> Done:
    """Run the same in this process, in its folder, where PyTorch need not be loaded once more."""
    from sr import main

    said, complained = io.StringIO(), io.StringIO()
    command, sys.argv = sys.argv, [str(SR), *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(complained):
            main()
    except SystemExit as end:
        return Done(sys.argv, int(end.code or 0), said.getvalue(), complained.getvalue())
    finally:
        sys.argv = command
    raise AssertionError("main ends by leaving")


def python(program: str, *arguments: object, path: Sequence[Path] = (), **environment: str) -> Done:
    """Run a program that finds the standard library and what lies in `path`, and nothing else."""
    program = f"import sys; sys.path += {list(map(str, path))!r}\n{program}"
    command = [sys.executable, "-I", "-S", "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=os.sep, env={**os.environ, **environment})


def site_without(folder: Path, *distributions: str) -> Path:
    """A folder of links to all that is installed here, save some distributions: as if they had never been installed."""
    site = Path(sysconfig.get_path("purelib"))
    absent = {"__pycache__"}
    for name in distributions:
        absent |= {file.parts[0] for file in distribution(name).files or ()}
    folder.mkdir()
    for entry in site.iterdir():
        if entry.name not in absent:
            (folder / entry.name).symlink_to(entry)
    return folder


def one_line(complaint: str) -> str:
    """What the user was told, which is to be one line and no traceback."""
    assert complaint.count("\n") == 1, complaint
    assert complaint.startswith("error: "), complaint
    return complaint.removeprefix("error: ").rstrip("\n")
