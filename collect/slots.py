"""How many trajectories are rolled out at once, and which come next.

A trajectory samples only while it holds a slot. A slot that is given back goes to the earliest group that waits for
one, so groups begin in their order and are held up by later ones for no longer than a slot takes to come free.
"""

import asyncio
import heapq
from itertools import count
from types import TracebackType


class Slots:
    """A fixed number of slots, at least 1, and those who wait for one, the lowest `order` first."""

    def __init__(self, number: int) -> None:
        self._free = number
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._arrivals = count()

    async def take(self, order: int) -> None:
        """Wait for a slot."""
        if self._free > 0:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (order, next(self._arrivals), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give()  # it came when nobody wanted it any more
            raise

    def give(self) -> None:
        """Give a slot back."""
        while self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():  # it is when who waited was cancelled
                turn.set_result(None)
                return
        self._free += 1


class Slot:
    """The slot of one trajectory of the `order`-th group: held inside `async with`, but for what is put aside in it."""

    def __init__(self, slots: Slots, order: int) -> None:
        self._slots = slots
        self._order = order
        self._held = False

    async def __aenter__(self) -> "Slot":
        await self.take()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.give()

    async def take(self) -> None:
        """Wait for the slot."""
        await self._slots.take(self._order)
        self._held = True

    def give(self) -> None:
        """Give the slot back, if it is held."""
        if self._held:
            self._held = False
            self._slots.give()
