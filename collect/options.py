"""Command-line options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

RUNS = Path("runs")  # where runs go, and are looked for, when none is named

_debug = False


def debugging() -> bool:
    """Whether --debug was given: errors then show their traceback."""
    return _debug


def _set_debug(value: bool) -> bool:
    global _debug
    _debug = _debug or value
    return value


Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.", callback=_set_debug)]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print results and errors only.")]
