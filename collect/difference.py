"""Whether a compiled game is what the stock engine plays: both get the same commands, and must say the same.

The commands are those that a player of one of several temperaments chooses, so that ordinary play, good play and
everything that might bring the two apart are all there.
"""

import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import repeat

from collect.compiled import CompiledGame, CompiledInstance
from collect.environment import Observation
from collect.errors import EnvironmentFault, InputError
from collect.expert import Expert
from collect.games import Game, task_of
from collect.processes import pool
from collect.sas import UnknownForm
from collect.stock import StockInstance
from collect.translation_cache import load_translation

Player = Callable[[Observation], str]  # what it answers to what the game says
_WALK = 60  # most steps from a reset


@dataclass(frozen=True, slots=True)
class Difference:
    """The shortest commands found after which the engines differ, in one field of what they say."""

    commands: tuple[str, ...]
    field: str
    stock: object
    compiled: object

    def __str__(self) -> str:
        said = [f"  > {command!r}" for command in self.commands]
        return "\n".join(
            [*said, f"  {self.field}, stock:    {self.stock!r}", f"  {self.field}, compiled: {self.compiled!r}"]
        )


@dataclass(frozen=True, slots=True)
class Check:
    """What a check gave: steps taken on both engines, how they came to differ, or why they cannot be compared."""

    steps: int
    difference: Difference | None = None
    fault: str | None = None


def check_all(games: Sequence[Game], steps: int, seed: int) -> Iterator[tuple[Game, Check]]:
    """`check` every game, in order, as many at once as there are cores."""
    with pool(min(len(games), len(os.sched_getaffinity(0)))) as processes:
        yield from zip(games, processes.map(check, games, repeat(steps), repeat(seed)), strict=True)


def check(game: Game, steps: int, seed: int) -> Check:
    """Take `steps` steps, the players by turns, each in walks of at most 60 from a reset."""
    try:
        compiled = CompiledInstance(CompiledGame(load_translation(game.path)))
        stock = StockInstance(game.path)
    except (UnknownForm, EnvironmentFault) as error:
        return Check(0, fault=str(error))
    try:
        return compare(stock, compiled, game, steps, seed)
    finally:
        stock.close()


def compare(stock: StockInstance, compiled: CompiledInstance, game: Game, steps: int, seed: int) -> Check:
    """The same for instances that are there already."""
    taken = 0
    try:
        while taken < steps:
            player = _PLAYERS[taken // _WALK % len(_PLAYERS)](game, random.Random(f"{seed}/{game.id}/{taken}"))
            commands, difference = _walk(stock, compiled, player, min(_WALK, steps - taken))
            taken += len(commands)
            if difference is not None:
                return Check(taken, _shortest(stock, compiled, difference))
    except (UnknownForm, EnvironmentFault) as error:
        return Check(taken, fault=str(error))
    return Check(taken)


def replay(stock: StockInstance, compiled: CompiledInstance, commands: Sequence[str]) -> Difference | None:
    """Give both engines these commands from a reset; the first difference, if there is one."""
    owed = iter(commands)
    return _walk(stock, compiled, lambda _: next(owed), len(commands))[1]


def _walk(
    stock: StockInstance, compiled: CompiledInstance, player: Player, most: int
) -> tuple[list[str], Difference | None]:
    """Let a player play on until the engines differ; the commands it gave."""
    commands: list[str] = []
    expected, said = stock.reset(), compiled.reset()
    while expected == said and len(commands) < most:
        commands.append(player(expected))
        expected, said = stock.step(commands[-1]), compiled.step(commands[-1])
    return commands, _difference(commands, expected, said)


def _difference(commands: Sequence[str], expected: Observation, said: Observation) -> Difference | None:
    for (field, stock), compiled in zip(asdict(expected).items(), asdict(said).values(), strict=True):
        if stock != compiled:
            return Difference(tuple(commands), field, stock, compiled)
    return None


def _shortest(stock: StockInstance, compiled: CompiledInstance, difference: Difference) -> Difference:
    """Leave out commands, many at a time and then fewer, as long as the engines still come to differ."""
    size = len(difference.commands) // 2
    while size:
        for start in range(0, len(difference.commands), size):
            commands = difference.commands
            shorter = replay(stock, compiled, commands[:start] + commands[start + size :])
            if shorter is not None:
                difference = shorter
                break
        else:
            size //= 2
    return difference


def _wanderer(game: Game, rng: random.Random) -> Player:
    """Takes any admissible command."""
    return lambda observation: rng.choice(observation.admissible_commands)


def _expert(game: Game, rng: random.Random) -> Player:
    """Plays to win; wanders on when it has, and where the task is beyond it."""
    task = None
    with suppress(InputError):  # no traj_data.json beside it: the text may say it all
        task = task_of(game)
    expert, wander = Expert(task), _wanderer(game, rng)

    def act(observation: Observation) -> str:
        if not observation.won:
            with suppress(ValueError):
                return expert.act(observation.text)
        return wander(observation)

    return act


def _quibbler(game: Game, rng: random.Random) -> Player:
    """Looks again and again, fiddles with doors, and says what was admissible once, nearly is, or never will be."""
    earlier: list[str] = []

    def fiddle(admissible: Sequence[str]) -> str:
        verb = rng.choice(sorted({command.partition(" ")[0] for command in admissible}))
        return rng.choice([command for command in admissible if command.startswith(verb)])

    def misspell(admissible: Sequence[str]) -> str:
        command = rng.choice(admissible)
        return rng.choice([command.upper(), command.title(), f" {command}\t", command.replace(" ", "  "), command[:-1]])

    def stale(admissible: Sequence[str]) -> str:
        return rng.choice(earlier)

    def query(admissible: Sequence[str]) -> str:
        examine = [command for command in admissible if command.startswith("examine")]
        return rng.choice(["look", "inventory", "help", *examine])

    def junk(admissible: Sequence[str]) -> str:
        return rng.choice(
            ["", "go to nowhere 1", "take {o} from {r}", "Nothing happens.", "look\nlook", "l\u00f6\u00f6k", "0"]
        )

    def act(observation: Observation) -> str:
        earlier.extend(observation.admissible_commands)
        (say,) = rng.choices([fiddle, query, stale, misspell, junk], [8, 5, 3, 2, 1])
        return say(observation.admissible_commands)

    return act


_PLAYERS = (_wanderer, _expert, _quibbler)
