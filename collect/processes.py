"""Processes that play or translate games apart from this one, and end with it.

`start` forks one from a server that has the engine's modules loaded, so that it costs milliseconds. The server ends
when this process does, however it ends; a process that has called `end_with` its parent then ends too. `pool` is for
much work of one kind.
"""

import ctypes
import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

from collect.errors import EnvironmentFault

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerProcess

_PRELOADED = (
    "collect.stock",
    "collect.translation_cache",
    "collect.shipped_grammar",
    "textworld.envs.pddl.pddl",
    "alfworld.agents.environment.alfred_tw_env",
)
_END_SECONDS = 10.0  # for a process to end that was killed
_PR_SET_PDEATHSIG = 1  # linux/prctl.h

# multiprocessing's own books of its children are not made for several threads.
_books = threading.Lock()


def start(target: Callable[..., None], *arguments: Any) -> "ForkServerProcess":
    """Start a process, which begins with Ctrl-C blocked: that is the parent's to handle."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    resource_tracker.ensure_running()  # on some Pythons it unblocks SIGINT in the thread that starts it
    leave_interrupts()
    try:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(_PRELOADED))
        process = context.Process(target=target, args=arguments, daemon=True)
        with _books:
            process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return process


def leave_interrupts() -> None:
    """Keep Ctrl-C from this thread, and from what it starts."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def join(process: "ForkServerProcess", seconds: float = _END_SECONDS) -> int | None:
    """Wait for a process to end and forget it; its exit code, or None when it has not ended."""
    if not wait([process.sentinel], seconds):
        return None
    with _books:
        process.join()
        code = process.exitcode
        process.close()
    return code


@contextmanager
def pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Processes for much work that plays games, for the time of a block, which ends at once where it raises.

    What the engine leaves in temporary folders is removed with them. Raises `EnvironmentFault` where one dies.
    """
    with tempfile.TemporaryDirectory(prefix="sr-games-", ignore_cleanup_errors=True) as folder:
        processes = ProcessPoolExecutor(
            workers, mp_context=multiprocessing.get_context("spawn"), initializer=_begin_work, initargs=(folder,)
        )
        try:
            yield processes
        except BrokenProcessPool as error:
            raise EnvironmentFault("a process that plays games to check them died; start again") from error
        finally:
            processes.shutdown(wait=True, cancel_futures=True)


# What follows runs in the processes.


def _begin_work(folder: str) -> None:
    """Leave Ctrl-C to the parent, end with it, and keep the engine's files in a folder that it removes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tempfile.tempdir = folder
    threading.Thread(target=_end_with_pool, args=(folder,), daemon=True).start()


def _end_with_pool(folder: str) -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def end_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it ended before it could be tied
        os._exit(1)
