"""What the engines inside this process share: one thread owns the model and answers requests of an event loop.

A `Decoder` is the model and what it remembers. The thread takes requests in, has the decoder work round by round on all
that are running, and answers those that have ended; between rounds it does what else was asked: aborts, releases, a new
adapter, the end.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol

from collect.engine import Completion, Request
from collect.errors import EngineFault
from collect.policy import Policy

PATIENCE = 0.1  # of a round's time is what the next may be late by, to begin with the requests that follow its answers


def _answer() -> "Future[Any]":
    """A future that its asker can stop waiting for but not cancel: the engine's thread may always answer it."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


@dataclass(eq=False)
class Running:
    """A request being answered: what was sampled so far, and how it ended, once it has."""

    request: Request
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: Literal["stop", "length"] | None = None
    aborted: bool = False
    future: "Future[Completion]" = field(default_factory=_answer)


@dataclass(frozen=True, eq=False)
class _Change:
    """Work that was asked for and is to be done while no request is running."""

    work: Callable[[], None]
    future: "Future[None]" = field(default_factory=_answer)


class Decoder(Protocol):
    """A model that decodes many requests together. Its methods are called by one thread, which did not make it.

    `context` is the most tokens a prompt and its reply may have together.
    """

    context: int

    def start(self) -> None:
        """Called before any other method."""
        ...

    def admit(self, running: Running) -> None:
        """Take a request up; from now on it is among those that `advance` is given, until it ends or is dropped."""
        ...

    def advance(self, running: Sequence[Running]) -> None:
        """Work for a round: append tokens and log-probabilities to running requests, set `finish` where one ended.

        When it raises an exception, all running requests have failed, and are dropped.
        """
        ...

    def drop(self, running: Running) -> None:
        """Give a request up before its end."""
        ...

    def forget(self, trajectory: str) -> None:
        """Forget what is kept for the trajectory. None of its requests need be running, but some may."""
        ...

    def adapt(self, policy: Policy) -> None:
        """Go over to the policy's adapter, and forget what the one before has computed; nothing is running.

        Raises:
            InputError: the adapter does not fit; the one before stays.
        """
        ...

    def sleep(self) -> None:
        """Leave a GPU to someone else; nothing is running. What is called next, if it needs it, takes it back."""
        ...

    def close(self) -> None:
        """Free the model; nothing is called afterwards."""
        ...


class ThreadedEngine:
    """An engine whose decoder has a thread of its own; see `collect.engine.Engine` for what the methods promise."""

    def __init__(self, decoder: Decoder) -> None:
        self.context = decoder.context
        self._decoder = decoder
        self._running: list[Running] = []
        self._inbox: deque[Running | _Change] = deque()
        self._released: deque[str] = deque()
        self._closing = False
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)
        self._thread.start()

    async def generate(self, request: Request) -> Completion:
        """Sample one reply; see `Engine.generate`."""
        if len(request.prompt) + request.sampling.max_tokens > self.context:
            raise EngineFault(
                f"a prompt of {len(request.prompt)} tokens leaves no room for {request.sampling.max_tokens} more "
                f"in a context of {self.context}"
            )
        running = Running(request)
        self._post(running)
        try:
            return await asyncio.wrap_future(running.future)
        except asyncio.CancelledError:
            self.abort(request.trajectory)
            raise

    def abort(self, trajectory: str) -> None:
        """End the trajectory's request; see `Engine.abort`."""
        with self._wake:
            # The requests that are there now: a later one of the same trajectory is not meant.
            for running in self._waiting():
                running.aborted |= running.request.trajectory == trajectory
            self._wake.notify()

    def release(self, trajectory: str) -> None:
        """Forget the trajectory; see `Engine.release`."""
        with self._wake:
            self._released.append(trajectory)
            self._wake.notify()

    async def set_adapter(self, policy: Policy) -> None:
        """Go over to another adapter; see `Engine.set_adapter`."""
        await self._change(partial(self._decoder.adapt, policy))

    async def sleep(self) -> None:
        """Leave a GPU to someone else; see `Engine.sleep`."""
        await self._change(self._decoder.sleep)

    def close(self) -> None:
        """Stop the thread and free the model; running requests fail."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    async def _change(self, work: Callable[[], None]) -> None:
        change = _Change(work)
        self._post(change)
        await asyncio.wrap_future(change.future)

    def _post(self, order: Running | _Change) -> None:
        with self._wake:
            if self._closing:
                raise EngineFault("the engine is closed")
            self._inbox.append(order)
            self._wake.notify()

    def _waiting(self) -> list[Running]:
        """Requests without an answer."""
        return [*self._running, *(order for order in self._inbox if isinstance(order, Running))]

    def _work(self) -> None:
        self._decoder.start()
        while self._take_orders():
            began = time.perf_counter()
            try:
                if self._running:
                    self._decoder.advance(self._running)
            except Exception as error:  # a request must never wait for ever: whatever went wrong is its answer
                for running in list(self._running):
                    self._fail(running, error)
            answered = [running for running in self._running if running.finish]
            for running in answered:
                self._complete(running, running.finish)
            self._await_next(len(answered), PATIENCE * (time.perf_counter() - began))
        for order in [*self._running, *self._inbox]:
            order.future.set_exception(EngineFault("the engine was closed"))
        self._decoder.close()

    def _await_next(self, requests: int, seconds: float) -> None:
        """Wait, at most so long, for as many new requests as were answered: most are followed by one at once.

        A request that comes just after a round has begun leaves its place in the batch empty for all of that round.
        """
        with self._wake:
            self._wake.wait_for(lambda: self._closing or len(self._inbox) >= requests, seconds)

    def _take_orders(self) -> bool:
        """Wait for work and take in what was asked since the last round; False when closing."""
        with self._wake:
            while not (self._closing or self._running or self._inbox or self._released):
                self._wake.wait()
            if self._closing:
                return False
            released, self._released = self._released, deque()
            # In the order of asking: a new adapter waits for running requests, and later requests wait for the adapter.
            admitted: list[Running] = []
            while self._inbox and isinstance(order := self._inbox[0], Running):
                admitted.append(order)
                self._inbox.popleft()
            self._running += admitted
        for trajectory in released:
            self._decoder.forget(trajectory)
        for running in admitted:
            self._admit(running)
        for running in [running for running in self._running if running.aborted]:
            self._decoder.drop(running)
            self._complete(running, "aborted")
        if not self._running and self._inbox and isinstance(change := self._inbox[0], _Change):
            self._inbox.popleft()
            self._do(change)
        return True

    def _admit(self, running: Running) -> None:
        try:
            self._decoder.admit(running)
        except Exception as error:
            self._fail(running, error)

    def _do(self, change: _Change) -> None:
        try:
            change.work()
        except Exception as error:
            change.future.set_exception(error)
        else:
            change.future.set_result(None)

    def _complete(self, running: Running, finish: Any) -> None:
        self._running.remove(running)
        running.future.set_result(Completion(tuple(running.token_ids), tuple(running.logprobs), finish))

    def _fail(self, running: Running, error: Exception) -> None:
        self._running.remove(running)
        self._decoder.drop(running)
        self._decoder.forget(running.request.trajectory)
        running.future.set_exception(EngineFault(f"{type(error).__name__}: {error}"))
