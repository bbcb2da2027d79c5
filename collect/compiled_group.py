"""The G instances of one game, compiled: as many positions in one shared game, in this process.

A step is a look-up or a tenth of a millisecond, so it is taken in the event loop itself; loading a game is a matter for
a thread. A game that cannot be compiled is played on the stock engine.
"""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from pathlib import Path

from collect.compiled import Ambiguous, CompiledGame, CompiledInstance
from collect.environment import GroupEnvironment, Observation
from collect.errors import EnvironmentFault
from collect.sas import UnknownForm
from collect.stock_group import StockGroup
from collect.translation_cache import load_translation

_MOST_GAMES = 64  # kept in memory, 5 to 30 MB each


class CompiledEnvironments:
    """Every group on a compiled game, shared by all groups; `notice` is told of each game that cannot be compiled."""

    def __init__(self, notice: Callable[[str], None]) -> None:
        self._notice = notice
        self._games = GameLibrary()
        self._not_compiled: set[Path] = set()

    @asynccontextmanager
    async def open(self, game_path: Path, group_size: int) -> AsyncIterator[GroupEnvironment]:
        """The instances of a group; see `collect.environment`."""
        game = await self._compiled(game_path)
        if game is None:
            async with StockGroup(game_path, group_size) as group:
                yield group
        else:
            yield CompiledGroup(game, group_size, lambda why: self._give_up(game_path, why))

    async def _compiled(self, game_path: Path) -> CompiledGame | None:
        if game_path in self._not_compiled:
            return None
        try:
            return await asyncio.to_thread(self._games.get, game_path)
        except UnknownForm as error:
            self._give_up(game_path, str(error))
            return None

    def _give_up(self, game_path: Path, why: str) -> None:
        if game_path not in self._not_compiled:
            self._not_compiled.add(game_path)
            self._notice(f"{game_path}: cannot be compiled ({why}); it is played on the stock engine, which is slower")


class CompiledGroup:
    """The instances of one group; `give_up` is told why, should the game turn out to be none that can be compiled."""

    def __init__(self, game: CompiledGame, group_size: int, give_up: Callable[[str], None]) -> None:
        self._instances = [CompiledInstance(game) for _ in range(group_size)]
        self._give_up = give_up

    async def reset(self, index: int) -> Observation:
        """Start instance `index` from the beginning of its game."""
        return self._instances[index].reset()

    async def step(self, index: int, command: str) -> Observation:
        """Send one command to instance `index`."""
        try:
            return self._instances[index].step(command)
        except Ambiguous as error:
            # The next attempt at the group, from its beginning, is on the stock engine.
            self._give_up(str(error))
            raise EnvironmentFault(f"not a game that can be compiled: {error}") from error


class GameLibrary:
    """Compiled games by path, the last used ones kept. Any number of threads may ask; a game is loaded once."""

    def __init__(self, most: int = _MOST_GAMES) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._games: OrderedDict[Path, Future[CompiledGame]] = OrderedDict()

    def get(self, game_path: Path) -> CompiledGame:
        """The game, loaded now if need be. Raises what `load_translation` raises."""
        with self._lock:
            future, ours = self._games.get(game_path), False
            if future is None:
                future, ours = Future(), True
                self._games[game_path] = future
                if len(self._games) > self._most:
                    self._games.popitem(last=False)
            self._games.move_to_end(game_path)
        if ours:
            try:
                future.set_result(CompiledGame(load_translation(game_path)))
            except BaseException as error:
                with self._lock:
                    self._games.pop(game_path, None)
                future.set_exception(error)
        return future.result()
