"""Which prompts are rolled out and which groups are learned from, besides what the gate does during the rollout.

Before: a prompt whose latest groups were all zero-variance is passed over, the likelier the more of them there were
(after GRESO, "Act Only When It Pays: Efficient Reinforcement Learning for LLM Reasoning via Selective Rollouts", which
adapts the base; here it is 1/2, with a floor). After: zero-variance groups are dropped (after DAPO's dynamic sampling),
and the places of cut and zero-variance groups are filled with fresh groups.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from calibrate.outcomes import zero_variance
from collect.engine import derive_seed
from collect.rollout import Task
from collect.trajectory import Group

# Of a fresh task for every place in the batch, how many are looked at before an iteration makes do with fewer groups.
_MOST_DRAWS = 4


def was_cut(group: Group) -> bool:
    """Whether the gate ended the group: then its rewards say nothing."""
    return group.decision is not None and group.decision.enforced


def is_flat(group: Group) -> bool:
    """Whether the group ran to its end and all its rewards are equal: a zero-variance group."""
    return not was_cut(group) and bool(zero_variance(np.array([t.reward for t in group.trajectories])))


# Before the rollout


@dataclass(frozen=True, slots=True)
class Prompts:
    """The tasks to roll out, how many were passed over, and how many fresh tasks were looked at to replace them."""

    tasks: tuple[Task, ...]
    skipped: int
    drawn: int


def pass_over(
    tasks: Sequence[Task], fresh: Iterator[Task], streaks: Mapping[str, int], exploration: float, seed: int
) -> Prompts:
    """Replace prompts that lately taught nothing by fresh ones, which may be passed over too.

    A prompt of z zero-variance groups in a row (`streaks`, by game) is kept with probability max(1/2^z, `exploration`),
    by a coin of its own from the run's seed and the group's id. After `_MOST_DRAWS` fresh ones a place, places stay
    empty.
    """

    def is_kept(task: Task) -> bool:
        return coin(seed, "skip", task.group_id) < max(0.5 ** streaks.get(task.game.id, 0), exploration)

    kept = [task for task in tasks if is_kept(task)]
    skipped, drawn = len(tasks) - len(kept), 0
    for task in islice(fresh, _MOST_DRAWS * len(tasks)):
        if len(kept) == len(tasks):
            break
        drawn += 1
        if is_kept(task):
            kept.append(task)
        else:
            skipped += 1
    return Prompts(tuple(kept), skipped, drawn)


def updated_streaks(streaks: Mapping[str, int], groups: Iterable[Group]) -> dict[str, int]:
    """How many zero-variance groups in a row each game has had; a cut group does not say, and changes nothing."""
    after = dict(streaks)
    for group in groups:
        if not was_cut(group):
            after[group.game.id] = after.get(group.game.id, 0) + 1 if is_flat(group) else 0
    return after


def coin(seed: int, purpose: str, name: str) -> float:
    """A number in [0, 1) that the run's seed, a purpose and a group's id alone decide."""
    return float(derive_seed(seed, purpose, name) / 2**63)


# After it


def missing(groups: Sequence[Group], places: int) -> int:
    """How many places in the batch hold no informative group."""
    return places - sum(not was_cut(group) and not is_flat(group) for group in groups)


def batch(groups: Sequence[Group], places: int, drop_zero_variance: bool) -> list[Group]:
    """The groups to learn from, in order: the informative ones, and zero-variance ones while there is place for them,
    unless they are dropped. Cut groups never are.
    """
    room = 0 if drop_zero_variance else missing(groups, places)
    kept = []
    for group in groups:
        if was_cut(group):
            continue
        if is_flat(group):
            if room <= 0:
                continue
            room -= 1
        kept.append(group)
    return kept
