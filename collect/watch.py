"""A group under a watcher: at the watcher's steps its trajectories wait for each other and are decided on together.

So what a gate saves live is what its replay counts: no trajectory takes step K + 1 before the group was decided at K.
Other groups keep the engine busy meanwhile: who waits holds no slot.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from collect.slots import Slot
from collect.trajectory import Decision, Step


class Watcher(Protocol):
    """What looks at groups on the way, such as a gate; `steps` are the K at which it does, ascending."""

    @property
    def steps(self) -> tuple[int, ...]:
        """The numbers of steps taken at which it decides."""
        ...

    def decide(self, prefixes: Sequence[Sequence[Step]], *, eligible: bool, step: int) -> Decision:
        """Decide on a group from the first `step` steps of each trajectory, fewer where it ended before.

        `eligible` says whether one is still running. The group is cut when the decision is `enforced`.
        """
        ...


# From a gate's file and the configuration of the rollouts: the gate, and what speaks against it there.
LoadWatcher = Callable[[Path, Mapping[str, object]], tuple[Watcher, tuple[str, ...]]]


@dataclass(frozen=True, slots=True)
class Shadow:
    """A watcher that only looks: its decisions are made and recorded, and none is enforced."""

    watcher: Watcher

    @property
    def steps(self) -> tuple[int, ...]:
        """Those of the watcher."""
        return self.watcher.steps

    def decide(self, prefixes: Sequence[Sequence[Step]], *, eligible: bool, step: int) -> Decision:
        """What the watcher decides, not enforced."""
        return replace(self.watcher.decide(prefixes, eligible=eligible, step=step), enforced=False)


# From a decision to the one that holds: an audit lets a flagged group run on, to see what becomes of it.
Review = Callable[[Decision], Decision]


class Watch:
    """One group of `group_size` trajectories; `decision` is the one that flagged it, else the last one made.

    A group is decided on until it is flagged, whether it is then cut, audited, or only looked at: nothing that a later
    step says could have cut it live. `review` has the last word on each decision.
    """

    def __init__(self, watcher: Watcher | None, group_size: int, review: Review | None = None) -> None:
        self.decision: Decision | None = None
        self._watcher = watcher
        self._review = review
        self._owed = list(watcher.steps) if watcher else []
        self._taken: list[Sequence[Step]] = [()] * group_size
        self._running = set(range(group_size))
        self._waiting: dict[int, asyncio.Future[bool]] = {}

    async def may_go_on(self, index: int, steps: Sequence[Step], slot: Slot) -> bool:
        """Whether trajectory `index`, which has taken these steps and is not over, may take another.

        While it waits for the others, its slot is whoever's is next.
        """
        if not self._owed or len(steps) < self._owed[0]:
            return True
        self._taken[index] = steps
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[index] = answer
        self._decide_if_all_are_there()
        if answer.done():
            return answer.result()
        slot.give()
        if not await answer:
            return False
        await slot.take()
        return True

    def ended(self, index: int, steps: Sequence[Step]) -> None:
        """Trajectory `index` is over."""
        self._taken[index] = steps
        self._running.discard(index)
        self._decide_if_all_are_there()

    def _decide_if_all_are_there(self) -> None:
        if self._watcher is None or not self._owed or self._running != self._waiting.keys():
            return
        step = self._owed.pop(0)
        prefixes = [steps[:step] for steps in self._taken]
        decision = self._watcher.decide(prefixes, eligible=bool(self._running), step=step)
        self.decision = self._review(decision) if self._review else decision
        if self.decision.flagged or not self._running:
            self._owed.clear()
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            if not answer.done():  # it is when its trajectory was cancelled
                answer.set_result(not self.decision.enforced)
