import asyncio
import sys
from pathlib import Path

import pytest
from altered_game import altered

from collect.compiled_group import CompiledEnvironments, GameLibrary
from collect.environment import Environments, Observation, open_environments
from collect.errors import EnvironmentFault, InputError, MissingDependency
from collect.games import Game, read_game_file

pytest.importorskip("alfworld", reason="needs the collect extra: pip install 'selective-rollout[collect]'")


def no_notice(text: str) -> None:
    raise AssertionError(text)


async def play(environments: Environments, path: Path, commands: tuple[str, ...]) -> list[Observation]:
    async with environments.open(path, 2) as group:
        return [await group.reset(1), *[await group.step(1, command) for command in commands]]


@pytest.mark.parametrize("kind", ["compiled", "stock"])
def test_each_kind_plays_a_game_to_its_end(six_games: list[Game], kind: str) -> None:
    walkthrough = read_game_file(six_games[0].path).walkthrough or ()
    seen = asyncio.run(play(open_environments(kind, no_notice), six_games[0].path, walkthrough))
    assert [o.won for o in seen] == [False] * len(walkthrough) + [True]


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(InputError, match="--environment quick: unknown; choose from compiled, stock"):
        open_environments("quick", no_notice)


def test_without_alfworld_the_install_command_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "alfworld", None)
    with pytest.raises(MissingDependency, match=r'pip install "selective-rollout\[collect\]"'):
        open_environments("compiled", no_notice)


def test_a_game_whose_commands_are_ambiguous_is_played_on_the_stock_engine_with_one_notice(
    six_games: list[Game], tmp_path: Path
) -> None:
    """Every place is gone to by the same words: which one is meant, only the stock engine's order says."""
    path = altered(six_games[0], tmp_path, "go to [{r.name | receptacleatlocation(r:receptacle, lend:location)}]", "go")
    notices: list[str] = []
    environments = CompiledEnvironments(notices.append)

    seen = [asyncio.run(play(environments, path, ("go",))) for _ in range(2)]

    assert seen[0] == seen[1]
    assert seen[0][1].text.startswith("You arrive at")
    (notice,) = notices
    assert notice.startswith(f"{path}: cannot be compiled ('go' is both (gotolocation agent1")
    assert "stock engine" in notice


def test_a_game_that_turns_out_ambiguous_on_the_way_is_a_fault_and_then_played_on_the_stock_engine(
    six_games: list[Game], tmp_path: Path
) -> None:
    """What lies on something open is taken by the words that look at it."""
    path = altered(six_games[0], tmp_path, "take {o} from {r}", "examine {r}")
    notices: list[str] = []
    environments = CompiledEnvironments(notices.append)
    tour = tuple(command for command in _first_commands(path) if command.startswith("go to"))

    with pytest.raises(EnvironmentFault, match=r"'examine .*' is both"):
        asyncio.run(play(environments, path, tour))
    seen = asyncio.run(play(environments, path, tour))

    assert all(observation.text.startswith("You arrive at") for observation in seen[1:])
    assert len(notices) == 1


def _first_commands(path: Path) -> tuple[str, ...]:
    return GameLibrary().get(path).start.admissible_commands


def test_a_library_loads_a_game_once_and_keeps_the_last_used(six_games: list[Game]) -> None:
    library = GameLibrary(most=2)
    one, two, three = (game.path for game in six_games[:3])
    first, second = library.get(one), library.get(two)
    assert library.get(one) is first
    library.get(three)  # in place of the second, which was not used the longest
    assert library.get(one) is first
    assert library.get(two) is not second


def test_a_game_that_could_not_be_loaded_is_tried_again(six_games: list[Game], tmp_path: Path) -> None:
    path = tmp_path / "game.tw-pddl"
    library = GameLibrary()
    with pytest.raises(EnvironmentFault, match="unreadable"):
        library.get(path)
    path.write_bytes(six_games[0].path.read_bytes())
    assert library.get(path).opening.startswith("-= Welcome to TextWorld")


def test_the_event_loop_goes_on_while_a_game_is_loaded(
    six_games: list[Game], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    async def main() -> int:
        playing = asyncio.ensure_future(play(CompiledEnvironments(no_notice), six_games[0].path, ("look",)))
        turns = 0
        while not playing.done():
            await asyncio.sleep(0.01)
            turns += 1
        return turns

    assert asyncio.run(main()) > 5
