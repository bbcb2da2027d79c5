"""A group under a watcher, with a watcher that says what it was asked."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from collect.slots import Slot, Slots
from collect.trajectory import Decision, Step
from collect.watch import Shadow, Watch


def steps(*actions: str) -> list[Step]:
    return [Step("", (), action, action, "exact", 0.0, 0, 0, 0.0, 0.0, 0.0) for action in actions]


class Asked:
    """Flags at the steps in `flags`, and keeps what it was asked."""

    def __init__(self, steps: tuple[int, ...], flags: tuple[int, ...] = ()) -> None:
        self.steps = steps
        self.flags = flags
        self.asked: list[tuple[int, list[list[str]], bool]] = []

    def decide(self, prefixes: Sequence[Sequence[Step]], *, eligible: bool, step: int) -> Decision:
        self.asked.append((step, [[s.action for s in prefix] for prefix in prefixes], eligible))
        flagged = step in self.flags
        return Decision(step, 0.25, 0.5, flagged, enforced=flagged and eligible)


async def roll_out(watch: Watch, lengths: Sequence[int], horizon: int = 5) -> list[int]:
    """Trajectories that would end after so many steps, two slots for all of them; how many each took."""
    slots = Slots(2)

    async def trajectory(index: int, length: int) -> int:
        taken: list[Step] = []
        async with Slot(slots, 0) as slot:
            while len(taken) < min(length, horizon):
                await asyncio.sleep(0)
                taken += steps(f"{index}.{len(taken)}")
                if len(taken) < min(length, horizon) and not await watch.may_go_on(index, taken, slot):
                    break
            watch.ended(index, taken)
        return len(taken)

    return await asyncio.gather(*(trajectory(index, length) for index, length in enumerate(lengths)))


def test_all_are_decided_on_together_at_step_k_and_cut_there() -> None:
    watcher = Asked((2,), flags=(2,))
    watch = Watch(watcher, 3)
    assert asyncio.run(roll_out(watch, [9, 1, 4])) == [2, 1, 2]
    assert watcher.asked == [(2, [["0.0", "0.1"], ["1.0"], ["2.0", "2.1"]], True)]
    assert watch.decision == Decision(2, 0.25, 0.5, True, True)


def test_a_group_that_is_not_flagged_goes_on_to_its_end() -> None:
    watch = Watch(Asked((2,)), 2)
    assert asyncio.run(roll_out(watch, [9, 3])) == [5, 3]
    assert watch.decision == Decision(2, 0.25, 0.5, False, False)


def test_a_group_that_is_over_before_step_k_is_decided_on_and_not_cut() -> None:
    watcher = Asked((3,), flags=(3,))
    watch = Watch(watcher, 2)
    assert asyncio.run(roll_out(watch, [1, 3])) == [1, 3]
    assert watcher.asked == [(3, [["0.0"], ["1.0", "1.1", "1.2"]], False)]
    assert watch.decision == Decision(3, 0.25, 0.5, True, False)


def test_a_watcher_of_several_steps_is_asked_at_each_until_it_cuts() -> None:
    watcher = Asked((1, 2, 4), flags=(2, 4))
    assert asyncio.run(roll_out(Watch(watcher, 2), [9, 9])) == [2, 2]
    assert [step for step, *_ in watcher.asked] == [1, 2]


def test_a_shadow_records_what_it_would_have_done() -> None:
    watch = Watch(Shadow(Asked((2,), flags=(2,))), 2)
    assert asyncio.run(roll_out(watch, [9, 9])) == [5, 5]
    assert watch.decision == Decision(2, 0.25, 0.5, True, False)


def test_without_a_watcher_nothing_is_decided() -> None:
    watch = Watch(None, 2)
    assert asyncio.run(roll_out(watch, [9, 2])) == [5, 2]
    assert watch.decision is None


def test_a_trajectory_cancelled_while_it_waits_disturbs_no_other() -> None:
    async def main() -> None:
        watch, slots = Watch(Asked((1,), flags=(1,)), 2), Slots(2)
        waiting = asyncio.ensure_future(watch.may_go_on(0, steps("look"), Slot(slots, 0)))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not await watch.may_go_on(1, steps("look"), Slot(slots, 0))

    asyncio.run(main())


def test_a_review_has_the_last_word_and_a_group_that_it_lets_run_is_not_asked_about_again() -> None:
    watcher = Asked((1, 3), flags=(1, 3))
    watch = Watch(watcher, 2, lambda decision: replace(decision, enforced=False, audited=True))
    assert asyncio.run(roll_out(watch, [4, 5])) == [4, 5]
    assert watch.decision == Decision(1, 0.25, 0.5, True, False, audited=True)
    assert [step for step, _, _ in watcher.asked] == [1]


def test_in_shadow_the_decision_that_is_kept_is_the_one_that_would_have_cut() -> None:
    watch = Watch(Shadow(Asked((1, 3), flags=(1,))), 2)
    assert asyncio.run(roll_out(watch, [4, 5])) == [4, 5]
    assert watch.decision == Decision(1, 0.25, 0.5, True, False)
