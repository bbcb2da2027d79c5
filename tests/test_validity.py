"""Whether certificates and estimates keep their promises, on populations whose truth is known (benchmarks/validity.py).

A quick part always runs; `pytest -m slow` runs 2,000 calibration sets a population.
"""

import runpy
from typing import Any

import numpy as np
import pytest
from user import ROOT

VALIDITY: dict[str, Any] = runpy.run_path(str(ROOT / "benchmarks" / "validity.py"))
POPULATIONS = VALIDITY["POPULATIONS"]
CONFIDENCE = 0.9

each_population = pytest.mark.parametrize("population", POPULATIONS, ids=lambda population: population.name)


def allowed(sets: int, confidence: float) -> float:
    """The rate of what is wrong that is over 1 - c by no more than three standard errors of the simulation."""
    return 1 - confidence + 3 * float(np.sqrt(confidence * (1 - confidence) / sets))


@each_population
def test_the_truth_of_a_population_is_what_its_draws_say(population: Any) -> None:
    sample = population.sample(np.random.default_rng(0), 100_000)
    for step, threshold in ((3, 0.2), (10, 0.4), (20, 0.7)):
        cut = (sample.signals[VALIDITY["SIGNAL"]][:, step - 1] < threshold) & sample.eligible[:, step - 1]
        precision, share, _ = population.rates(np.array(float(step)), np.array(threshold))
        assert cut.mean() == pytest.approx(float(share), abs=0.006)
        if cut.sum() > 500:
            assert sample.zero_variance[cut].mean() == pytest.approx(float(precision), abs=0.06)


@each_population
def test_certificates_are_wrong_no_more_often_than_they_say(population: Any) -> None:
    got = VALIDITY["certificates"](population, 250, 60, CONFIDENCE)
    assert got.wrong_rate <= allowed(60, CONFIDENCE)


def test_an_informative_signal_gets_a_certificate_and_a_useless_one_does_not() -> None:
    informative, useless = POPULATIONS[:2]
    assert VALIDITY["certificates"](informative, 800, 20, CONFIDENCE).found == 20
    assert VALIDITY["certificates"](useless, 800, 20, CONFIDENCE).found <= 4


def test_the_precision_out_of_sample_is_nearer_the_truth_than_that_in_sample() -> None:
    got = VALIDITY["estimates"](POPULATIONS[0], 400, 30)
    assert abs(got.out_of_sample - got.truth_at_fold_size) < 0.03
    assert got.in_sample - got.truth_in_sample > abs(got.out_of_sample - got.truth_at_fold_size)


@pytest.mark.slow
@each_population
@pytest.mark.parametrize(("groups", "confidence"), [(50, 0.95), (400, 0.95), (3000, 0.95), (400, 0.8)])
def test_of_two_thousand_calibration_sets_no_more_are_violated_than_promised(
    population: Any, groups: int, confidence: float
) -> None:
    sets = 2000
    got = VALIDITY["certificates"](population, groups, sets, confidence)
    assert got.wrong_rate <= allowed(sets, confidence)
    assert got.worth >= got.worth_by_bonferroni - 0.002
    assert got.worth <= population.best + 1e-9


@pytest.mark.slow
@each_population
@pytest.mark.parametrize("groups", [400, 1000])
def test_the_estimate_out_of_sample_is_within_one_point_of_the_truth_and_intervals_cover(
    population: Any, groups: int
) -> None:
    sets = 2000
    got = VALIDITY["estimates"](population, groups, sets)
    assert got.cuts_out_of_sample > 1000
    noise = np.sqrt(got.out_of_sample * (1 - got.out_of_sample) / got.cuts_out_of_sample)
    assert abs(got.out_of_sample - got.truth_at_fold_size) < 0.01 + 2 * noise
    assert got.precision_covered > 0.94
    assert 1 - got.net_saving_covered <= allowed(sets, 0.95)
    assert 1 - got.late_net_saving_covered <= allowed(sets, 0.95)
