"""The sample that a gate is fitted on: N groups, their outcomes, and one signal at S steps."""

import hashlib
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from calibrate.convention import Convention
from collect.errors import InputError


@dataclass(frozen=True, eq=False)
class Cost:
    """What groups cost and what of it comes after a step; a cut at that step saves it.

    `unit` is "tokens" (really sampled, from rollouts) or "budget" (the horizon for every trajectory, when only a table
    of signals is known). `after` is (N, S), `total` (N,).
    """

    unit: Literal["tokens", "budget"]
    after: NDArray[np.int64]
    total: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Sample:
    """N groups, sorted by id, and what is known of each: one row a group, one column a step K of `steps`.

    `scores` holds the signal named `signal`; low values speak for zero variance. `group_size` is None where a table
    does not say. `eligible_exactly` is False where eligibility is only estimated from `termination_fraction` < 1.
    `notes` are lines for the user: what was left out and why, what is approximate.
    """

    signal: str
    group_size: int | None
    horizon: int
    steps: NDArray[np.int64]
    group_ids: pl.Series
    task_types: pl.Series | None
    outcomes: NDArray[np.str_]
    reward_variance: NDArray[np.float64]
    scores: NDArray[np.float64]
    termination_fraction: NDArray[np.float64] | None
    eligible: NDArray[np.bool_]
    eligible_exactly: bool
    cost: Cost
    notes: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """N, the number of groups."""
        return len(self.outcomes)

    @property
    def zero_variance(self) -> NDArray[np.bool_]:
        """Which groups are zero-variance, (N,)."""
        return np.asarray(self.outcomes != "mixed")

    def counted(self, column: int, convention: Convention) -> NDArray[np.bool_]:
        """The groups that precision and recall are counted over at step `steps[column]`, (N,)."""
        return self.eligible[:, column] if convention is Convention.ELIGIBLE else np.ones(self.size, np.bool_)

    def column(self, step: int) -> int:
        """The column of step K; InputError when the sample does not hold it."""
        found = np.flatnonzero(self.steps == step)
        if not len(found):
            raise InputError(f"--at-step {step}: not there; the signals are known at K = {_ranges(self.steps)}")
        return int(found[0])

    def fingerprint(self) -> str:
        """SHA-256 of everything a fit reads: the same for the same groups, whatever order they were read in."""
        digest = hashlib.sha256()
        digest.update(f"{self.signal} {self.group_size} {self.horizon} {self.cost.unit}".encode())
        for text in (self.group_ids.to_list(), self.outcomes.tolist()):
            for item in text:
                digest.update(item.encode() + b"\0")
        for array in (self.steps, self.reward_variance, self.scores, self.eligible, self.cost.after, self.cost.total):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


def _ranges(steps: NDArray[np.int64]) -> str:
    """`1 to 29` for consecutive steps, else `10, 20`."""
    if len(steps) > 2 and np.all(np.diff(steps) == 1):
        return f"{steps[0]} to {steps[-1]}"
    return ", ".join(str(step) for step in steps)
