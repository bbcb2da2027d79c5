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

    Delta method on the logarithm of the product: for parts that many groups add to. The bounds are NaN with one task or
    where a sum is 0.
    """
    if not len(task) or any(array.sum() == 0 for array in (*kept, *of)):
        return Interval(value, np.nan, np.nan)
    influence = sum(_influence(part, whole, task) for part, whole in zip(kept, of, strict=True))
    count = len(np.unique(task))
    if count < 2:
        return Interval(value, np.nan, np.nan)
    spread = NORMAL_QUANTILE * float(np.std(influence, ddof=1) / np.sqrt(count))
    ratio = 1 - value
    return Interval(value, 1 - ratio * float(np.exp(spread)), 1 - ratio * float(np.exp(-spread)))


def saving_interval(kept: Numbers, cost: Numbers, task: Ints) -> Interval:
    """S = 1 - Σ kept / Σ cost with its interval; each array is (N,), each task one draw. 0 without a cost.

    `relative_saving`'s, but each bound no nearer than if every cut saved the same and only the share of groups cut were
    uncertain, as `share` has it: of few cuts the spread says too little. The bounds are NaN with one task or where a
    sum is 0.
    """
    value = float((cost - kept).sum() / cost.sum()) if cost.sum() else 0.0
    found, cut = relative_saving(value, [kept], [cost], task), kept < cost
    if np.isnan(found.low) or not cut.any():
        return found
    cuts = share(cut, np.ones(len(cut)), task)
    low, high = value * cuts.low / cuts.value, value * cuts.high / cuts.value
    return Interval(value, min(found.low, low), min(max(found.high, high), 1.0))


def net_saving_interval(
    value: float,
    cost_kept: Numbers,
    cost: Numbers,
    informative_kept: Numbers,
    informative: Numbers,
    task: Ints,
    *,
    drops_known: bool = False,
) -> Interval:
    """`value` = 1 - (1 - S) / (1 - F), known already, with its interval; S is the share of the cost that is not kept, F
    that of the informative groups, which may be known beforehand. Each array is (N,), each task one draw.

    The interval of S is `saving_interval`'s, that of F `share`'s, since few informative groups are cut, or none, and
    their spread says too little of their chance then. Both are joined on the logarithms, with their correlation over
    the tasks, as limits of a difference (Zou and Donner 2008). The bounds are NaN with one task or where a sum is 0.
    """
    saved = saving_interval(cost_kept, cost, task)
    if np.isnan(saved.low) or not informative_kept.sum():
        return Interval(value, np.nan, np.nan)
    dropped = share(informative - informative_kept, informative, task)
    if drops_known:
        dropped = Interval(dropped.value, dropped.value, dropped.value)
    one, other = _influence(cost_kept, cost, task), _influence(informative_kept, informative, task)
    correlation = float(np.corrcoef(one, other)[0, 1]) if np.ptp(one) > 0 and np.ptp(other) > 0 else 0.0
    with np.errstate(divide="ignore"):
        cost_low, cost_log, cost_high = np.log1p([-saved.high, -saved.value, -saved.low])
        left_low, left_log, left_high = np.log1p([-dropped.high, -dropped.value, -dropped.low])
    log = cost_log - left_log
    highest = log + _joined(cost_high - cost_log, left_log - left_low, correlation)
    lowest = log - _joined(cost_log - cost_low, left_high - left_log, correlation)
    return Interval(value, float(1 - np.exp(highest)), float(1 - np.exp(lowest)))


def _joined(one: float, other: float, correlation: float) -> float:
    """How far the limit of a difference is from it, from the distances of the two parts' own limits."""
    if np.isinf(one) or np.isinf(other):
        return float(np.inf)
    return float(np.sqrt(max(0.0, one**2 + other**2 - 2 * correlation * one * other)))


def _influence(part: Numbers, whole: Numbers, task: Ints) -> Numbers:
    """What each task adds to log(Σ part / Σ whole), to first order; (tasks,)."""
    _, number = np.unique(task, return_inverse=True)
    parts, wholes = np.bincount(number, part), np.bincount(number, whole)
    return np.asarray(parts / parts.mean() - wholes / wholes.mean())
