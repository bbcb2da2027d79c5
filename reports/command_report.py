"""Command: sr report."""

from pathlib import Path
from typing import Annotated

import typer

from collect.options import RUNS, Debug, Quiet


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN",
            help="Folder of a run (or of matched arms), `latest` for the newest one in runs/, a table of signals, or a "
            "table of iterations (CSV or Parquet). Several are reported on together.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the page, the figures and the tables.")],
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Turn runs into one page that works offline, with every figure as SVG and PDF and every table as CSV.

    Rollouts: how groups end, how well signals tell zero-variance groups apart, what each threshold would cut, save and
    lose, and what to expect out of sample. Training: held-out success, time and tokens, cuts, the gate's live
    precision, and matched arms in pairs. The page has a browser of groups: their trajectories as a tree, step by step.
    """
    from collect.progress import counted
    from collect.store import latest_run
    from reports.report import write_report

    given = [latest_run(RUNS) if path == Path("latest") else path for path in runs]
    with counted("drawing", "figures", quiet=quiet) as update:
        written = write_report(given, out, update)
    typer.echo(f"{written.page}: {written.bytes / 1e6:.1f} MB, {written.figures} figures, {written.tables} tables")
    if written.groups:
        typer.echo(f"group browser: {written.groups_shown:,} of {written.groups:,} groups")
