"""Slots: never more than there are, the earliest group first, none lost."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from collect.slots import Slot, Slots


@given(st.integers(1, 5), st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.booleans()), max_size=20))
def test_no_more_are_held_than_there_are_and_none_is_lost(number: int, holders: list[tuple[int, int, bool]]) -> None:
    held, most = 0, 0

    async def hold(slots: Slots, order: int, rounds: int, pauses: bool) -> None:
        nonlocal held, most
        async with Slot(slots, order) as slot:
            for _ in range(rounds):
                held += 1
                most = max(most, held)
                try:
                    await asyncio.sleep(0)
                finally:
                    held -= 1
                if pauses:
                    slot.give()
                    await asyncio.sleep(0)
                    await slot.take()

    async def main() -> None:
        slots = Slots(number)
        tasks = [asyncio.create_task(hold(slots, *holder)) for holder in holders]
        await asyncio.sleep(0)
        for task in tasks[::3]:
            task.cancel()
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
        for _ in range(number):
            await asyncio.wait_for(slots.take(0), 10)

    asyncio.run(main())
    assert most <= number


def test_the_earliest_group_has_the_next_slot_and_within_a_group_who_came_first() -> None:
    taken: list[str] = []

    async def hold(slots: Slots, order: int, name: str) -> None:
        async with Slot(slots, order):
            taken.append(name)
            await asyncio.sleep(0)

    async def main() -> None:
        slots = Slots(1)
        names = [(1, "first of all"), (2, "late"), (0, "early"), (0, "early too"), (1, "between")]
        await asyncio.gather(*(hold(slots, order, name) for order, name in names))

    asyncio.run(main())
    assert taken == ["first of all", "early", "early too", "between", "late"]


def test_a_slot_that_comes_as_its_taker_is_cancelled_goes_to_the_next() -> None:
    async def main() -> None:
        slots = Slots(1)
        await slots.take(0)
        cancelled, following = (asyncio.create_task(slots.take(order)) for order in (0, 1))
        await asyncio.sleep(0)
        slots.give()
        cancelled.cancel()
        await asyncio.wait_for(following, 10)
        assert cancelled.cancelled()

    asyncio.run(main())
