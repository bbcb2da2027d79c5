"""Command: sr query."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collect.errors import InputError
from collect.options import RUNS, Debug

if TYPE_CHECKING:
    from reports.sql import Database


def query(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Folder of a run, or `latest` for the newest one in runs/.")
    ],
    sql: Annotated[
        str | None, typer.Argument(metavar="SQL", help="What to ask; without it, the views and their columns.")
    ] = None,
    also: Annotated[
        list[Path] | None,
        typer.Option(help="Another run to ask as well (repeatable); every view then has a column `run`."),
    ] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Answer in CSV, every row.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Answer in JSON, every row.")] = False,
    debug: Debug = False,
) -> None:
    """Ask a run in SQL (DuckDB): views groups, trajectories, steps, errors and, once calibrated, signals.

    Nothing that the SQL says can change the run. Example:

    sr query latest "SELECT task_type, avg(reward) FROM trajectories JOIN groups USING (group_id) GROUP BY ALL"
    """
    if csv and as_json:
        raise InputError("--csv and --json exclude each other; give one")
    from reports.sql import open_runs

    database = open_runs([_folder(path) for path in (run, *(also or []))])
    if sql is None:
        _list_views(database)
    elif csv or as_json:
        for line in database.as_csv(sql) if csv else database.as_json(sql):
            sys.stdout.write(line + "\n")
    else:
        typer.echo(database.as_table(sql))


def _folder(path: Path) -> Path:
    if path != Path("latest"):
        return path
    from collect.store import latest_run

    return latest_run(RUNS)


def _list_views(database: "Database") -> None:
    from rich.console import Console
    from rich.table import Table

    from reports.sql import PREFIX_DISTANCE, VIEWS

    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 120)
    for view in VIEWS:
        columns = database.columns(view)
        console.print(f"{view.name}: {view.comment}", style="bold")
        table = Table.grid(padding=(0, 2, 0, 2))
        for column in columns or [("", "", f"absent: compute it with sr calibrate {database.lacking}")]:
            table.add_row(*column)
        console.print(table)
    console.print(PREFIX_DISTANCE, style="bold")
