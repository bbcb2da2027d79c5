"""The worker process of a group: loads the game, forks its instances, and looks after them.

It speaks to `collect.stock_group` in lines of JSON, over one socket an instance: requests are [method, argument…],
answers are the fields of an Observation, or {"fault": what went wrong}, which is the last.
"""

import json
import os
import shutil
import signal
import socket
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from collect.errors import EnvironmentFault
from collect.processes import end_with

if TYPE_CHECKING:
    from collect.environment import Observation
    from collect.stock import StockInstance


def encode(message: Any) -> bytes:
    """A message as it goes over a line."""
    # It begins a new line too, in case a process was killed amid the last one.
    return b"\n" + json.dumps(message).encode() + b"\n"


def death(code: int | None, folder: Path) -> str:
    """What to say of a process of the group that died: exit code (-n: killed by signal n), last word in the log."""
    cause = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
    said = _log(folder).read_text(errors="replace").split("\n") if _log(folder).exists() else []
    last = next((line.strip() for line in reversed(said) if line.strip()), "")
    return f"the game's process died ({cause}: {last[:200]})" if last else f"the game's process died ({cause})"


def _log(folder: Path) -> Path:
    return folder / "log"


def serve(ends: list[socket.socket], leash: socket.socket, game_path: Path, folder: Path) -> None:
    """Load the game, fork an instance for each end of a line, and look after them until the leash is let go of."""
    # A signal sent to the whole process group is the parent's to handle; its end is this process's end.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    tempfile.tempdir = str(folder)
    # The engine and its C++ library must not write into the progress bar.
    log = os.open(_log(folder), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)

    from collect.stock import StockInstance

    instances: dict[int, tuple[int, socket.socket]] = {}
    try:
        with _on_leash(leash, folder):
            instance = StockInstance(game_path)
            first = instance.reset()
    except EnvironmentFault as fault:
        for end in ends:
            _send(end, {"fault": _in_short(fault, game_path)})
    else:
        for end in ends:
            pid, alive = _fork(partial(_play, end, instance, first, game_path))
            instances[alive] = pid, end
    _look_after(instances, leash, folder)


@contextmanager
def _on_leash(leash: socket.socket, folder: Path) -> Iterator[None]:
    """End this process amid the block when the leash is let go of. Leaves no thread: none would survive a fork."""
    done, tell = os.pipe()
    watch = threading.Thread(target=_watch, args=(leash, done, folder), daemon=True)
    watch.start()
    try:
        yield
    finally:
        os.close(tell)
        watch.join()
        os.close(done)


def _watch(leash: socket.socket, done: int, folder: Path) -> None:
    if leash in wait([leash, done]):
        for _ in range(10):  # the loading may be adding to it meanwhile
            shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)


def _fork(play: Callable[[], None]) -> tuple[int, int]:
    """Start an instance's process; its id, and a file descriptor that becomes ready when it ends."""
    worker = os.getpid()
    alive, held = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            end_with(worker)
            play()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(held)
    return pid, alive


def _look_after(instances: dict[int, tuple[int, socket.socket]], leash: socket.socket, folder: Path) -> None:
    """Tell of an instance that dies, until the leash is let go of; then end all.

    `instances` holds process and line of each, by the file descriptor that becomes ready when it ends.
    """
    while leash not in (ready := wait([leash, *instances])):
        for alive in cast("list[int]", ready):
            pid, end = instances.pop(alive)
            os.close(alive)
            _send(end, {"fault": death(_reap(pid), folder)})
    for pid, _ in instances.values():
        os.kill(pid, signal.SIGKILL)
    for pid, _ in instances.values():
        _reap(pid)
    shutil.rmtree(folder, ignore_errors=True)


def _reap(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _send(end: socket.socket, message: Any) -> None:
    with suppress(OSError):  # the parent has ended
        end.sendall(encode(message))


def _in_short(fault: EnvironmentFault, game_path: Path) -> str:
    return str(fault).removeprefix(f"{game_path}: ")


# What follows runs in an instance's process.


def _play(end: socket.socket, instance: "StockInstance", first: "Observation", game_path: Path) -> None:
    """Answer requests (method, argument…) until the line breaks. `instance` was reset, and `first` is what it said."""
    untouched = True
    for line in filter(bytes.strip, end.makefile("rb")):
        method, *arguments = json.loads(line)
        try:
            answer = first if untouched and method == "reset" else getattr(instance, method)(*arguments)
        except EnvironmentFault as fault:
            _send(end, {"fault": _in_short(fault, game_path)})
            return
        untouched = False
        _send(end, asdict(answer))
