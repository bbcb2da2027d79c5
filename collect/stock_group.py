"""The G instances of one game on the stock engine, each in a process of its own.

A group is started at the cost of one instance: its worker process loads the game and resets it once, then forks a
process for each instance. These share the worker's memory until they write to it, step at the same time, and end with
it. The first reset of an instance is answered from what the worker saw; a later one is a real reset.

Who ends whom. A worker holds one end of a socket, its leash; when the other end is let go of, because the group is
closed or this process was killed, it ends its instances and removes the temporary folder. A worker that does not is
killed, and the kernel kills its instances with it.
"""

import asyncio
import json
import shutil
import socket
import tempfile
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, cast

from collect.environment import Observation
from collect.errors import EnvironmentFault
from collect.processes import join, leave_interrupts, start
from collect.worker import death, encode, serve

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerProcess

_GRACE_SECONDS = 2.0  # for a worker to end by itself
_END_SECONDS = 10.0  # for its processes to let go of the leash


class StockEnvironments:
    """Every group on the stock engine."""

    def open(self, game_path: Path, group_size: int) -> "StockGroup":
        """The instances of a group; see `collect.environment`."""
        return StockGroup(game_path, group_size)


class StockGroup:
    """The instances 0 to `group_size` - 1 (at most 200) of one game, played from an event loop that is never blocked.

    Use it as `async with StockGroup(path, 8) as environment:`. Calls to different instances are served at the
    same time; calls to one instance one by one, in the order in which they were asked for, each within `deadline`
    seconds of its turn. A call raises EnvironmentFault when the game cannot be loaded or played, when the instance's
    process or the group's worker died, or when it overran the deadline, which ends the whole group. What has failed
    once fails ever after.
    """

    def __init__(self, game_path: Path, group_size: int, *, deadline: float = 120.0) -> None:
        self._path = game_path
        self._lines = [_Line(deadline, self._kill) for _ in range(group_size)]
        self._begun: set[int] = set()
        self._closed = False
        self._worker: ForkServerProcess | None = None
        self._exit_code: int | None = None
        self._folder: Path | None = None
        self._cleanup = ExitStack()
        # Ctrl-C is the main thread's affair; what this thread starts inherits that, and is not torn down half-way.
        self._thread = ThreadPoolExecutor(1, "environment", initializer=leave_interrupts)

    async def reset(self, index: int) -> Observation:
        """Start instance `index` from the beginning of its game."""
        if not 0 <= index < len(self._lines):
            raise IndexError(f"instance {index} of a group of {len(self._lines)}")
        self._begun.add(index)
        return await self._call(index, "reset")

    async def step(self, index: int, command: str) -> Observation:
        """Send one command to instance `index`, which has been reset."""
        if index not in self._begun:
            raise ValueError(f"instance {index} was not reset")
        return await self._call(index, "step", command)

    async def close(self) -> None:
        """End the worker and its instances at once, even amid a call, and remove their temporary folder.

        Closing twice does nothing. When the caller is cancelled meanwhile, it is done all the same.
        """
        if self._closed:
            return
        self._closed = True
        for line in self._lines:
            line.hang_up()
        # Queued behind a start that is under way.
        end = asyncio.get_running_loop().run_in_executor(self._thread, self._cleanup.close)
        try:
            await asyncio.shield(end)
        finally:
            self._thread.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        try:
            await self._open()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _open(self) -> None:
        try:
            ends = [self._cleanup.enter_context(await line.lay()) for line in self._lines]
            await asyncio.get_running_loop().run_in_executor(self._thread, self._start, ends)
        except OSError as error:
            raise EnvironmentFault(f"{self._path}: no process could be started for the game: {error}") from error

    async def _call(self, index: int, method: str, *arguments: str) -> Observation:
        if self._closed:
            raise ValueError("the environment is closed")
        answer = await self._lines[index].ask(method, *arguments)
        if isinstance(answer, Observation):
            return answer
        doing = f"instance {index}, {method} {' '.join(map(repr, arguments))}".rstrip()
        what = answer.what
        if what is None and self._closed:
            what = "closed amid the call"
        elif what is None:
            what = await asyncio.get_running_loop().run_in_executor(self._thread, self._death)
        raise EnvironmentFault(f"{self._path}: {doing}: {what}")

    def _kill(self) -> None:
        assert self._worker is not None
        with suppress(ValueError):  # it was seen dead, and is closed
            self._worker.kill()

    # What follows runs in the group's own thread.

    def _start(self, ends: list[socket.socket]) -> None:
        with ExitStack() as given:
            for end in ends:
                given.enter_context(end)
            try:
                self._folder = Path(tempfile.mkdtemp(prefix="sr-game-"))
            except OSError as error:
                raise EnvironmentFault(f"{self._path}: no temporary folder for the game: {error}") from error
            self._cleanup.callback(shutil.rmtree, self._folder, ignore_errors=True)
            own, leash = socket.socketpair()
            given.enter_context(leash)
            self._cleanup.callback(_wait_for_all, own)
            self._worker = start(serve, ends, leash, self._path.resolve(), self._folder)
            self._cleanup.callback(self._end, own)

    def _death(self) -> str:
        assert self._folder is not None
        return death(self._join(), self._folder)

    def _end(self, own: socket.socket) -> None:
        assert self._worker is not None
        if self._exit_code is None:
            own.shutdown(socket.SHUT_WR)
            if not wait([self._worker.sentinel], _GRACE_SECONDS):
                self._worker.kill()
            self._join()

    def _join(self) -> int | None:
        """Wait for the worker, which is ending; its exit code, None when it does not end."""
        assert self._worker is not None
        if self._exit_code is None:
            self._exit_code = join(self._worker)
        return self._exit_code


@dataclass(frozen=True, slots=True)
class _Fault:
    """Why an instance answers no more; without words: its line broke, because the group's worker ended."""

    what: str | None


class _Line(asyncio.Protocol):
    """The line to one instance. Messages are lines of JSON, answered in the order of asking; a fault is the last."""

    def __init__(self, deadline: float, overran: Callable[[], None]) -> None:
        self._deadline = deadline
        self._overran = overran
        self._transport: asyncio.Transport | None = None
        self._asked: deque[asyncio.Future[Observation | _Fault]] = deque()
        self._rest = b""
        self._fault: _Fault | None = None
        self._clock: asyncio.TimerHandle | None = None

    async def lay(self) -> socket.socket:
        """Connect this end, and return the other, which is the worker's."""
        own, workers = socket.socketpair()
        await asyncio.get_running_loop().create_connection(lambda: self, sock=own)
        return workers

    def ask(self, *request: str) -> "asyncio.Future[Observation | _Fault]":
        """Send a request. When the caller gives it up, its answer is still taken off the line when it comes."""
        answer: asyncio.Future[Observation | _Fault] = asyncio.get_running_loop().create_future()
        if self._fault is not None:
            answer.set_result(self._fault)
            return answer
        assert self._transport is not None
        self._transport.write(encode(request))
        self._asked.append(answer)
        if len(self._asked) == 1:
            self._wind()
        return answer

    def hang_up(self) -> None:
        """Break the line."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            answer = _decode(line)
            if answer is not None:
                self._take(answer)

    def connection_lost(self, error: Exception | None) -> None:
        self._take(_Fault(None))

    def _take(self, answer: Observation | _Fault) -> None:
        if self._fault is not None:
            return
        if isinstance(answer, _Fault):
            self._fault = answer
        answered = list(self._asked) if self._fault else [self._asked[0]]
        for asked in answered:
            self._asked.popleft()
            if not asked.done():  # it is when its caller was cancelled
                asked.set_result(answer)
        self._wind()

    def _wind(self) -> None:
        """Start the clock for the request whose turn it is."""
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None
        if self._asked:
            self._clock = asyncio.get_running_loop().call_later(self._deadline, self._overrun)

    def _overrun(self) -> None:
        self._take(_Fault(f"no answer in {self._deadline:g} s"))
        self._overran()


def _decode(line: bytes) -> Observation | _Fault | None:
    """None for an empty line or one cut short, as a process leaves it that is killed amid its answer."""
    try:
        message = json.loads(line)
    except ValueError:
        return None
    if "fault" in message:
        return _Fault(message["fault"])
    return Observation(**{**message, "admissible_commands": tuple(message["admissible_commands"])})


def _wait_for_all(own: socket.socket) -> None:
    """Wait until no process of the group is left: the worker and every instance hold the other end of the leash."""
    with own, suppress(OSError):
        own.settimeout(_END_SECONDS)
        own.recv(1)
