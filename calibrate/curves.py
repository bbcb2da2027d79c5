"""How well a signal ranks groups: ROC and precision-recall curves, the areas under them, and rank correlation.

Scores are turned so that low ones speak for zero variance (`Sample.likeness`). The unit of every interval is the task.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit, stdtr

from calibrate.intervals import NORMAL_QUANTILE, UNKNOWN, Interval
from calibrate.ranking import Ranking

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
    """Both areas, each with its interval; None when a class is absent. All arrays are (n,); tasks are numbers from 0.

    The intervals are normal on the logit scale, so that they stay in [0, 1], with the standard error of a bootstrap
    that draws tasks. Above `ANALYTIC_ABOVE` groups the error of the ROC area is DeLong's with the tasks as clusters
    (Obuchowski 1997), that of the average precision the binomial one of Boyd, Eng and Page (2013) over the tasks that
    have a zero-variance group. Bounds are NaN with fewer than 2 groups of a class or fewer than 2 tasks, and where the
    classes do not overlap at all.
    """
    if informative.all() or not informative.any():
        return None
    ranking = Ranking.of(scores)
    positive, task = ~informative[ranking.order], task[ranking.order]
    found = np.add.reduceat(positive, ranking.starts, dtype=np.int64)
    missed = ranking.counts - found
    roc, average = (float(area[0]) for area in _areas(found[None, :], missed[None, :]))
    tasks = _distinct(task)
    if min(found.sum(), missed.sum()) < 2 or tasks < 2:
        return Areas(Interval(roc, np.nan, np.nan), Interval(average, np.nan, np.nan))
    if len(scores) > ANALYTIC_ABOVE:
        error = _delong(roc, positive, found, missed, task)
        error_of_average = float(np.sqrt(average * (1 - average) / _distinct(task[positive])))
    else:
        weights = drawn(tasks)[:, np.unique(task, return_inverse=True)[1]]
        resampled = _areas(
            np.add.reduceat(weights * positive, ranking.starts, axis=1, dtype=np.float64),
            np.add.reduceat(weights * ~positive, ranking.starts, axis=1, dtype=np.float64),
        )
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
    # As scipy's spearmanr does, in half its time.
    rho = float(np.corrcoef(Ranking.of(values).ranks, Ranking.of(reward_variance).ranks)[0, 1])
    freedom = len(values) - 2
    with np.errstate(divide="ignore"):
        t = rho * np.sqrt(np.divide(freedom, (1 + rho) * (1 - rho)))
    return Correlation(rho, float(2 * stdtr(freedom, -abs(t))))


@lru_cache(maxsize=4)
def drawn(tasks: int) -> NDArray[np.float32]:
    """How often each resample of the bootstrap draws each task, (RESAMPLES, tasks)."""
    drawn = np.random.default_rng(_SEED).integers(tasks, size=(RESAMPLES, tasks))
    begin = np.arange(RESAMPLES)[:, None] * tasks
    return np.bincount((drawn + begin).ravel(), minlength=RESAMPLES * tasks).reshape(drawn.shape).astype(np.float32)


def _areas(found: NDArray[Any], missed: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Both areas of each resample, given how many zero-variance groups have each score, ascending, and how many
    informative ones: (B, scores) both. NaN for a resample that lacks a class.
    """
    true, false = found.cumsum(axis=1), missed.cumsum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        roc = (missed * (true - found / 2)).sum(axis=1) / (true[:, -1] * false[:, -1])
        precision = np.where(true + false > 0, true / (true + false), 0)
        average = (precision * found).sum(axis=1) / true[:, -1]
    lacking = (true[:, -1] == 0) | (false[:, -1] == 0)
    return np.where(lacking, np.nan, roc), np.where(lacking, np.nan, average)


def _delong(area: float, positive: Bools, found: Ints, missed: Ints, task: Ints) -> float:
    """Standard error of the ROC area from DeLong's (1988) components, summed over each task.

    The groups come in ascending order of score: whether zero-variance, how many of each class have each score, and
    their tasks.
    """
    true, false = found.cumsum(), missed.cumsum()
    # The share of the zero-variance groups under each score, and of the informative ones over it, ties counting half.
    lower = (true - found / 2) / true[-1]
    higher = (false[-1] - false + missed / 2) / false[-1]
    counts = found + missed
    influence = np.where(
        positive, np.repeat((higher - area) / true[-1], counts), np.repeat((lower - area) / false[-1], counts)
    )
    by_task, tasks = np.bincount(task, influence), _distinct(task)
    return float(np.sqrt(tasks / (tasks - 1) * (by_task @ by_task)))


def _distinct(task: Ints) -> int:
    """How many tasks there are, given the number of each group's, from 0."""
    return int(np.count_nonzero(np.bincount(task)))


def _on_logit_scale(area: float, error: float) -> Interval:
    if not 0 < area < 1 or not error > 0:
        return Interval(area, UNKNOWN.low, UNKNOWN.high)
    spread = NORMAL_QUANTILE * error / (area * (1 - area))
    return Interval(area, float(expit(logit(area) - spread)), float(expit(logit(area) + spread)))
