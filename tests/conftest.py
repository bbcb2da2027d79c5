"""Parts that are dear to make and shared by many tests: the small policy, the shared game, generated games."""

from pathlib import Path

import pytest

from collect.games import Game, find_games
from collect.policy import Policy, find_policy

SHARED = Path(__file__).parents[2] / "shared"
GENERATED = {"train": 6, "valid_seen": 2, "valid_unseen": 2}


@pytest.fixture(scope="session")
def small_policy() -> Policy:
    """The default small model with its adapter."""
    return find_policy("SmolLM2-135M-Instruct")


@pytest.fixture(scope="session")
def real_game() -> Path:
    """A game of ALFWorld's own data set: heat a potato and put it in the sink basin."""
    path = SHARED / "alfworld" / "game.tw-pddl"
    if not path.is_file():
        pytest.skip("ALFWorld's own game is not beside this repository (../shared/alfworld)")
    return path


@pytest.fixture(scope="session")
def games_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of generated games, one of each task type in train, two in each other split; about 10 s, once."""
    from collect.generator import make_games

    root = tmp_path_factory.mktemp("games") / "root"
    make_games(root, GENERATED)
    return root


@pytest.fixture(scope="session")
def six_games(games_root: Path) -> list[Game]:
    """One generated game of each task type."""
    return find_games("train", games_root)
