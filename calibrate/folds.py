"""Out of sample: the whole procedure of choosing a gate, judged on groups that it did not see.

The tasks are dealt into folds; for each fold the procedure (which signal, step, threshold, stages or weights) is run
anew on the other folds, and the gate that it finds is applied to this one. What the folds' gates did is pooled. So the
figures are those of the procedure at this size of data, less one fold; a fold for which it finds no gate cuts nothing.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrate.fit import Search, find
from calibrate.rules import Rule
from calibrate.sample import Bools, Sample
from calibrate.tally import Cuts, Tally, tally

FOLDS = 5


@dataclass(frozen=True, eq=False)
class OutOfSample:
    """What the folds' gates did to groups that they were not chosen on.

    `rules` holds each fold's gate, None where the procedure found none; `cuts` what became of each group.
    """

    rules: tuple[Rule | None, ...]
    cuts: Cuts
    tally: Tally

    @property
    def found(self) -> int:
        """In how many folds there was a gate."""
        return sum(rule is not None for rule in self.rules)


def out_of_sample(
    sample: Sample,
    search: Search,
    rows: Bools | None = None,
    folds: int = FOLDS,
    tick: Callable[[], None] = lambda: None,
) -> OutOfSample | None:
    """Judge `search` in folds by task, on the groups in `rows` (N,) or on all; None with fewer than two tasks.

    With fewer tasks than folds, each task is a fold. `tick` is called before each fit.
    """

    def choose(rows: Bools) -> Rule | None:
        tick()
        found = find(sample, search, rows)
        return None if found is None else found.rule

    return judged_in_folds(sample, search, choose, rows, folds)


def judged_in_folds(
    sample: Sample,
    search: Search,
    choose: Callable[[Bools], Rule | None],
    rows: Bools | None = None,
    folds: int = FOLDS,
) -> OutOfSample | None:
    """Judge any procedure: `choose` finds a rule on the groups that it is given (N,); else as `out_of_sample`."""
    rows = np.ones(sample.size, np.bool_) if rows is None else rows
    fold = deal(sample, rows, folds)
    count = int(fold.max()) + 1
    if count < 2:
        return None
    rules: list[Rule | None] = []
    columns = np.full(sample.size, -1)
    candidates = np.zeros(sample.size, np.bool_)
    for held_out in range(count):
        here = fold == held_out
        rule = choose(rows & ~here)
        rules.append(rule)
        first = search.columns[0] if rule is None else sample.column(rule.steps[0])
        candidates[here] = sample.counted(first, search.convention)[here]
        if rule is not None:
            columns[here] = rule.flags(sample)[here]
    cuts = Cuts.at(sample, columns, candidates, search.convention)
    return OutOfSample(tuple(rules), cuts, tally(sample, cuts, rows))


def deal(sample: Sample, rows: Bools, folds: int) -> NDArray[np.int64]:
    """Deal the tasks of the groups in `rows` into folds of equal size, by a hash of their names: -1 elsewhere. (N,).

    So the fold of a task depends on the set of tasks alone, and not on the order of anything.
    """
    there = np.unique(sample.task[rows])
    order = sorted(range(len(there)), key=[_hash(name) for name in sample.task_names.gather(there)].__getitem__)
    of_task = np.full(len(sample.task_names), -1)
    of_task[there[order]] = np.arange(len(there)) % folds
    return np.where(rows, of_task[sample.task], -1)


def _hash(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()
