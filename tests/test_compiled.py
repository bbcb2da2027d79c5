"""The compiled game, held against the stock engine."""

import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from collect import compiled as compiled_module
from collect.compiled import CompiledGame, CompiledInstance, State
from collect.difference import compare, replay
from collect.environment import Observation
from collect.games import Game, game_at, read_game_file
from collect.stock import StockInstance
from collect.translation_cache import load_translation

pytest.importorskip("alfworld", reason="needs the collect extra: pip install 'selective-rollout[collect]'")

STEPS = int(os.environ.get("SR_DIFFERENTIAL_STEPS", "75"))  # a game; benchmarks/environment.py takes many more


def compiled_game(path: Path) -> CompiledGame:
    return CompiledGame(load_translation(path))


@pytest.fixture
def stock() -> Iterator[list[StockInstance]]:
    """A list for stock instances, which are closed after the test."""
    instances: list[StockInstance] = []
    yield instances
    for instance in instances:
        instance.close()


@pytest.mark.parametrize("number", range(6))
def test_generated_games_play_as_on_the_stock_engine(
    six_games: list[Game], number: int, stock: list[StockInstance]
) -> None:
    game = six_games[number]
    stock.append(StockInstance(game.path))
    result = compare(stock[0], CompiledInstance(compiled_game(game.path)), game, STEPS, seed=0)
    assert (result.steps, result.difference, result.fault) == (STEPS, None, None), str(result.difference)


def test_a_game_of_alfworlds_own_plays_as_on_the_stock_engine(real_game: Path, stock: list[StockInstance]) -> None:
    stock.append(StockInstance(real_game))
    compiled = CompiledInstance(compiled_game(real_game))
    result = compare(stock[0], compiled, game_at(real_game), 2 * STEPS, seed=0)
    assert (result.steps, result.difference, result.fault) == (2 * STEPS, None, None), str(result.difference)


def test_texts_that_depend_on_the_way_to_a_state_are_the_same(real_game: Path, stock: list[StockInstance]) -> None:
    """What was once taken from a receptacle is, for TextWorld's texts, something that is not in it.

    The coffee machine and the countertop share a place. A mug that has been on the countertop and is put on the machine
    is then something else that lies at that place, which it is not where it has been on the machine all along.
    """
    around = ["go to coffeemachine 1", "take mug 2 from coffeemachine 1", "move mug 2 to coffeemachine 1", "look"]
    detour = ["take mug 2 from coffeemachine 1", "move mug 2 to countertop 2", "look"]
    back = ["take mug 2 from countertop 2", "move mug 2 to coffeemachine 1", "look"]
    stock.append(StockInstance(real_game))
    compiled = CompiledInstance(compiled_game(real_game))
    assert replay(stock[0], compiled, [*around, *detour, *back]) is None
    compiled.reset()
    texts = [compiled.step(command).text for command in [*around, *detour, *back]]
    place = "You are facing the coffeemachine 1, and countertop 2. Next to it, you see "
    assert [texts[3], texts[-1]] == [f"{place}nothing.", f"{place}a mug 2."]


def test_the_walkthrough_wins_and_only_its_last_command_is_rewarded(six_games: list[Game]) -> None:
    for game in six_games:
        instance = CompiledInstance(compiled_game(game.path))
        seen = [instance.reset(), *map(instance.step, read_game_file(game.path).walkthrough or ())]
        assert [o.reward for o in seen] == [0.0] * (len(seen) - 1) + [1.0]
        assert [o.won for o in seen] == [o.done for o in seen] == [False] * (len(seen) - 1) + [True]


def wander(instance: CompiledInstance, seed: int, steps: int = 40) -> list[Observation]:
    rng = random.Random(seed)
    seen = [instance.reset()]
    for _ in range(steps):
        seen.append(instance.step(rng.choice([*seen[-1].admissible_commands, "sing"])))
    return seen


def test_instances_of_a_game_share_its_states_and_nothing_else(six_games: list[Game]) -> None:
    game = compiled_game(six_games[0].path)
    alone = [wander(CompiledInstance(compiled_game(six_games[0].path)), seed) for seed in range(3)]
    together = [CompiledInstance(game) for _ in range(3)]
    assert [wander(instance, seed) for seed, instance in enumerate(together)] == alone
    (one, other) = (game.step(game.start, "look") for _ in range(2))
    assert one[0] is other[0]


def test_many_threads_may_play_one_game(six_games: list[Game]) -> None:
    game = compiled_game(six_games[1].path)
    expected = [wander(CompiledInstance(compiled_game(six_games[1].path)), seed) for seed in range(16)]
    with ThreadPoolExecutor(8) as threads:
        seen = list(threads.map(lambda seed: wander(CompiledInstance(game), seed), range(16)))
    assert seen == expected


def test_states_beyond_the_most_that_are_kept_are_found_anew(
    six_games: list[Game], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = wander(CompiledInstance(compiled_game(six_games[0].path)), 0)
    monkeypatch.setattr(compiled_module, "_MOST_STATES", 3)
    game = compiled_game(six_games[0].path)
    assert wander(CompiledInstance(game), 0) == expected
    assert len(game._states) <= 3


def test_states_that_are_not_kept_are_let_go_by_the_first_one_too(
    six_games: list[Game], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_module, "_MOST_STATES", 20)
    game = compiled_game(six_games[0].path)
    states = set()
    for seed in range(20):
        wander(CompiledInstance(game), seed)
        states |= {(state.planner, state.facts) for state in reachable(game.start)}
    assert len(states) > 2 * 20
    assert len(list(reachable(game.start))) <= 20


def reachable(start: State) -> Iterator[State]:
    seen, open_ = {id(start)}, [start]
    while open_:
        state = open_.pop()
        yield state
        following = [after for after, _ in state.transitions.values() if id(after) not in seen]
        seen |= {id(after) for after in following}
        open_ += {id(after): after for after in following}.values()
