"""How well a signal ranks groups: area under the ROC curve and rank correlation."""

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit
from scipy.stats import rankdata, spearmanr

from calibrate.intervals import NORMAL_QUANTILE, Interval

Floats = NDArray[np.float64]


def auroc(scores: Floats, informative: NDArray[np.bool_]) -> Interval | None:
    """P(an informative group scores higher than a zero-variance one), ties counting half; None when a class is absent.

    The interval is DeLong's (1988, by mid-ranks as Sun and Xu 2014), taken on the logit scale so that it stays in
    [0, 1]. It is unknown (NaN) with fewer than 2 groups of a class and where the two do not overlap at all.
    """
    higher, lower = scores[informative], scores[~informative]
    if not len(higher) or not len(lower):
        return None
    ranks = rankdata(scores)
    above = (ranks[informative] - rankdata(higher)) / len(lower)
    below = 1 - (ranks[~informative] - rankdata(lower)) / len(higher)
    area = float(above.mean())
    if min(len(higher), len(lower)) < 2:
        return Interval(area, np.nan, np.nan)
    variance = np.var(above, ddof=1) / len(higher) + np.var(below, ddof=1) / len(lower)
    if variance == 0 or not 0 < area < 1:
        return Interval(area, np.nan, np.nan)
    spread = NORMAL_QUANTILE * float(np.sqrt(variance)) / (area * (1 - area))
    return Interval(area, float(expit(logit(area) - spread)), float(expit(logit(area) + spread)))


def rank_correlation(scores: Floats, reward_variance: Floats) -> float | None:
    """Spearman's rho of signal and reward variance; None when one of them does not vary."""
    if len(scores) < 2 or np.ptp(scores) == 0 or np.ptp(reward_variance) == 0:
        return None
    return float(spearmanr(scores, reward_variance).statistic)
