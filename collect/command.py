"""Commands: sr games."""

from pathlib import Path
from typing import Annotated

import typer

from collect.errors import InputError
from collect.options import Debug, Quiet

games_app = typer.Typer(help="Make and list ALFWorld games.", no_args_is_help=True)


@games_app.command("make")
def make(
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="Folder for the games; one made by the same command is completed.")
    ],
    train: Annotated[int, typer.Option(min=0, help="Games of the train split.")] = 120,
    valid_seen: Annotated[int, typer.Option(min=0, help="Other games in the rooms of the train split.")] = 60,
    valid_unseen: Annotated[int, typer.Option(min=0, help="Games in rooms that no other split has.")] = 60,
    seed: Annotated[int, typer.Option(help="The same seed gives the same games, byte for byte.")] = 0,
    share: Annotated[
        list[str] | None,
        typer.Option(metavar="TYPE=SHARE", help="Share of a task type, repeatable; the others share the rest alike."),
    ] = None,
    receptacles: Annotated[
        str,
        typer.Option(help="Most receptacles of a type in a room, by turns, separated by commas; `all` for no limit."),
    ] = "4,8,all",
    targets: Annotated[int, typer.Option(min=1, help="Most instances of the wanted object; fewer are harder.")] = 1,
    instances: Annotated[int, typer.Option(min=1, help="Most instances of any other type of object.")] = 2,
    absent: Annotated[float, typer.Option(help="Probability that a room lacks a type of object it could hold.")] = 0.25,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Make ALFWorld games in ALFWorld's own layout, each played and won before it is shipped."""
    from collect.generator import make_games
    from collect.progress import counted
    from collect.recipe import Difficulty, Recipe, full_shares

    counts = {"train": train, "valid_seen": valid_seen, "valid_unseen": valid_unseen}
    if not any(counts.values()):
        raise InputError("no games asked for; give --train, --valid-seen or --valid-unseen a number above 0")
    caps = [_cap(cap) for cap in receptacles.split(",")]
    recipe = Recipe(
        seed=seed,
        shares=full_shares(dict(_share(text) for text in share or [])),
        difficulties=tuple(Difficulty(cap, targets, instances, absent) for cap in caps),
    )
    with counted(f"making games in {out}", "games", quiet=quiet) as progress:
        make_games(out, counts, recipe, progress=progress)
    if not quiet:
        list_(out)


@games_app.command("list")
def list_(
    games: Annotated[
        Path | None,
        typer.Option(help="Folder of games; by default the downloaded ones, else those made in the user's cache."),
    ] = None,
    debug: Debug = False,
) -> None:
    """Count the games that are found, by split and task type, and say where."""
    from rich.console import Console
    from rich.table import Table

    from collect.games import TASK_TYPES, find_sources, read_games

    sources = find_sources(games)
    if not sources:
        typer.echo("no games yet: `sr games make FOLDER` makes any number; what needs games makes some at first use")
        return
    found = {split or "games": read_games(source.folder, split) for split, source in sources.items()}
    table = Table("task type")
    for split in found:
        table.add_column(split, justify="right")
    for task_type in TASK_TYPES:
        counts = (sum(game.task_type == task_type for game in split_games) for split_games in found.values())
        table.add_row(task_type, *map(str, counts))
    table.add_row("all", *(str(len(split_games)) for split_games in found.values()))
    Console().print(table)
    for split, source in zip(found, sources.values(), strict=True):
        typer.echo(f"{split}: {source.origin}, {source.folder}")


def _share(text: str) -> tuple[str, float]:
    task_type, _, share = text.partition("=")
    try:
        return task_type, float(share)
    except ValueError:
        raise InputError(f"--share {text}: write TYPE=SHARE, such as pick_two_obj_and_place=0.5") from None


def _cap(text: str) -> int | None:
    if text.strip() == "all":
        return None
    if not text.strip().isdecimal():
        raise InputError(f"--receptacles: {text!r} is neither a number nor `all`; write such as 4,8,all")
    return int(text)
