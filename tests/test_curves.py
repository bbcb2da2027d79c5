import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import expit, logit
from scipy.stats import spearmanr
from sklearn.metrics import average_precision_score, roc_auc_score

from calibrate import curves
from calibrate.curves import areas, auroc, rank_correlation
from calibrate.intervals import Interval


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=2, max_size=60))
@settings(max_examples=60, deadline=None)
def test_areas_equal_scikit_learn_with_ties_and_are_unknown_without_both_classes(drawn: list[tuple[int, bool]]) -> None:
    scores, informative = np.array([s for s, _ in drawn], float), np.array([i for _, i in drawn])
    found = areas(scores, informative, np.arange(len(drawn)))
    if informative.all() or not informative.any():
        assert found is None
        return
    assert found is not None
    assert found.roc.value == pytest.approx(roc_auc_score(informative, scores))
    assert found.precision_recall.value == pytest.approx(average_precision_score(~informative, -scores))
    for interval in (found.roc, found.precision_recall):
        assert math.isnan(interval.low) or 0 <= interval.low < interval.value < interval.high <= 1


def delong_by_definition(scores: NDArray[np.float64], informative: NDArray[np.bool_]) -> tuple[float, float]:
    """DeLong's structural components as the paper writes them: a kernel over all pairs."""
    kernel = np.array([[(x > y) + 0.5 * (x == y) for y in scores[~informative]] for x in scores[informative]])
    above, below = kernel.mean(axis=1), kernel.mean(axis=0)
    deviation = math.sqrt(np.var(above, ddof=1) / len(above) + np.var(below, ddof=1) / len(below))
    area = kernel.mean()
    spread = 1.959963984540054 * deviation / (area * (1 - area))
    return float(expit(logit(area) - spread)), float(expit(logit(area) + spread))


def drawn(rng: np.random.Generator, tasks: int, of_each: int) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Groups of two kinds, one standard deviation apart; those of a task are alike in kind and score."""
    informative = np.repeat(rng.random(tasks) < 0.6, of_each) ^ (rng.random(tasks * of_each) < 0.1)
    shared = np.repeat(rng.normal(size=tasks), of_each)
    return (shared + rng.normal(size=tasks * of_each)) / np.sqrt(2) + informative, informative


def test_the_bootstrap_interval_agrees_with_delongs_where_groups_are_independent() -> None:
    scores, informative = drawn(np.random.default_rng(1), 400, 1)
    found = auroc(scores, informative, np.arange(400))
    assert found is not None
    assert (found.low, found.high) == pytest.approx(delong_by_definition(scores, informative), abs=0.01)


@pytest.mark.parametrize("of_each", [1, 4])
def test_above_the_limit_the_analytic_intervals_agree_with_the_bootstrap(
    monkeypatch: pytest.MonkeyPatch, of_each: int
) -> None:
    scores, informative = drawn(np.random.default_rng(2), 1000 // of_each, of_each)
    task = np.arange(1000) // of_each
    resampled = areas(scores, informative, task)
    monkeypatch.setattr(curves, "ANALYTIC_ABOVE", 999)
    analytic = areas(scores, informative, task)
    assert resampled is not None
    assert analytic is not None
    assert (analytic.roc.low, analytic.roc.high) == pytest.approx((resampled.roc.low, resampled.roc.high), abs=0.012)
    average = analytic.precision_recall
    assert (average.low, average.high) == pytest.approx(
        (resampled.precision_recall.low, resampled.precision_recall.high), abs=0.04
    )


def test_the_analytic_error_is_delongs_where_groups_are_independent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "ANALYTIC_ABOVE", 99)
    rng = np.random.default_rng(6)
    informative = rng.random(500) < 0.6
    scores = np.round(rng.normal(size=500) + informative, 1)  # with ties
    found = auroc(scores, informative, np.arange(500))
    assert found is not None
    assert (found.low, found.high) == pytest.approx(delong_by_definition(scores, informative), abs=1e-3)


def coverage(true: float, interval: Callable[[np.random.Generator], Interval | None], times: int) -> float:
    rng = np.random.default_rng(3)
    found = [interval(rng) for _ in range(times)]
    return float(np.mean([i is not None and i.low <= true <= i.high for i in found]))


def test_the_intervals_of_areas_cover_the_true_ones() -> None:
    informative = np.arange(94) < 61
    # Two normals one standard deviation apart: the area is Phi(1 / sqrt 2).
    true = 0.5 * (1 + math.erf(0.5))

    def once(rng: np.random.Generator) -> Interval | None:
        return auroc(rng.normal(size=94) + informative, informative, np.arange(94))

    assert coverage(true, once, 400) > 0.92
    large = np.random.default_rng(4)
    labels = large.random(400_000) < 0.6
    average = average_precision_score(~labels, -(large.normal(size=400_000) + labels))

    def average_once(rng: np.random.Generator) -> Interval | None:
        labels = rng.random(150) < 0.6
        found = areas(rng.normal(size=150) + labels, labels, np.arange(150))
        return None if found is None else found.precision_recall

    assert coverage(float(average), average_once, 400) > 0.92


def test_the_interval_covers_where_groups_share_tasks() -> None:
    large, labels = drawn(np.random.default_rng(5), 100_000, 4)
    true = float(roc_auc_score(labels, large))

    def once(rng: np.random.Generator) -> Interval | None:
        return auroc(*drawn(rng, 60, 4), np.repeat(np.arange(60), 4))

    assert coverage(true, once, 300) > 0.9


def test_perfect_separation_has_an_area_and_no_interval() -> None:
    found = auroc(np.array([0.0, 0.1, 0.8, 0.9]), np.array([False, False, True, True]), np.arange(4))
    assert found is not None
    assert found.value == 1.0
    assert math.isnan(found.low)


def test_groups_of_one_task_alone_have_no_interval() -> None:
    found = auroc(np.arange(6.0), np.array([False, True] * 3), np.zeros(6, np.int64))
    assert found is not None
    assert math.isnan(found.low)


def test_rank_correlation_is_unknown_when_one_side_does_not_vary() -> None:
    rising = np.arange(5, dtype=np.float64)
    assert rank_correlation(np.zeros(5), rising) is None
    assert rank_correlation(rising, np.zeros(5)) is None
    found = rank_correlation(rising, rising**2)
    assert found is not None
    assert found.rho == pytest.approx(1)
    assert found.p < 0.001


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=3, max_size=40))
@settings(max_examples=100, deadline=None)
def test_rank_correlation_equals_scipy_with_ties(drawn: list[tuple[int, int]]) -> None:
    values, variance = np.array(drawn, float).T
    found = rank_correlation(values, variance)
    if found is None:
        assert np.ptp(values) == 0 or np.ptp(variance) == 0
        return
    known = spearmanr(values, variance)
    assert (found.rho, found.p) == pytest.approx((known.statistic, known.pvalue), abs=1e-12)
