import math
import warnings

import numpy as np
import pytest
from scipy.stats import binom

from calibrate.intervals import net_saving_interval, proportion, relative_saving, share


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
    found = relative_saving(value, [cost - saved, informative], [cost, informative & ~dropped], np.arange(400))
    resampled = [net(rng.integers(0, 400, 400)) for _ in range(2000)]
    assert found.value == value
    assert [found.low, found.high] == pytest.approx(np.quantile(resampled, [0.025, 0.975]), abs=0.006)


def test_a_saving_over_nothing_has_no_interval() -> None:
    for kept, of in (([5], [9]), ([0, 0], [3, 4])):
        found = relative_saving(0.5, [np.array(kept)], [np.array(of)], np.arange(len(of)))
        assert math.isnan(found.low)
        assert math.isnan(found.high)


def test_a_share_of_groups_of_distinct_tasks_has_the_exact_interval() -> None:
    among = np.array([1, 1, 0, 1, 1, 0])
    found = share(np.array([1, 0, 0, 1, 1, 0]), among, np.array([5, 2, 2, 3, 9, 9]))
    assert found == proportion(3, 4)


def test_groups_that_repeat_their_task_tell_no_more_than_the_tasks() -> None:
    hits = np.repeat(np.random.default_rng(0).random(40) < 0.7, 5)
    found = share(hits, np.ones(200), np.repeat(np.arange(40), 5))
    alone = share(hits[::5], np.ones(40), np.arange(40))
    assert found.value == alone.value
    assert (found.low, found.high) == pytest.approx((alone.low, alone.high), abs=0.01)
    assert found.high - found.low > 2 * (share(hits, np.ones(200), np.arange(200)).high - found.value)


def test_when_every_group_hits_the_tasks_are_the_trials() -> None:
    found = share(np.ones(12), np.ones(12), np.repeat(np.arange(3), 4))
    assert (found.value, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(0.025 ** (1 / 3))


@pytest.mark.parametrize("rate", [0.5, 0.8, 0.95])
def test_the_interval_of_clustered_groups_covers(rate: float) -> None:
    rng = np.random.default_rng(7)
    task = np.repeat(np.arange(60), 4)
    covered = 0
    for _ in range(500):
        of_task = rng.beta(2 * rate, 2 * (1 - rate), 60)  # strongly alike within a task
        found = share(rng.random(240) < of_task[task], np.ones(240), task)
        covered += found.low <= rate <= found.high
    assert covered / 500 > 0.92


def test_the_interval_of_a_saving_widens_when_groups_share_tasks() -> None:
    rng = np.random.default_rng(6)
    cost = np.repeat(rng.integers(100, 900, 50), 6)
    saved = np.where(np.repeat(rng.random(50) < 0.3, 6), cost // 2, 0)
    value = float(saved.sum() / cost.sum())
    alone = relative_saving(value, [cost - saved], [cost], np.arange(300))
    together = relative_saving(value, [cost - saved], [cost], np.repeat(np.arange(50), 6))
    assert together.high - together.low == pytest.approx(np.sqrt(6) * (alone.high - alone.low), rel=0.05)


# Of net savings

# Groups, share of them zero-variance, share cut, precision, share of its cost that a cut saves, groups a task.
GATES = [
    (160, 0.275, 0.0875, 0.93, 0.1, 1),  # one informative group is cut, on average
    (144, 0.275, 0.0875, 0.93, 0.033, 1),
    (400, 0.4, 0.3, 0.6, 0.8, 1),
    (400, 0.4, 0.2, 0.8, 0.5, 4),
    (160, 0.4, 0.05, 0.8, 0.5, 1),  # eight groups are cut
    (60, 0.4, 0.1, 0.9, 0.5, 1),
]


@pytest.mark.parametrize(("groups", "zero", "cut", "precision", "saves", "a_task"), GATES)
def test_the_interval_of_a_net_saving_covers_also_where_hardly_an_informative_group_is_cut(
    groups: int, zero: float, cut: float, precision: float, saves: float, a_task: int
) -> None:
    rng, task = np.random.default_rng(8), np.arange(groups) // a_task
    chances = np.array([cut * precision / zero, cut * (1 - precision) / (1 - zero)])
    truth, covered = 1 - (1 - cut * saves) / (1 - chances[1]), 0
    for _ in range(600):
        of_task = rng.beta(2 * zero, 2 - 2 * zero, groups)[task] if a_task > 1 else np.full(groups, zero)
        informative = rng.random(groups) >= of_task
        taken = rng.random(groups) < chances[informative.astype(int)]
        cost = rng.lognormal(0, 0.4, groups)
        kept, left = cost * (1 - saves * taken), informative & ~taken
        value = 1 - kept.sum() / cost.sum() * informative.sum() / left.sum()
        found = net_saving_interval(value, kept, cost, left.astype(float), informative.astype(float), task)
        covered += found.low <= truth <= found.high
    assert covered / 600 > 0.93


def test_a_gate_that_happened_to_cut_no_informative_group_is_not_known_to_pay() -> None:
    cost, taken = np.full(100, 10.0), np.arange(100) < 10
    informative = np.arange(100) >= 30
    found = net_saving_interval(
        0.05, cost * (1 - taken / 2), cost, informative * 1.0, informative * 1.0, np.arange(100)
    )
    # Up to 3.7 / 70 = 5.1 % of the informative groups may be what it cuts (Clopper-Pearson).
    assert found.low < 0 < found.high
    assert found.low > 1 - 0.95 / (1 - proportion(0, 70).high) - 0.02


def test_with_many_groups_the_interval_of_a_net_saving_is_that_of_the_delta_method() -> None:
    rng = np.random.default_rng(9)
    cost, informative = rng.integers(60, 140, 4000), rng.random(4000) < 0.6
    taken = rng.random(4000) < np.where(informative, 0.1, 0.4)
    kept, left = cost * (1 - 0.6 * taken), informative & ~taken
    value = 1 - kept.sum() / cost.sum() * informative.sum() / left.sum()
    found = net_saving_interval(value, kept, cost, left * 1.0, informative * 1.0, np.arange(4000))
    other = relative_saving(value, [kept, informative], [cost, left], np.arange(4000))
    assert (found.low, found.high) == pytest.approx((other.low, other.high), abs=0.002)


def test_a_net_saving_over_nothing_has_no_interval() -> None:
    one, nothing, tasks = np.ones(4), np.zeros(4), np.arange(4)
    for kept, left, task in ((nothing, one, tasks), (one, nothing, tasks), (one, one, np.zeros(4, int))):
        found = net_saving_interval(0.5, kept, one, left, one, task)
        assert math.isnan(found.low)
        assert math.isnan(found.high)


def test_a_net_saving_that_may_be_the_whole_cost_has_a_bound_of_one_and_no_warning() -> None:
    # Two of three groups are cut at once, the dear ones: 40 of 45, and were 2.98 of 3 cut (Clopper-Pearson), all.
    kept, cost, informative = np.array([0.0, 0.0, 5.0]), np.array([20.0, 20.0, 5.0]), np.array([0.0, 0.0, 1.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = net_saving_interval(8 / 9, kept, cost, informative, informative, np.arange(3))
    assert found.high == 1.0
    assert found.low < 8 / 9
