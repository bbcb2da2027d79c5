"""The G instances of one game, each isolated from the others.

All instances of a group live in one worker process of their own: the engine is not thread-safe, and what it pins (34 MB
of disk and some memory an instance) is given back by the process ending. A worker is forked from a server that has the
engine's modules loaded, so that starting one costs milliseconds. When this process is killed, the workers end too.
"""

import asyncio
import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from collect.errors import EnvironmentFault, MissingDependency

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerProcess

_PRELOADED = ("collect.stock", "textworld.envs.pddl.pddl", "alfworld.agents.environment.alfred_tw_env")

# multiprocessing's own books of its children are not made for several threads.
_processes = threading.Lock()


@dataclass(frozen=True, slots=True)
class Observation:
    """What a game says after a reset or a command. `reward` is what this very command earned (0 at a reset)."""

    text: str
    admissible_commands: tuple[str, ...]
    reward: float
    won: bool
    done: bool


class GroupEnvironment:
    """The instances 0 to `group_size` - 1 of one game, played from an event loop that is never blocked.

    Use it as `async with GroupEnvironment(path, 8) as environment:`. Calls are served one at a time, in the order in
    which they were asked for, each within `deadline` seconds of its turn. Every call raises EnvironmentFault when the
    game cannot be loaded or played, or its worker died or overran the deadline; a worker that did is not replaced.
    An instance is loaded at its first reset.
    """

    def __init__(self, game_path: Path, group_size: int, *, deadline: float = 120.0) -> None:
        self._path = game_path
        self._size = group_size
        self._deadline = deadline
        self._begun: set[int] = set()
        self._closed = False
        # Ctrl-C is the main thread's affair; what this thread starts inherits that, and is not torn down half-way.
        self._thread = ThreadPoolExecutor(1, "environment", initializer=_leave_interrupts)

    async def reset(self, index: int) -> Observation:
        """Start instance `index` from the beginning of its game."""
        if not 0 <= index < self._size:
            raise IndexError(f"instance {index} of a group of {self._size}")
        self._begun.add(index)
        return await self._call("reset", index)

    async def step(self, index: int, command: str) -> Observation:
        """Send one command to instance `index`, which has been reset."""
        if index not in self._begun:
            raise ValueError(f"instance {index} was not reset")
        return await self._call("step", index, command)

    async def close(self) -> None:
        """End the worker at once, even amid a call, and remove its temporary folder. Closing twice does nothing."""
        if self._closed:
            return
        self._closed = True
        self._worker.kill()
        # Queued behind the calls that were asked for, which all fail now; not given up when the caller is cancelled.
        await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._thread, self._clear))
        self._thread.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        if find_spec("alfworld") is None:
            raise MissingDependency("ALFWorld", "pip install 'selective-rollout[collect]'")
        start = asyncio.get_running_loop().run_in_executor(self._thread, self._start)
        try:
            await asyncio.shield(start)
        except asyncio.CancelledError:
            with suppress(EnvironmentFault):
                await start
                await self.close()
            raise
        except EnvironmentFault:
            self._thread.shutdown(wait=False)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _call(self, method: str, index: int, *arguments: str) -> Observation:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._ask, method, index, *arguments)

    # What follows runs in the group's own thread.

    def _start(self) -> None:
        resource_tracker.ensure_running()  # on some Pythons it unblocks SIGINT in the thread that starts it
        _leave_interrupts()
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(_PRELOADED))
        try:
            self._folder = Path(tempfile.mkdtemp(prefix="sr-game-"))
        except OSError as error:
            raise EnvironmentFault(f"{self._path}: no temporary folder for the game: {error}") from error
        try:
            self._pipe, workers_end = context.Pipe()
            with workers_end, _processes:
                self._worker: ForkServerProcess = context.Process(
                    target=_serve, args=(workers_end, self._path.resolve(), self._folder), daemon=True
                )
                self._worker.start()
        except OSError as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise EnvironmentFault(f"{self._path}: no process could be started for the game: {error}") from error

    def _ask(self, method: str, index: int, *arguments: str) -> Observation:
        doing = f"{self._path}: instance {index}, {method} {' '.join(map(repr, arguments))}".rstrip()
        try:
            self._pipe.send((method, index, *arguments))
            if not self._pipe.poll(self._deadline):
                self._worker.kill()
                raise EnvironmentFault(f"{doing}: no answer in {self._deadline:g} s")
            answer = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise EnvironmentFault(f"{doing}: the game's process died ({self._cause_of_death()})") from error
        if isinstance(answer, str):
            raise EnvironmentFault(answer)
        assert isinstance(answer, Observation)
        return answer

    def _cause_of_death(self) -> str:
        code = self._join()
        cause = f"exit code {code}"
        if code is not None and code < 0:
            cause = signal.Signals(-code).name
        said = _log(self._folder).read_text(errors="replace").split("\n") if _log(self._folder).exists() else []
        last = next((line.strip() for line in reversed(said) if line.strip()), "")
        return f"{cause}: {last[:200]}" if last else cause

    def _join(self) -> int | None:
        with _processes:
            self._worker.join(10)
            return self._worker.exitcode

    def _clear(self) -> None:
        self._join()
        self._pipe.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _leave_interrupts() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def _log(folder: Path) -> Path:
    return folder / "log"


# What follows runs in the worker.


def _serve(pipe: Connection, game_path: Path, folder: Path) -> None:
    """Answer requests (method, index, argument…) with an Observation, or with a text that says what went wrong."""
    # A signal sent to the whole process group is the parent's to handle; its end is this process's end.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    tempfile.tempdir = str(folder)
    # The engine and its C++ library must not write into the progress bar.
    log = os.open(_log(folder), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    threading.Thread(target=_end_with_parent, args=(folder,), daemon=True).start()

    from collect.stock import StockInstance

    instances: dict[int, StockInstance] = {}
    while True:
        method, index, *arguments = pipe.recv()
        try:
            if index not in instances:
                instances[index] = StockInstance(game_path)
            pipe.send(getattr(instances[index], method)(*arguments))
        except EnvironmentFault as fault:
            pipe.send(str(fault))
        except BaseException as error:  # the planner's translator leaves by SystemExit
            pipe.send(f"{game_path}: {method} failed: {type(error).__name__}: {error}")


def _end_with_parent(folder: Path) -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)
