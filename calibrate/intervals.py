"""Confidence intervals, two-sided, 95 %."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import binomtest

CONFIDENCE = 0.95
NORMAL_QUANTILE = float(ndtri((1 + CONFIDENCE) / 2))


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and its interval; the bounds are NaN where the data cannot give one."""

    value: float
    low: float
    high: float


def proportion(successes: int, trials: int) -> Interval:
    """Share of successes with its exact (Clopper-Pearson) interval; NaN and [0, 1] without a trial."""
    if trials == 0:
        return Interval(np.nan, 0.0, 1.0)
    interval = binomtest(successes, trials).proportion_ci(CONFIDENCE, method="exact")
    return Interval(successes / trials, float(interval.low), float(interval.high))


def relative_saving(value: float, kept: Sequence[NDArray[Any]], of: Sequence[NDArray[Any]]) -> Interval:
    """`value` = 1 - Π (Σ kept_i / Σ of_i), known already, with its interval; each array is (N,), each group one draw.

    Delta method on the logarithm of the product. The bounds are NaN with one group or where a sum is 0.
    """
    count = len(of[0])
    if count < 2 or any(array.sum() == 0 for array in (*kept, *of)):
        return Interval(value, np.nan, np.nan)
    influence = sum(array / array.mean() for array in kept) - sum(array / array.mean() for array in of)
    spread = NORMAL_QUANTILE * float(np.std(influence, ddof=1) / np.sqrt(count))
    ratio = 1 - value
    return Interval(value, 1 - ratio * float(np.exp(spread)), 1 - ratio * float(np.exp(-spread)))
