"""A generated game with something else in it."""

from pathlib import Path

from collect.games import Game


def altered(game: Game, folder: Path, old: str, new: str) -> Path:
    """The game.tw-pddl in `folder` that is the game's, but for `new` wherever the game has `old`."""
    path = folder / "game.tw-pddl"
    text = game.path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return path
