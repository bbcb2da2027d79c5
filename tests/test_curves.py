import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import expit, logit
from sklearn.metrics import roc_auc_score

from calibrate.curves import auroc, rank_correlation


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=2, max_size=60))
@settings(deadline=None)
def test_auroc_equals_scikit_learn_with_ties_and_is_unknown_without_both_classes(drawn: list[tuple[int, bool]]) -> None:
    scores, informative = np.array([s for s, _ in drawn], float), np.array([i for _, i in drawn])
    found = auroc(scores, informative)
    if informative.all() or not informative.any():
        assert found is None
    else:
        assert found is not None
        assert found.value == pytest.approx(roc_auc_score(informative, scores))
        assert math.isnan(found.low) or 0 <= found.low < found.value < found.high <= 1


def delong_by_definition(scores: NDArray[np.float64], informative: NDArray[np.bool_]) -> tuple[float, float]:
    """DeLong's structural components as the paper writes them: a kernel over all pairs."""
    kernel = np.array([[(x > y) + 0.5 * (x == y) for y in scores[~informative]] for x in scores[informative]])
    above, below = kernel.mean(axis=1), kernel.mean(axis=0)
    deviation = math.sqrt(np.var(above, ddof=1) / len(above) + np.var(below, ddof=1) / len(below))
    area = kernel.mean()
    spread = 1.959963984540054 * deviation / (area * (1 - area))
    return float(expit(logit(area) - spread)), float(expit(logit(area) + spread))


def test_the_interval_is_delongs() -> None:
    rng = np.random.default_rng(1)
    informative = rng.random(80) < 0.6
    scores = np.round(rng.normal(size=80) + informative, 1)
    found = auroc(scores, informative)
    assert found is not None
    assert (found.low, found.high) == pytest.approx(delong_by_definition(scores, informative))


def test_the_interval_covers_the_true_area() -> None:
    rng = np.random.default_rng(2)
    informative = np.arange(94) < 61
    # Two normals one standard deviation apart: the area is Phi(1 / sqrt 2).
    true = 0.5 * (1 + math.erf(0.5))
    intervals = [auroc(rng.normal(size=94) + informative, informative) for _ in range(600)]
    covered = np.mean([i is not None and i.low <= true <= i.high for i in intervals])
    assert covered > 0.925


def test_perfect_separation_has_an_area_and_no_interval() -> None:
    found = auroc(np.array([0.0, 0.1, 0.8, 0.9]), np.array([False, False, True, True]))
    assert found is not None
    assert found.value == 1.0
    assert math.isnan(found.low)


def test_rank_correlation_is_unknown_when_one_side_does_not_vary() -> None:
    assert rank_correlation(np.zeros(5), np.arange(5.0)) is None
    assert rank_correlation(np.arange(5.0), np.zeros(5)) is None
    assert rank_correlation(np.arange(5.0), np.arange(5.0) ** 2) == pytest.approx(1)
