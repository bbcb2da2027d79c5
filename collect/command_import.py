"""Command: sr import."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collect.errors import InputError
from collect.import_format import Format
from collect.options import RUNS, Debug, Quiet

if TYPE_CHECKING:
    from collect.importer import Imported
    from collect.source import Complaints

_MEGABYTE = 1_000_000


def import_rollouts(
    log: Annotated[
        Path, typer.Argument(metavar="FILE", help="The log: a file, or a folder of the files of a training run.")
    ],
    run: Annotated[
        Path | None, typer.Argument(metavar="RUN", help="Folder of the run to write; by default a new one in runs/.")
    ] = None,
    kind: Annotated[
        Format | None,
        typer.Option(
            "--format",
            help="selective-rollout: the paper's rollouts.jsonl. verl: its rollout_data_dir. art: ART's trajectories "
            "in Parquet. long: a table (CSV, JSON Lines, Parquet) of one row a step.",
        ),
    ] = None,
    mapping: Annotated[
        str | None,
        typer.Option(
            "--map",
            metavar="NAME=COLUMN,…",
            help="For a long table: the column of group, trajectory, action and reward (or step_reward) and, where "
            "there are such, of step, observation, reply, game, task_type, won; by default those of the same names.",
        ),
    ] = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Turn rollouts that another trainer logged into a run, so that a gate can be judged on them.

    What the log lacks is null in the run, and named. Lines that cannot be read are counted and named, never dropped in
    silence. The run appears whole or not at all. docs/import.md says how each format is read. Example:

    sr import rollouts.csv runs/theirs --format long --map group=prompt_id,trajectory=sample,action=command
    """
    if kind is None:
        raise InputError(f"--format: is missing; one of {', '.join(Format)}")
    if mapping is not None and kind is not Format.LONG:
        raise InputError(f"--map: the columns of {kind} are known; give it with --format long only")
    from collect.import_long import read_mapping
    from collect.importer import import_log
    from collect.progress import counted
    from collect.store import new_run_folder

    columns = read_mapping(mapping)
    out = run or new_run_folder(RUNS, "import")
    with counted(f"importing {log}", "MB", quiet=quiet) as update:
        imported = import_log(
            log, kind, columns, out, lambda done, total: update(done // _MEGABYTE, -(-total // _MEGABYTE))
        )
    for line in _summary(log, imported):
        typer.echo(line)
    typer.echo(f"wrote {out}")


def _summary(log: Path, imported: "Imported") -> list[str]:
    size = _alike(imported.sizes, "of {} trajectories")
    lines = [f"{log}: {imported.groups:,} groups {size}, {imported.steps:,} steps; {_horizon(imported)}"]
    if imported.actions:
        total = sum(imported.actions.values())
        found = ", ".join(f"{count:,} {how}" for how, count in imported.actions.items())
        lines.append(f"actions of {total:,} replies: {found}")
    if imported.null:
        told = "; ".join(f"{table}: {', '.join(columns)}" for table, columns in imported.null.items())
        lines.append(f"not in the log, so null: {told}")
    lines += _complaints("malformed", "records", imported.malformed)
    lines += _complaints("left out", "groups", imported.left_out)
    return [*lines, *(f"torn: {told}" for told in imported.torn)]


def _horizon(imported: "Imported") -> str:
    if imported.horizon is not None:
        return f"horizon {imported.horizon}: the log does not say it, its longest trajectory does"
    return _alike(imported.horizons, "horizon {}")


def _alike(counts: dict[int, int], words: str) -> str:
    """The one number of all groups, or each with how many have it."""
    if len(counts) == 1:
        return words.format(*counts)
    return words.format(", ".join(f"{number} ({count} groups)" for number, count in sorted(counts.items())))


def _complaints(title: str, what: str, complaints: "Complaints") -> list[str]:
    if not complaints.total:
        return []
    more = complaints.total - len(complaints.first)
    return [
        f"{title}: {complaints.total:,} {what}",
        *(f"  {told}" for told in complaints.first),
        *([f"  … and {more:,} more"] if more else []),
    ]
