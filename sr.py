"""The command line: assembles the packages' commands, nothing else."""

import os
import sys

import typer

from calibrate.command import calibrate
from collect.command import collect, games_app
from collect.errors import SelectiveRolloutError
from collect.options import debugging
from reports.command import query

app = typer.Typer(
    name="sr",
    help="Measure, calibrate and run early termination of zero-variance groups in GRPO.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(games_app, name="games")
app.command("collect")(collect)
app.command("calibrate")(calibrate)
app.command("query")(query)


def main() -> None:
    """Run the command line; one line and the error's exit code when the user's input is at fault."""
    # Worker processes are started by name; a user's own collect/ in the working directory must never be found first.
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        app()
    except SelectiveRolloutError as error:
        if debugging():
            raise
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
