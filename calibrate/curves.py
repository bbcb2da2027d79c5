"""How well a signal ranks groups: ROC and precision-recall curves, the areas under them, and rank correlation.

Scores are turned so that low ones speak for zero variance (`Sample.likeness`). The unit of every interval is the task.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit
from scipy.stats import spearmanr

from calibrate.intervals import NORMAL_QUANTILE, UNKNOWN, Interval

Scores = NDArray[np.floating[Any]]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

RESAMPLES = 200
ANALYTIC_ABOVE = 10_000  # groups; with more, the bootstrap takes long and tells no more
_SEED = 20260  # of the resamples: the same groups give the same interval


@dataclass(frozen=True)
class Areas:
    """Under the ROC curve, P(an informative group scores higher than a zero-variance one), ties counting half; and
    under the precision-recall curve for finding zero-variance groups, as the average precision. See `areas`.
    """

    roc: Interval
    precision_recall: Interval


def areas(scores: Scores, informative: Bools, task: Ints) -> Areas | None:
    """Both areas, each with its interval; None when a class is absent. All arrays are (n,).

    The intervals are normal on the logit scale, so that they stay in [0, 1], with the standard error of a bootstrap
    that draws tasks. Above `ANALYTIC_ABOVE` groups the error of the ROC area is DeLong's with the tasks as clusters
    (Obuchowski 1997), that of the average precision the binomial one of Boyd, Eng and Page (2013) over the tasks that
    have a zero-variance group. Bounds are NaN with fewer than 2 groups of a class or fewer than 2 tasks, and where the
    classes do not overlap at all.
    """
    if informative.all() or not informative.any():
        return None
    _, number = np.unique(task, return_inverse=True)
    tasks = int(number.max()) + 1
    order = np.argsort(scores, kind="stable")
    runs = np.flatnonzero(np.append(True, np.diff(scores[order]) > 0))
    positive = ~informative[order]
    roc, average = (float(area[0]) for area in _areas(np.ones((1, len(scores)), np.float32), positive, runs))
    if min(informative.sum(), positive.sum()) < 2 or tasks < 2:
        return Areas(Interval(roc, np.nan, np.nan), Interval(average, np.nan, np.nan))
    if len(scores) > ANALYTIC_ABOVE:
        found = len(np.unique(number[~informative]))
        error = _delong(roc, positive, runs, number[order])
        error_of_average = float(np.sqrt(average * (1 - average) / found))
    else:
        resampled = _areas(drawn(tasks)[:, number[order]], positive, runs)
        error, error_of_average = (float(np.nanstd(area, ddof=1)) for area in resampled)
    return Areas(_on_logit_scale(roc, error), _on_logit_scale(average, error_of_average))


def auroc(scores: Scores, informative: Bools, task: Ints) -> Interval | None:
    """The area under the ROC curve; see `areas`."""
    found = areas(scores, informative, task)
    return None if found is None else found.roc


@dataclass(frozen=True)
class Correlation:
    """Spearman's rho of a signal and the reward variance, and its p-value, which takes the groups as independent."""

    rho: float
    p: float


def rank_correlation(values: Scores, reward_variance: NDArray[np.float64]) -> Correlation | None:
    """Spearman's rank correlation; None when one of the two does not vary. Both are (n,)."""
    if len(values) < 3 or np.ptp(values) == 0 or np.ptp(reward_variance) == 0:
        return None
    found = spearmanr(values, reward_variance)
    return Correlation(float(found.statistic), float(found.pvalue))


@lru_cache(maxsize=4)
def drawn(tasks: int) -> NDArray[np.float32]:
    """How often each resample of the bootstrap draws each task, (RESAMPLES, tasks)."""
    drawn = np.random.default_rng(_SEED).integers(tasks, size=(RESAMPLES, tasks))
    begin = np.arange(RESAMPLES)[:, None] * tasks
    return np.bincount((drawn + begin).ravel(), minlength=RESAMPLES * tasks).reshape(drawn.shape).astype(np.float32)


def _areas(
    weights: NDArray[np.float32], positive: Bools, runs: Ints
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Both areas of each resample: weights (B, n) of groups in ascending order of score, `runs` where a new one begins.

    NaN for a resample that lacks a class.
    """
    found = np.add.reduceat(weights * positive, runs, axis=1, dtype=np.float64)
    missed = np.add.reduceat(weights * ~positive, runs, axis=1, dtype=np.float64)
    true, false = found.cumsum(axis=1), missed.cumsum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        roc = (missed * (true - found / 2)).sum(axis=1) / (true[:, -1] * false[:, -1])
        precision = np.where(true + false > 0, true / (true + false), 0)
        average = (precision * found).sum(axis=1) / true[:, -1]
    lacking = (true[:, -1] == 0) | (false[:, -1] == 0)
    return np.where(lacking, np.nan, roc), np.where(lacking, np.nan, average)


def _delong(area: float, positive: Bools, runs: Ints, number: Ints) -> float:
    """Standard error of the ROC area from DeLong's (1988) components, summed over each task.

    The groups come in ascending order of score: whether zero-variance, where a new score begins, and their tasks.
    """
    found, missed = (np.add.reduceat(kind, runs, dtype=np.int64) for kind in (positive, ~positive))
    true, false = found.cumsum(), missed.cumsum()
    run = np.repeat(np.arange(len(runs)), np.diff(np.append(runs, len(positive))))
    lower = ((true - found / 2) / true[-1])[run]  # share of the zero-variance groups under each, ties counting half
    higher = ((false[-1] - false + missed / 2) / false[-1])[run]
    influence = np.where(positive, (higher - area) / true[-1], (lower - area) / false[-1])
    by_task = np.bincount(number, influence)
    tasks = len(by_task)
    return float(np.sqrt(tasks / (tasks - 1) * (by_task @ by_task)))


def _on_logit_scale(area: float, error: float) -> Interval:
    if not 0 < area < 1 or not error > 0:
        return Interval(area, UNKNOWN.low, UNKNOWN.high)
    spread = NORMAL_QUANTILE * error / (area * (1 - area))
    return Interval(area, float(expit(logit(area) - spread)), float(expit(logit(area) + spread)))
