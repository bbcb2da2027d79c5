"""What generated games are made from: a seed, the share of each task type, and how hard they are."""

import hashlib
import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version

from collect.errors import InputError, MissingDependency
from collect.games import TASK_TYPES
from collect.policy import COLLECT_INSTALL

GENERATOR = 1  # raise it when the same seed would give other games


@dataclass(frozen=True, slots=True)
class Difficulty:
    """How hard a game is to search.

    `receptacles_per_type`: the most receptacles of one type (drawers, cabinets, ...); None leaves the room as it is.
    `targets`: the most instances of the wanted object (of which a pick_two game needs one more); fewer are harder.
    `instances`: the most instances of any other object type; more make longer texts.
    `absent`: the probability in [0, 1) that an object type of the room is missing.
    `hidden`: the probability in [0, 1] that an instance of the wanted object starts in a receptacle that has to be
    opened, where the room has one for it; else it starts in any.
    """

    receptacles_per_type: int | None = None
    targets: int = 1
    instances: int = 2
    absent: float = 0.25
    hidden: float = 0.0

    def __post_init__(self) -> None:
        counts = (self.receptacles_per_type or 1, self.targets, self.instances)
        if min(counts) < 1 or self.receptacles_per_type == 0 or not 0 <= self.absent < 1:
            raise InputError(f"{self}: counts must be at least 1, and the probability of absence in [0, 1)")
        if not 0 <= self.hidden <= 1:
            raise InputError(f"{self}: the probability of being hidden must be in [0, 1]")

    def description(self) -> dict[str, object]:
        """As it stands in recipe.json; `hidden` came later and is left out at 0, so older recipes keep their games."""
        return {name: value for name, value in asdict(self).items() if name != "hidden" or value}


# Small, middling and whole rooms by turns: a small model then neither always wins nor always loses.
MIXED = (Difficulty(4, hidden=0.5), Difficulty(8, hidden=0.5), Difficulty(None, hidden=0.5))
BALANCED = (1 / 6,) * 6


@dataclass(frozen=True, slots=True)
class Slot:
    """One game to be made, the `index`-th of its split. The game that fills it depends on the slot alone."""

    split: str
    index: int
    trial: str
    task_type: str
    difficulty: Difficulty
    seed: str

    def random(self, attempt: int) -> random.Random:
        """The random numbers of the `attempt`-th candidate for this slot."""
        return random.Random(f"{self.seed}/{attempt}")


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that the bytes of a set of games depend on, but for how many there are of each split.

    `shares` are those of the six task types, in the order of `TASK_TYPES`; they sum to 1. The games of each task type
    take the `difficulties` by turns.
    """

    seed: int = 0
    shares: tuple[float, ...] = BALANCED
    difficulties: tuple[Difficulty, ...] = MIXED

    def description(self) -> dict[str, object]:
        """The recipe as it stands in a games folder's recipe.json.

        Raises `MissingDependency` where alfworld, from whose rooms and grammar games are made, is not installed.
        """
        try:
            alfworld = version("alfworld")
        except PackageNotFoundError:
            raise MissingDependency("alfworld, which games are made from,", COLLECT_INSTALL) from None
        return {
            "generator": GENERATOR,
            "alfworld": alfworld,
            "seed": self.seed,
            "shares": dict(zip(TASK_TYPES, self.shares, strict=True)),
            "difficulties": [difficulty.description() for difficulty in self.difficulties],
        }

    def identity(self) -> str:
        """64 hex digits, different for any two recipes that could give different games."""
        return hashlib.sha256(json.dumps(self.description(), sort_keys=True).encode()).hexdigest()

    def slots(self, split: str, count: int) -> Iterator[Slot]:
        """The first `count` games of a split. A larger count only adds to a smaller one."""
        seed = f"{self.identity()}/{split}"
        digits = f"{int(hashlib.sha256(seed.encode()).hexdigest(), 16) % 10**14:014d}"
        made: Counter[str] = Counter()
        for index in range(count):
            owed = [share * (index + 1) - made[type_] for type_, share in zip(TASK_TYPES, self.shares, strict=True)]
            task_type = TASK_TYPES[owed.index(max(owed))]
            difficulty = self.difficulties[made[task_type] % len(self.difficulties)]
            made[task_type] += 1
            trial = f"trial_T{digits[:8]}_{digits[8:]}_{index:06d}"
            yield Slot(split, index, trial, task_type, difficulty, f"{seed}/{index}")


def full_shares(given: Mapping[str, float]) -> tuple[float, ...]:
    """Shares of all six task types from those given: the task types not named share the rest alike.

    Raises `InputError` for an unknown task type, a negative share, or shares that cannot sum to 1.
    """
    for type_, share in given.items():
        if type_ not in TASK_TYPES:
            raise InputError(f"unknown task type {type_!r}; choose from {', '.join(TASK_TYPES)}")
        if not 0 <= share <= 1:
            raise InputError(f"the share of {type_} is {share:g}; give one from 0 to 1")
    rest = 1 - sum(given.values())
    others = len(TASK_TYPES) - len(given)
    if rest < -1e-9 or (others == 0 and rest > 1e-9):
        raise InputError(f"the shares of the task types sum to {1 - rest:g}; they must sum to 1")
    return tuple(given.get(type_, max(rest, 0.0) / max(others, 1)) for type_ in TASK_TYPES)
