"""One game on the stock TextWorld engine, in this process: the reference that every other engine is held against.

The text, commands, reward and ending are exactly those of ALFWorld's own `AlfredTWEnv` (`alfworld.agents.environment`):
the same wrappers over the same `PddlEnv`. Three things about the engine differ, none visible in a game:

- TextWorld translates a game's PDDL four times before its first step, and again at every reset. Here each of the two
  translations (as is, and optimized for the planner) is made once and remembered for a few games, which is most of what
  a reset costs.
- The grammar's small expressions are read by `collect.expression` instead of `eval`, which also makes them work on
  Python 3.13, where TextWorld's own way of passing them their variables does nothing.
- `sys.argv`, which the PDDL translator overwrites, is put back.

The translator swaps `sys.stdout` while it runs and the parsers are module globals: an instance is not thread-safe; play
several games at once in several processes.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from collect.environment import Observation
from collect.errors import EnvironmentFault
from collect.expression import evaluate

_REMEMBERED = 4  # games whose translations are kept, about 4 MB each

# Copies of the planner library that closed instances left. They are kept because they cannot be unloaded: the handlers
# that the library has registered for the end of the process would crash it.
_idle_libraries: list[Any] = []


class StockInstance:
    """One instance of one game. A process takes about 0.6 s to load its first and 0.1 s to load the next of the same
    game; a reset takes 0.1 s, a step 50 ms.

    It shares nothing with another open instance, of the same game or another: its copy of the planner library, its
    demangler and its state are its own. Close it, so that the next can take over the library and the 34 MB it pins.

    Raises `EnvironmentFault` where TextWorld cannot load or play the game.
    """

    def __init__(self, game_path: Path) -> None:
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler, AlfredInfos
        from fast_downward import load_lib
        from textworld import EnvInfos

        _adapt_engine()
        self._path = game_path
        self._library = _idle_libraries.pop() if _idle_libraries else load_lib()
        infos = EnvInfos(won=True, admissible_commands=True, extras=["gamefile"])
        self._env = AlfredInfos(AlfredDemangler(_engine(infos, self._library), shuffle=False))
        self._score = 0.0
        with self._faults("load"):
            self._env.load(str(game_path))

    def reset(self) -> Observation:
        """Start the game from its beginning: the room, and the task in the text's last line."""
        with self._faults("reset"):
            state = self._env.reset()
        self._score = 0.0
        return _observation(state, reward=0.0, done=False)

    def step(self, command: str) -> Observation:
        """Send one command; what the game does not admit is answered by "Nothing happens." and changes nothing."""
        with self._faults(f"step {command!r}"):
            state, score, done = self._env.step(command)
        reward, self._score = float(score) - self._score, float(score)
        return _observation(state, reward, bool(done))

    def close(self) -> None:
        """Leave the planner library to the next instance; this one is of no use afterwards. Twice does nothing."""
        if self._library is not None:
            self._library.cleanup()
            _idle_libraries.append(self._library)
            self._library = self._env = None

    @contextmanager
    def _faults(self, doing: str) -> Iterator[None]:
        """Classify whatever TextWorld raises, and undo what its translator does to `sys.argv`."""
        arguments = sys.argv
        try:
            yield
        except (Exception, SystemExit) as error:  # the translator leaves by SystemExit
            raise EnvironmentFault(f"{self._path}: {doing} failed: {type(error).__name__}: {error}") from error
        finally:
            sys.argv = arguments


def _engine(infos: Any, library: Any) -> Any:
    """A `PddlEnv` on a copy of the planner library that is loaded already."""
    from textworld.envs.pddl.pddl import PddlEnv

    engine = PddlEnv.__new__(PddlEnv)
    super(PddlEnv, engine).__init__(infos)
    engine.downward_lib = library
    return engine


@cache
def _adapt_engine() -> None:
    """Put in place what the module's head describes."""
    import fast_downward
    from textworld.envs.pddl.textgen import EvalSymbol

    EvalSymbol.derive = _derive
    fast_downward.pddl2sas = lru_cache(maxsize=2 * _REMEMBERED)(fast_downward.pddl2sas)


def _observation(state: Mapping[str, Any], reward: float, done: bool) -> Observation:
    return Observation(state["feedback"], tuple(state["admissible_commands"]), reward, bool(state["won"]), done)


def _derive(symbol: Any, context: Mapping[str, Any] | None = None) -> list[Any]:
    """What TextWorld's `EvalSymbol.derive` does, without `eval`."""
    from textworld.envs.pddl.textgen import TerminalSymbol

    return [TerminalSymbol(evaluate(symbol.expression, (context or symbol.context)["variables"]))]
