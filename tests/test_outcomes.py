import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrate.outcomes import (
    advantage_l2_kept,
    advantages,
    break_even_precision,
    net_saving,
    outcomes,
    zero_variance,
)


def test_a_group_is_zero_variance_when_its_rewards_span_no_more_than_the_tolerance() -> None:
    rewards = np.array([[0.0, 0.0, 0.0], [0.25, 0.5, 0.25], [0.5, 0.5, 0.75]])
    assert zero_variance(rewards).tolist() == [True, False, False]
    assert zero_variance(rewards, 0.25).tolist() == [True, True, True]
    assert zero_variance(rewards, 0.2).tolist() == [True, False, False]


def test_outcomes_are_named_by_the_common_reward() -> None:
    rewards = np.array([[0.0, 0.0], [1.0, 1.0], [1.0, 0.0], [0.5, 0.5], [-1.0, -1.0]])
    assert outcomes(rewards).tolist() == ["all_fail", "all_succeed", "mixed", "uniform", "uniform"]


def test_rewards_that_differ_only_by_rounding_are_no_lesson() -> None:
    assert outcomes(np.array([[0.1 + 0.2, 0.3], [1.0, 1.0 - 1e-12]])).tolist() == ["uniform", "all_succeed"]


def test_a_wide_tolerance_does_not_make_success_a_failure() -> None:
    assert outcomes(np.array([[1.0, 1.0], [0.0, 0.0], [0.5, 0.5]]), 5.0).tolist() == [
        "all_succeed",
        "all_fail",
        "uniform",
    ]


def test_advantages_are_centred_and_scaled_by_the_population_deviation() -> None:
    # One success in four: mean 1/4, population std sqrt(3)/4.
    found = advantages(np.array([[1.0, 0.0, 0.0, 0.0]]))[0]
    assert found == pytest.approx([np.sqrt(3), -1 / np.sqrt(3), -1 / np.sqrt(3), -1 / np.sqrt(3)], rel=1e-6)
    assert advantages(np.full((1, 4), 0.7)).tolist() == [[0.0] * 4]


@given(
    st.lists(st.lists(st.integers(-8, 8).map(lambda n: n / 4), min_size=4, max_size=4), min_size=1, max_size=8),
    st.lists(st.booleans(), min_size=8, max_size=8),
)
@settings(deadline=None)
def test_advantage_l2_kept_equals_the_ratio_of_norms_of_the_advantages(
    rows: list[list[float]], keep: list[bool]
) -> None:
    rewards, kept = np.array(rows), np.array(keep[: len(rows)])
    norms = np.linalg.norm(advantages(rewards)), np.linalg.norm(advantages(rewards)[kept])
    expected = norms[1] / norms[0] if norms[0] > 0 else 1.0
    assert advantage_l2_kept(rewards.var(axis=1), kept) == pytest.approx(expected, abs=1e-6)


def test_advantage_l2_kept_of_the_published_gate() -> None:
    # 4 of 61 informative groups cut, binary rewards: each informative group carries the same norm.
    variance = np.concatenate([np.full(61, 0.1875), np.zeros(39)])
    kept = np.arange(100) >= 4
    assert round(advantage_l2_kept(variance, kept), 4) == 0.9667


def test_net_saving_of_the_published_gate() -> None:
    # 2,170 of 18,197 steps saved, 4 of 61 informative groups dropped: 5.7 %.
    assert round(100 * float(net_saving(2170 / 18197, 4 / 61)), 1) == 5.7


def test_a_gate_that_drops_every_informative_group_saves_infinitely_little() -> None:
    assert net_saving(np.array([0.5, 0.2]), np.array([1.0, 0.0])).tolist() == [-np.inf, pytest.approx(0.2)]


@given(st.integers(1, 50), st.integers(0, 50), st.integers(51, 100), st.floats(0.01, 0.99))
@settings(deadline=None)
def test_net_saving_is_positive_exactly_above_the_break_even_precision(
    positives: int, negatives: int, informative: int, per_cut: float
) -> None:
    groups = 150
    cut = positives + negatives
    precision, zero_rate = positives / cut, (groups - informative) / groups
    net = float(net_saving(cut * per_cut / groups, negatives / informative))
    margin = precision - break_even_precision(per_cut, zero_rate)
    assert abs(margin) < 1e-9 or (net > 0) == (margin > 0)


def test_the_norm_kept_is_never_over_all_of_it() -> None:
    # With 150 mixed groups of 8 binary rewards and 20 cut ones the two sums differ by rounding in a tenth of the sets.
    for seed in range(60):
        wins = np.random.default_rng(seed).integers(1, 8, 150) / 8
        variance = np.concatenate([np.zeros(20), wins * (1 - wins)])
        assert advantage_l2_kept(variance, np.arange(170) >= 20) <= 1.0


def test_without_an_informative_group_the_net_saving_is_not_known() -> None:
    assert np.isnan(net_saving(0.5, np.nan))


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_advantage_l2_kept_holds_for_every_finite_variance() -> None:
    # Beside deviations this large epsilon is nothing: each group has the same norm, and one of two keeps 1 / sqrt(2).
    largest = float(np.finfo(np.float64).max)
    assert advantage_l2_kept(np.array([largest, 1e300]), np.array([True, False])) == pytest.approx(np.sqrt(0.5))
    assert advantage_l2_kept(np.array([1.0, 1e-320]), np.array([False, True])) == pytest.approx(0.0, abs=1e-12)
