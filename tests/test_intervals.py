import math

import numpy as np
import pytest
from scipy.stats import binom

from calibrate.intervals import proportion, relative_saving


@pytest.mark.parametrize(("successes", "trials"), [(13, 17), (1, 9), (40, 200)])
def test_clopper_pearson_bounds_are_where_the_binomial_tails_hold_a_fortieth(successes: int, trials: int) -> None:
    found = proportion(successes, trials)
    assert found.value == successes / trials
    assert binom.sf(successes - 1, trials, found.low) == pytest.approx(0.025)
    assert binom.cdf(successes, trials, found.high) == pytest.approx(0.025)


def test_clopper_pearson_at_the_ends_and_without_a_trial() -> None:
    assert proportion(0, 10).low == 0.0
    assert proportion(10, 10).high == 1.0
    # 10 of 10: the lower bound solves p^10 = 0.025.
    assert proportion(10, 10).low == pytest.approx(0.025 ** (1 / 10))
    nothing = proportion(0, 0)
    assert math.isnan(nothing.value)
    assert (nothing.low, nothing.high) == (0.0, 1.0)


def test_the_interval_of_a_saving_agrees_with_the_bootstrap_over_groups() -> None:
    rng = np.random.default_rng(5)
    cost = rng.integers(100, 900, 400)
    saved = np.where(rng.random(400) < 0.2, cost // 2, 0)
    informative = rng.random(400) < 0.6
    dropped = informative & (rng.random(400) < 0.05)

    def net(rows: np.ndarray) -> float:
        kept = informative[rows] & ~dropped[rows]
        return float(1 - (cost - saved)[rows].sum() / cost[rows].sum() * informative[rows].sum() / kept.sum())

    value = net(np.arange(400))
    found = relative_saving(value, [cost - saved, informative], [cost, informative & ~dropped])
    resampled = [net(rng.integers(0, 400, 400)) for _ in range(2000)]
    assert found.value == value
    assert [found.low, found.high] == pytest.approx(np.quantile(resampled, [0.025, 0.975]), abs=0.006)


def test_a_saving_over_nothing_has_no_interval() -> None:
    for kept, of in (([5], [9]), ([0, 0], [3, 4])):
        found = relative_saving(0.5, [np.array(kept)], [np.array(of)])
        assert math.isnan(found.low)
        assert math.isnan(found.high)
