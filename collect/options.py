"""What several commands share: options, and how a group of commands answers."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

RUNS = Path("runs")  # where runs go, and are looked for, when none is named

_debug = False


class Commands(TyperGroup):
    """A group of commands. Alone on the line it shows its help; Ctrl-C is answered in one line."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read `--help` where nothing was given."""
        return super().parse_args(ctx, args or ["--help"])

    def invoke(self, ctx: Any) -> Any:
        """Run the command; typer itself would end without a word on Ctrl-C."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            raise typer.Exit(130) from None


def debugging() -> bool:
    """Whether --debug was given: errors then show their traceback."""
    return _debug


def _set_debug(value: bool) -> bool:
    global _debug
    _debug = _debug or value
    return value


Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.", callback=_set_debug)]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print results and errors only.")]
