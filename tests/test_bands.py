"""The curves and their bands, against scikit-learn and by hand."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import precision_recall_curve, roc_curve

from calibrate.bands import bands

CLASSES = st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=2, max_size=40).filter(
    lambda groups: len({informative for _, informative in groups}) == 2
)


def of(groups: list[tuple[int, bool]], tasks: list[int] | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    scores, informative = np.array([g[0] for g in groups], float), np.array([g[1] for g in groups])
    return scores, informative, np.arange(len(groups)) if tasks is None else np.array(tasks)


@given(CLASSES)
def test_the_roc_curve_is_that_of_scikit_learn(groups: list[tuple[int, bool]]) -> None:
    scores, informative, task = of(groups)
    found = bands(scores, informative, task)
    assert found is not None
    false, true, _ = roc_curve(~informative, -scores, drop_intermediate=False)
    np.testing.assert_allclose(found.roc.value, np.interp(found.roc.x, false, true), atol=1e-12)


@given(CLASSES)
def test_precision_at_a_recall_is_that_of_the_first_threshold_that_finds_so_many(
    groups: list[tuple[int, bool]],
) -> None:
    scores, informative, task = of(groups)
    found = bands(scores, informative, task)
    assert found is not None
    precision, recall, _ = precision_recall_curve(~informative, -scores)
    by_threshold = [(r, p) for p, r in zip(precision, recall, strict=True) if r > 0][::-1]
    for wanted, value in zip(found.precision_recall.x, found.precision_recall.value, strict=True):
        first = next(p for r, p in by_threshold if r >= max(wanted, by_threshold[0][0]) - 1e-9)
        assert abs(value - first) < 1e-12


def test_the_band_holds_the_curve_of_most_points_and_narrows_with_more_tasks() -> None:
    rng = np.random.default_rng(3)

    def width(tasks: int) -> float:
        informative = rng.random(tasks) < 0.5
        found = bands(rng.normal(informative), informative, np.arange(tasks))
        assert found is not None
        inside = (found.roc.low <= found.roc.value + 1e-9) & (found.roc.value <= found.roc.high + 1e-9)
        assert inside.mean() > 0.95
        return float((found.roc.high - found.roc.low).mean())

    assert width(2_000) < 0.5 * width(100)


def test_groups_of_one_task_are_drawn_together() -> None:
    rng = np.random.default_rng(4)
    informative = np.repeat(rng.random(40) < 0.5, 5)
    scores = np.repeat(rng.normal(size=40), 5) + informative
    apart = bands(scores, informative, np.arange(200))
    together = bands(scores, informative, np.repeat(np.arange(40), 5))
    assert apart is not None
    assert together is not None
    assert (together.roc.high - together.roc.low).mean() > 1.5 * (apart.roc.high - apart.roc.low).mean()


def test_without_two_tasks_the_band_is_not_known_and_without_a_class_there_is_no_curve() -> None:
    one_task = bands(*of([(1, True), (2, False), (3, True), (4, False)], [0, 0, 0, 0]))
    assert one_task is not None
    assert np.isnan(one_task.roc.low).all()
    assert not np.isnan(one_task.roc.value).any()
    assert bands(*of([(1, True), (2, True)])) is None
