"""What brings a compiled game and the stock engine apart is found, cut short and told."""

from pathlib import Path

import pytest
from altered_game import altered
from user import sr

from collect.compiled import CompiledGame, CompiledInstance
from collect.difference import compare
from collect.games import Game
from collect.stock import StockInstance
from collect.translation_cache import load_translation

pytest.importorskip("alfworld", reason="needs the collect extra: pip install 'selective-rollout[collect]'")


@pytest.mark.parametrize(
    ("old", "new", "field", "length"),
    [
        ("You are not carrying anything.", "Your hands are empty.", "text", 1),
        ("You open the", "You fling open the", "text", 2),  # one has to go there first
        ("go to [{r.name", "walk to [{r.name", "admissible_commands", 0),
    ],
)
def test_a_difference_is_shown_by_the_shortest_commands(
    six_games: list[Game], tmp_path: Path, old: str, new: str, field: str, length: int
) -> None:
    game = six_games[0]
    stock = StockInstance(game.path)
    other = CompiledInstance(CompiledGame(load_translation(altered(game, tmp_path, old, new))))

    difference = compare(stock, other, game, 300, seed=0).difference

    stock.close()
    assert difference is not None
    assert (difference.field, len(difference.commands)) == (field, length)
    assert all(command in str(difference) for command in difference.commands)


def test_verify_says_how_much_was_compared(games_root: Path) -> None:
    result = sr("games", "verify", games_root / "valid_seen", "--steps", "20")
    assert result.returncode == 0
    assert "40 steps in 2 games: 0 games differ, 0 could not be compared" in result.stdout


def test_verify_takes_a_single_game_and_tells_which_cannot_be_compared(six_games: list[Game], tmp_path: Path) -> None:
    path = altered(six_games[0], tmp_path, "{r.name}", "{r.name.upper()}")
    result = sr("games", "verify", path, "--steps", "20")
    assert result.returncode == 0
    assert "not compared: the grammar holds an expression that is not text: r.name.upper()" in result.stdout
    assert "0 steps in 1 games: 0 games differ, 1 could not be compared" in result.stdout


def test_verify_refuses_what_is_no_game(tmp_path: Path) -> None:
    (tmp_path / "game.tw-pddl").write_text("{}")
    for path in (tmp_path / "nowhere", tmp_path / "game.tw-pddl"):
        result = sr("games", "verify", path)
        assert result.returncode == 2
        assert str(path) in result.stderr
