"""Command: sr warmstart."""

from pathlib import Path
from typing import Annotated

import typer

from collect.options import Debug, Quiet


def warmstart(
    out: Annotated[
        Path,
        typer.Argument(metavar="OUT", help="Folder for games, lessons and adapter; one begun the same way goes on."),
    ],
    games: Annotated[int, typer.Option(min=1, help="Games of the train split to make and learn from.")] = 400,
    model: Annotated[
        str | None, typer.Option(help="Folder or hub name of the base model; by default the small one.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seeds the games, the order of lessons and the first weights.")] = 2026,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Train the default small policy's adapter: supervised lessons from an expert that sees only the text.

    Makes games, has the expert play them on the real engine, and fits a LoRA adapter to its commands. About 40 minutes
    on two CPU cores that do nothing else.
    """
    from collect.policy import SMALL_MODEL, find_policy
    from collect.progress import counted
    from train.warmstart import Recipe, warm_start

    policy = find_policy(model or SMALL_MODEL, "none")
    recipe = Recipe(games=games, seed=seed)
    adapter = warm_start(policy, recipe, out, lambda label, unit: counted(label, unit, quiet=quiet))
    typer.echo(f"wrote {adapter}; try it: sr collect --adapter {adapter}")
