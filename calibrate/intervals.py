"""Confidence intervals, two-sided, 95 %. The unit is the task: groups of one task are not independent of each other."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, ndtri, stdtrit

CONFIDENCE = 0.95
NORMAL_QUANTILE = float(ndtri((1 + CONFIDENCE) / 2))

Numbers = NDArray[Any]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and its interval; the bounds are NaN where the data cannot give one."""

    value: float
    low: float
    high: float


UNKNOWN = Interval(np.nan, np.nan, np.nan)


def proportion(successes: float, trials: float) -> Interval:
    """Share of successes with its exact (Clopper-Pearson) interval; NaN and [0, 1] without a trial.

    Takes fractions of trials too, which an effective number of trials has.
    """
    if trials == 0:
        return Interval(np.nan, 0.0, 1.0)
    tail, failures = (1 - CONFIDENCE) / 2, trials - successes
    low = float(betaincinv(successes, failures + 1, tail)) if successes > 0 else 0.0
    high = float(betaincinv(successes + 1, failures, 1 - tail)) if failures > 1e-9 * trials else 1.0
    return Interval(successes / trials, low, high)


def share(hits: Numbers, among: Numbers, task: Ints) -> Interval:
    """Σ hits / Σ among, with an interval whose unit is the task; all (N,), hits at most among, each in [0, 1].

    Where no two of the groups that count share a task, it is Clopper-Pearson. Else Korn and Graubard's (1998): the same
    with the effective number of trials, n divided by the design effect of the tasks and never more than n; where all or
    none are hits, the number of tasks stands for it.
    """
    counted = among > 0
    hits, among, task = hits[counted].astype(np.float64), among[counted].astype(np.float64), task[counted]
    trials, successes = float(among.sum()), float(hits.sum())
    if not len(task):
        return proportion(0, 0)
    _, of = np.unique(task, return_inverse=True)
    tasks = int(of.max()) + 1
    if tasks == len(task):
        return proportion(successes, trials)
    rate = successes / trials
    return _rescaled(rate, trials, min(trials, _effective(rate, hits, among, of, tasks)))


def _effective(rate: float, hits: Numbers, among: Numbers, of: Ints, tasks: int) -> float:
    if not 0 < rate < 1 or tasks < 2:
        return float(tasks)
    residual = np.bincount(of, hits - rate * among)
    variance = tasks / (tasks - 1) * float(residual @ residual) / float(among.sum()) ** 2
    if variance == 0:
        return float(tasks)
    tail = (1 + CONFIDENCE) / 2
    widening = (stdtrit(max(1, len(hits) - 1), tail) / stdtrit(tasks - 1, tail)) ** 2
    return rate * (1 - rate) / variance * float(widening)


def _rescaled(rate: float, trials: float, effective: float) -> Interval:
    found = proportion(rate * effective, effective)
    return Interval(rate, found.low, found.high)


def relative_saving(value: float, kept: Sequence[Numbers], of: Sequence[Numbers], task: Ints) -> Interval:
    """`value` = 1 - Π (Σ kept_i / Σ of_i), known already, with its interval; each array is (N,), each task one draw.

    Delta method on the logarithm of the product. The bounds are NaN with one task or where a sum is 0.
    """
    if not len(task) or any(array.sum() == 0 for array in (*kept, *of)):
        return Interval(value, np.nan, np.nan)
    _, number = np.unique(task, return_inverse=True)
    kept, of = ([np.bincount(number, array) for array in arrays] for arrays in (kept, of))
    count = len(of[0])
    if count < 2:
        return Interval(value, np.nan, np.nan)
    influence = sum(array / array.mean() for array in kept) - sum(array / array.mean() for array in of)
    spread = NORMAL_QUANTILE * float(np.std(influence, ddof=1) / np.sqrt(count))
    ratio = 1 - value
    return Interval(value, 1 - ratio * float(np.exp(spread)), 1 - ratio * float(np.exp(-spread)))
