"""The ROC and the precision-recall curve, each with a band: how far another draw of tasks would move it."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrate.curves import Bools, Ints, Scores, drawn
from calibrate.intervals import CONFIDENCE
from calibrate.ranking import Ranking

Floats = NDArray[np.float64]

_GRID = np.linspace(0, 1, 101)
_MOST_WEIGHTS = 20_000_000  # resamples · groups held at once


@dataclass(frozen=True, eq=False)
class Band:
    """A curve over a grid of x in [0, 1] with the 95 % band of each point; arrays (101,), bounds NaN where unknown."""

    x: Floats
    value: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True, eq=False)
class Bands:
    """`roc`: the share of zero-variance groups that are taken, over the share of informative ones that are.
    `precision_recall`: the precision of the first threshold that finds that share of the zero-variance groups.
    """

    roc: Band
    precision_recall: Band


def bands(scores: Scores, informative: Bools, task: Ints) -> Bands | None:
    """Both curves of finding zero-variance groups by low scores; None when a class is absent. All arrays are (n,).

    The bands are pointwise: the percentiles of the curves of a bootstrap that draws tasks. They are NaN with fewer than
    2 groups of a class or fewer than 2 tasks, as the intervals of `calibrate.curves.areas` are.
    """
    if informative.all() or not informative.any():
        return None
    _, number = np.unique(task, return_inverse=True)
    ranking = Ranking.of(scores)
    positive = ~informative[ranking.order]
    weights = [np.ones((1, len(scores)), np.float32)]
    if min(informative.sum(), positive.sum()) >= 2 and number.max() > 0:
        of_task = drawn(int(number.max()) + 1)
        at_once = max(1, _MOST_WEIGHTS // len(scores))
        weights += [
            of_task[first : first + at_once, number[ranking.order]] for first in range(0, len(of_task), at_once)
        ]
    counts = [_counts(part, positive, ranking.starts) for part in weights]
    true, false = (np.concatenate(parts) for parts in zip(*counts, strict=True))
    return Bands(_band(true, false, _roc), _band(true, false, _precision_recall))


def _counts(weights: NDArray[np.float32], positive: Bools, starts: Ints) -> tuple[Floats, Floats]:
    """True and false positives at each threshold, ascending, of each resample: (B, thresholds) both."""
    found = np.add.reduceat(weights * positive, starts, axis=1, dtype=np.float64)
    missed = np.add.reduceat(weights * ~positive, starts, axis=1, dtype=np.float64)
    return found.cumsum(axis=1), missed.cumsum(axis=1)


def _band(true: Floats, false: Floats, curve: Callable[[Floats, Floats], Floats]) -> Band:
    """The first row's curve, and the percentiles of the others'."""
    lines = [curve(t, f) for t, f in zip(true, false, strict=True) if t[-1] > 0 and f[-1] > 0]
    if len(lines) < 3:
        unknown = np.full(len(_GRID), np.nan)
        return Band(_GRID, lines[0], unknown, unknown)
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(np.array(lines[1:]), [tail, 100 - tail], axis=0)
    return Band(_GRID, lines[0], low, high)


def _roc(true: Floats, false: Floats) -> Floats:
    # Where several thresholds have one false positive rate, the curve is vertical: interp takes the last.
    return np.asarray(np.interp(_GRID, np.append(0, false / false[-1]), np.append(0, true / true[-1])))


def _precision_recall(true: Floats, false: Floats) -> Floats:
    recall = true / true[-1]
    place = np.searchsorted(recall, np.maximum(_GRID, recall[recall > 0][0]) - 1e-12)
    return np.asarray(true[place] / (true[place] + false[place]))
