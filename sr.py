"""The command line: assembles the packages' commands, nothing else."""

import os
import sys
import traceback
from collections.abc import Mapping
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from calibrate.command import calibrate
from calibrate.command_replay import gate_app, replay
from collect.command import collect, games_app
from collect.command_import import import_rollouts
from collect.errors import SelectiveRolloutError
from collect.options import Commands, debugging
from collect.printable import open_closed_streams, printable_line, say
from reports.command import query
from reports.command_report import report
from train.command import warmstart
from train.command_train import train

if TYPE_CHECKING:
    from collect.watch import Watcher


def _watcher(gate: Path, configuration: Mapping[str, object]) -> "tuple[Watcher, tuple[str, ...]]":
    """How `sr collect`, which knows of watchers only, comes by a gate."""
    from calibrate.gate import load_for

    return load_for(gate, configuration)


# Plain help: it is read at 80 columns and in pipes, where boxes squeeze the text into a corner.
app = typer.Typer(
    cls=Commands,
    name="sr",
    help="Measure, calibrate and run early termination of zero-variance groups in GRPO.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "obj": _watcher},
)
app.add_typer(games_app, name="games")
app.command("collect", short_help="Roll out groups on games and log everything to Parquet.")(collect)
app.command("import", short_help="Turn rollouts that another trainer logged into a run.")(import_rollouts)
app.command("calibrate", short_help="Fit a gate on rollouts, or say why none will do.")(calibrate)
app.command("replay", short_help="Show what each policy of cutting would have saved and lost.")(replay)
app.add_typer(gate_app, name="gate")
app.command("train", short_help="Train by GRPO; the gate cuts groups that will teach nothing.")(train)
app.command("report", short_help="Show runs on a page: figures, tables, a browser of groups.")(report)
app.command("query", short_help="Ask a run in SQL.")(query)
app.command("warmstart", short_help="Train the default small policy's adapter from an expert's lessons.")(warmstart)

# Typer brings its own copy of click or takes the installed one, by its version: the class is found through what it
# exports.
_UsageError: Any = typer.BadParameter.__base__


def main() -> None:
    """Run the command line; one line and the error's exit code when the user's input is at fault."""
    # Worker processes are started by name; a user's own collect/ in the working directory must never be found first.
    os.environ["PYTHONSAFEPATH"] = "1"
    open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a character that the terminal's encoding lacks must end nothing
            stream.reconfigure(errors="backslashreplace")
    try:
        code = app(prog_name="sr", standalone_mode=False)
    except SelectiveRolloutError as error:
        code = _refuse(str(error), error.exit_code)
    except _UsageError as error:
        message = error.format_message().removesuffix(".")
        code = _refuse(f"{message}; see {error.ctx.command_path} --help", error.exit_code)
    except OSError as error:
        # The last resort: whoever touches a file says better what is wrong with it, but not all of them can foresee it.
        if not isinstance(error.filename, str | bytes):
            raise
        path = os.fsdecode(error.filename)
        why = error.strerror or type(error).__name__
        code = _refuse(f"{path}: cannot be read or written ({why}); change that, or give another path", 2)
    sys.exit(code)


def _refuse(message: str, code: int) -> int:
    if debugging():
        say(traceback.format_exc().rstrip("\n"))
    # It may quote a file: of what was not made to be printed nothing reaches the terminal.
    say(f"error: {printable_line(message)}")
    return code


if __name__ == "__main__":
    main()
