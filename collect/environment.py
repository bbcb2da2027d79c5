"""The G instances of a game, whichever engine plays it."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from collect.errors import InputError

ENVIRONMENTS = ("compiled", "stock")


@dataclass(frozen=True, slots=True)
class Observation:
    """What a game says after a reset or a command. `reward` is what this very command earned (0 at a reset)."""

    text: str
    admissible_commands: tuple[str, ...]
    reward: float
    won: bool
    done: bool


class GroupEnvironment(Protocol):
    """The instances 0 to `group_size` - 1 of one game, each isolated from the others, for use in one event loop.

    Calls to different instances may be made at the same time; those to one instance are served in order. A call raises
    `EnvironmentFault` when the game cannot be played on.
    """

    async def reset(self, index: int) -> Observation:
        """Start instance `index` from the beginning of its game."""
        ...

    async def step(self, index: int, command: str) -> Observation:
        """Send one command to instance `index`, which has been reset."""
        ...


class Environments(Protocol):
    """Where groups get their instances from."""

    def open(self, game_path: Path, group_size: int) -> AbstractAsyncContextManager[GroupEnvironment]:
        """The instances of a group, for the time of a block; raises `EnvironmentFault` for a game it cannot play."""
        ...


def open_environments(kind: str, notice: Callable[[str], None]) -> Environments:
    """The environments named by `--environment`; `notice` is told of every game that the compiled one cannot play.

    Raises `InputError` for an unknown name and `MissingDependency` where ALFWorld is not installed.
    """
    from collect.policy import check_installed

    if kind not in ENVIRONMENTS:
        raise InputError(f"--environment {kind}: unknown; choose from {', '.join(ENVIRONMENTS)}")
    check_installed("alfworld", "textworld")
    if kind == "stock":
        from collect.stock_group import StockEnvironments

        return StockEnvironments()
    from collect.compiled_group import CompiledEnvironments

    return CompiledEnvironments(notice)
