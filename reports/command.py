"""Command: sr query."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collect.errors import InputError
from collect.options import RUNS, Debug
from collect.printable import write_nowhere

if TYPE_CHECKING:
    from reports.sql import Database

_STDOUT = Path("-")
_BROKEN_PIPE = 141  # what the shell says of a program that SIGPIPE ended, as it ends `cat`


def query(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Folder of a run, or `latest` for the newest one in runs/.")
    ],
    sql: Annotated[
        str | None,
        typer.Argument(
            metavar="SQL",
            help="What to ask; without it, DuckDB's shell on the views where the program duckdb is installed and this "
            "is a terminal, else a list of the views and their columns.",
        ),
    ] = None,
    also: Annotated[
        list[Path] | None,
        typer.Option(help="Another run to ask as well (repeatable); every view then has a column `run`."),
    ] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Answer in CSV, every row.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Answer in JSON, every row.")] = False,
    parquet: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the answer to this Parquet file, every row; - for standard output."),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Copy the whole run into this new DuckDB file, which any DuckDB opens without the run; asks nothing.",
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """Ask a run in SQL (DuckDB): views groups, trajectories, steps, errors and, once calibrated, signals.

    Nothing that the SQL says can change the run. docs/queries.md has useful questions. Example:

    sr query latest "SELECT task_type, avg(reward) FROM trajectories JOIN groups USING (group_id) GROUP BY ALL"
    """
    _check_options(sql, csv, as_json, parquet, save)
    runs = [_folder(path) for path in (run, *(also or []))]
    if save is not None:
        from reports.databases import save as save_runs

        save_runs(runs, save)
        typer.echo(f"wrote {save}")
        return
    if sql is None and sys.stdin.isatty() and sys.stdout.isatty():
        from reports.databases import has_shell, open_shell

        if has_shell():
            raise typer.Exit(open_shell(runs))
    from reports.sql import open_runs

    database = open_runs(runs)
    with _quiet_when_nobody_reads():
        if sql is None:
            _list_views(database)
        elif csv or as_json:
            for line in database.as_csv(sql) if csv else database.as_json(sql):
                sys.stdout.write(line + "\n")
        elif parquet is not None:
            database.as_parquet(sql, sys.stdout.buffer if parquet == _STDOUT else parquet)
        else:
            typer.echo(database.as_table(sql))


def _check_options(sql: str | None, csv: bool, as_json: bool, parquet: Path | None, save: Path | None) -> None:
    """Refuse options that contradict each other."""
    given = {"--csv": csv, "--json": as_json, "--parquet": parquet is not None, "--save": save is not None}
    names = [name for name, there in given.items() if there]
    if len(names) > 1:
        raise InputError(f"{names[0]} and {names[1]} exclude each other; give one")
    if save is not None and sql is not None:
        raise InputError(
            "--save: copies whole runs and answers no SQL; leave the SQL out, or use --parquet for an answer"
        )
    if names and names != ["--save"] and sql is None:
        raise InputError(f'{names[0]}: there is nothing to answer; give some SQL, such as "SELECT * FROM groups"')
    if parquet == _STDOUT and sys.stdout.isatty():
        raise InputError("--parquet -: Parquet is nothing to read on a terminal; name a file or redirect the output")


@contextlib.contextmanager
def _quiet_when_nobody_reads() -> Iterator[None]:
    """End without a word when the reader of a pipe has seen enough, as in `sr query … | head`; with one where standard
    output goes to a disk that is full.
    """
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        write_nowhere(error)
        raise typer.Exit(_BROKEN_PIPE) from None


def _folder(path: Path) -> Path:
    if path != Path("latest"):
        return path
    from collect.store import latest_run

    return latest_run(RUNS)


def _list_views(database: "Database") -> None:
    from rich.console import Console
    from rich.table import Table

    from reports.macros import MACROS
    from reports.sql import VIEWS, absent

    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 120)
    # Rich has a way of its own with a pipe that nobody reads: let it only draw.
    with console.capture() as drawn:
        for view in VIEWS:
            columns = database.columns(view)
            console.print(f"{view.name}: {view.comment}", style="bold")
            table = Table.grid(padding=(0, 2, 0, 2))
            for column in columns or [("", "", absent(view.name, database.lacking[view.name]))]:
                table.add_row(*column)
            console.print(table)
        console.print("macros", style="bold")
        table = Table.grid(padding=(0, 2, 0, 2))
        for macro in MACROS:
            table.add_row(macro.shown, macro.comment)
        console.print(table)
    typer.echo(drawn.get(), nl=False)
