"""Which games an iteration plays: the same for a seed, whatever the gate does and whatever was learned.

Groups are named by game and visit, and their names seed their requests. So arms of one seed ask the same things in the
same order, and an iteration that is done again asks them again.
"""

import random
from collections.abc import Iterator, Sequence
from functools import lru_cache

from collect.engine import derive_seed
from collect.games import Game
from collect.rollout import Task


class Schedule:
    """The games in passes, each in an order of its own drawn from `seed`: the visit of a pass is its number.

    Beside the tasks of the iterations there are `fresh` ones, for the place of groups that teach nothing. How many are
    taken may differ between runs, so they have visits of their own, below 0, and leave the others as they are.
    """

    def __init__(self, games: Sequence[Game], groups: int, seed: int) -> None:
        self._games = list(games)
        self._groups = groups
        self._seed = seed

    def tasks(self, iteration: int) -> list[Task]:
        """The tasks of an iteration, which are numbered from 1."""
        first = (iteration - 1) * self._groups
        return [self._at("tasks", place) for place in range(first, first + self._groups)]

    def fresh(self, taken: int) -> Iterator[Task]:
        """The fresh tasks from the one after the first `taken`, without end."""
        while True:
            task = self._at("fresh", taken)
            yield Task(task.game, -1 - task.visit)
            taken += 1

    def _at(self, stream: str, place: int) -> Task:
        visit, index = divmod(place, len(self._games))
        return Task(self._games[self._pass(stream, visit)[index]], visit)

    def _pass(self, stream: str, visit: int) -> tuple[int, ...]:
        return _order(len(self._games), derive_seed(self._seed, stream, visit))


@lru_cache(maxsize=4)
def _order(count: int, seed: int) -> tuple[int, ...]:
    order = list(range(count))
    random.Random(seed).shuffle(order)
    return tuple(order)
