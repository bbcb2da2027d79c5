"""The sample that a gate is fitted on: N groups, their outcomes, and the signals at S steps."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from calibrate.convention import Convention
from calibrate.outcomes import REWARD_TOLERANCE
from calibrate.signals import BY_NAME
from collect.errors import InputError

Scores = NDArray[np.floating[Any]]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Cost:
    """What groups cost and what of it comes after a step; a cut at that step saves it. `after` is (N, S), `total` (N,).

    `unit` is "tokens" (sampled, from rollouts), "steps" (taken, from rollouts), or "budget" (the horizon for every
    trajectory, when only a table of signals is known).
    """

    unit: Literal["tokens", "steps", "budget"]
    after: NDArray[np.integer[Any]]
    total: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Sample:
    """N groups, sorted by id, and what is known of each: one row a group, one column a step K of `steps`.

    `signals` holds the (N, S) values of each signal that is known, by name. `tasks` is the game of each group: groups
    of one game are not independent of each other, and whatever is split or resampled is split by it. `group_size` is
    None where a table does not say. `eligible_exactly` is False where eligibility is only estimated from
    `termination_fraction` < 1. `cost` is what savings are counted in; `step_cost` counts steps, where known. Rewards
    of a group that differ by no more than `reward_tolerance` count as equal; None where a table says the outcomes
    itself. `notes` are lines for the user: what was left out and why, what is approximate. `no_draw` says why the
    groups are no draw of tasks that one policy rolled out, so that they guarantee nothing; empty where they are.
    """

    group_size: int | None
    horizon: int
    steps: NDArray[np.int64]
    group_ids: pl.Series
    tasks: pl.Series
    task_types: pl.Series | None
    outcomes: NDArray[np.str_]
    reward_variance: NDArray[np.float64]
    signals: Mapping[str, Scores]
    eligible: Bools
    eligible_exactly: bool
    cost: Cost
    step_cost: Cost | None = None
    reward_tolerance: float | None = REWARD_TOLERANCE
    notes: tuple[str, ...] = ()
    no_draw: str = ""

    @property
    def size(self) -> int:
        """N, the number of groups."""
        return len(self.outcomes)

    @cached_property
    def zero_variance(self) -> Bools:
        """Which groups are zero-variance, (N,)."""
        return np.asarray(self.outcomes != "mixed")

    @cached_property
    def task(self) -> NDArray[np.int64]:
        """The number of each group's task, from 0 in the order of their names, (N,)."""
        return self.tasks.rank("dense").to_numpy().astype(np.int64) - 1

    @cached_property
    def task_names(self) -> pl.Series:
        """The distinct tasks, sorted: `task_names[task[i]]` is the task of group i."""
        return self.tasks.unique().sort()

    def counted(self, column: int, convention: Convention) -> Bools:
        """The groups that precision and recall are counted over at step `steps[column]`, (N,)."""
        return self.eligible[:, column] if convention is Convention.ELIGIBLE else np.ones(self.size, np.bool_)

    def likeness(self, signal: str, column: int) -> Scores:
        """A signal at one step, turned so that low values speak for zero variance, (N,)."""
        return np.asarray(BY_NAME[signal].sign * self.signals[signal][:, column])

    def column(self, step: int) -> int:
        """The column of step K; InputError when the sample does not hold it."""
        found = np.flatnonzero(self.steps == step)
        if not len(found):
            raise InputError(f"--at-step {step}: not there; the signals are known at K = {_ranges(self.steps)}")
        return int(found[0])

    def groups_fingerprint(self) -> str:
        """SHA-256 of which groups these are and how they ended: the same of a run and of its table, at any steps."""
        digest = hashlib.sha256()
        for item in self.group_ids:
            digest.update(item.encode() + b"\0")
        digest.update(np.ascontiguousarray(self.reward_variance, np.float64).data)
        return digest.hexdigest()

    def fingerprint(self) -> str:
        """SHA-256 of everything a fit reads: the same for the same groups, whatever order they were read in."""
        digest = hashlib.sha256()
        digest.update(f"{self.group_size} {self.horizon} {self.cost.unit}".encode())
        for text in (self.group_ids, self.tasks, self.outcomes.tolist()):
            for item in text:
                digest.update(item.encode() + b"\0")
        for array in (self.steps, self.reward_variance, self.eligible, self.cost.after, self.cost.total):
            digest.update(array.ravel().data)
        for name in sorted(self.signals):
            digest.update(name.encode())
            digest.update(self.signals[name].ravel().data)
        return digest.hexdigest()


def _ranges(steps: NDArray[np.int64]) -> str:
    """`1 to 29` for consecutive steps, else `10, 20`."""
    if len(steps) > 2 and np.all(np.diff(steps) == 1):
        return f"{steps[0]} to {steps[-1]}"
    return ", ".join(str(step) for step in steps)
