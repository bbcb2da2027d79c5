"""Commands: sr games."""

import typer

games_app = typer.Typer(help="Make, list and check ALFWorld games.", no_args_is_help=True)
