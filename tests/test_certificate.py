import math
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from samples import SIGNAL, make_sample, search_of
from scipy.stats import binom, binomtest

from calibrate.certificate import certify, cuts_needed, grid, one_a_task, run_tests
from calibrate.kinds import GateKind
from calibrate.rules import Sequential, Threshold
from calibrate.sample import Sample
from calibrate.signals import REGISTRY, Signal


def sample_of(scores: NDArray[np.float64], mixed: NDArray[np.bool_], tasks: list[str] | None = None) -> Sample:
    """Scores (N,) or (N, S); without tasks each group has its own."""
    table = scores.reshape(len(scores), -1)
    after = [[20 - 2 * k for k in range(table.shape[1])]] * len(table)
    outcomes = ["mixed" if one else "all_fail" for one in mixed]
    return make_sample(table.tolist(), outcomes, after=after, total=[30] * len(table), tasks=tasks)


def drawn(rng: np.random.Generator, size: int, apart: float) -> Sample:
    """Half of the groups are mixed; the score of those is higher by `apart` standard deviations of a normal."""
    mixed = rng.random(size) < 0.5
    return sample_of(1 / (1 + np.exp(-rng.normal(size=size) - apart * mixed)), mixed)


def thresholds(*levels: float) -> list[Threshold]:
    return [Threshold(signal=SIGNAL, step=1, threshold=level) for level in levels]


def everyone(sample: Sample) -> NDArray[np.bool_]:
    return np.ones(sample.size, np.bool_)


def test_each_candidate_has_the_exact_binomial_p_value_of_its_cuts() -> None:
    sample = drawn(np.random.default_rng(0), 200, 1.0)
    for cell in run_tests(sample, thresholds(0.2, 0.4, 0.6), everyone(sample), 0.7, 0.95):
        assert isinstance(cell.rule, Threshold)
        cut = sample.signals[SIGNAL][:, 0] < cell.rule.threshold
        assert (cell.cuts, cell.true_positives) == (cut.sum(), (cut & sample.zero_variance).sum())
        expected = binomtest(cell.true_positives, cell.cuts, 0.7, alternative="greater").pvalue
        assert cell.p_value == pytest.approx(expected)


def holm(p_values: list[float], level: float) -> set[int]:
    """Holm's procedure as his paper words it."""
    rejected: set[int] = set()
    while len(rejected) < len(p_values):
        rest = [i for i in range(len(p_values)) if i not in rejected]
        smallest = min(rest, key=lambda i: p_values[i])
        if p_values[smallest] > level / len(rest):
            break
        rejected.add(smallest)
    return rejected


@pytest.mark.parametrize("seed", range(10))
def test_what_is_certified_is_what_holms_procedure_rejects(seed: int) -> None:
    sample = drawn(np.random.default_rng(seed), 400, 2.0)
    cells = run_tests(sample, thresholds(*np.linspace(0.1, 0.9, 15)), everyone(sample), 0.8, 0.9)
    rejected = holm([cell.p_value for cell in cells], 0.1)
    assert {i for i, cell in enumerate(cells) if cell.certified} == rejected


@contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def test_mapies_risk_control_certifies_the_same_thresholds() -> None:
    mapie = pytest.importorskip("mapie.risk_control", reason="mapie is not installed")
    certified = agreed = 0
    for seed in range(12):
        sample = drawn(np.random.default_rng(seed), 500, 2.0)
        levels = np.linspace(0.2, 0.95, 16)  # without a cut its p-value is NaN, and its procedure stops there
        cells = run_tests(sample, thresholds(*levels), everyone(sample), 0.8, 0.9)
        likeness = 1 - sample.signals[SIGNAL]  # MAPIE predicts zero variance at this probability or over
        controller = mapie.BinaryClassificationController(
            lambda x: np.column_stack([1 - x[:, 0], x[:, 0]]),
            "precision",
            target_level=0.8,
            confidence_level=0.9,
            list_predict_params=1 - levels,
            fwer_method="bonferroni_holm",
        )
        with quiet():
            controller.calibrate(likeness, sample.zero_variance.astype(int))
        for cell, p_value in zip(cells, controller.p_values[:, 0], strict=True):
            # It recovers the number of failures from their rate and rounds up, which can count one too many.
            one_less = binom.sf(cell.true_positives - 2, cell.cuts, 0.8)
            assert cell.p_value - 1e-12 <= p_value <= one_less + 1e-12
        ours = {round(float(level), 6) for level, cell in zip(levels, cells, strict=True) if cell.certified}
        theirs = {round(1 - float(level), 6) for level in controller.valid_predict_params}
        assert theirs <= ours
        certified, agreed = certified + len(ours), agreed + len(theirs)
    assert agreed > 50
    assert agreed >= 0.95 * certified


def test_the_candidates_are_five_steps_and_about_twenty_thresholds_whatever_the_groups() -> None:
    rng = np.random.default_rng(1)
    one, other = (sample_of(rng.random((size, 29)), rng.random(size) < 0.5) for size in (50, 300))
    rules = grid(one, SIGNAL, range(29))
    assert rules == grid(other, SIGNAL, range(29))
    steps = sorted({rule.step for rule in rules})
    assert len(steps) == 5
    assert steps[0] > 1
    assert steps[-1] < 29
    assert all(15 <= sum(rule.step == step for rule in rules) <= 20 for step in steps[1:])
    for rule in rules:  # G = 4: halfway between multiples of 1 / (6 K)
        assert (rule.threshold * 6 * rule.step) % 1 == pytest.approx(0.5)


def test_one_step_alone_has_its_own_twenty() -> None:
    sample = sample_of(np.random.default_rng(2).random((40, 29)), np.zeros(40, bool))
    assert {rule.step for rule in grid(sample, SIGNAL, [9])} == {10}


@pytest.mark.parametrize("signal", REGISTRY, ids=lambda signal: signal.name)
def test_every_signal_has_candidates_within_its_range(signal: Signal) -> None:
    sample = sample_of(np.zeros((40, 29)), np.zeros(40, bool))
    values = [rule.threshold for rule in grid(sample, signal.name, range(29))]
    assert len(set(values)) >= 15
    assert all(signal.lowest <= value <= signal.highest for value in values)


def test_of_several_groups_of_a_task_one_counts_whatever_their_order() -> None:
    tasks = ["a", "b", "a", "c", "b", "a"]
    sample = sample_of(np.zeros(6), np.zeros(6, bool), tasks)
    chosen = one_a_task(sample)
    assert sorted(np.array(tasks)[chosen]) == ["a", "b", "c"]
    names = set(sample.group_ids.filter(chosen))
    # The same groups, in another order.
    order = [3, 0, 5, 1, 4, 2]
    moved = make_sample([[0.0]] * 6, ["all_fail"] * 6, tasks=[tasks[i] for i in order])
    moved = replace(moved, group_ids=sample.group_ids.gather(order))
    assert set(moved.group_ids.filter(one_a_task(moved))) == names


def test_groups_of_the_same_task_do_not_make_a_certificate() -> None:
    scores, mixed = np.tile([0.0, 0.9], 150), np.tile([False, True], 150)
    own = sample_of(scores, mixed)
    assert certify(own, search_of(own, 0.9), GateKind.THRESHOLD, 0.95).rule is not None
    shared = sample_of(scores, mixed, [f"t{i % 20}" for i in range(300)])
    attempt = certify(shared, search_of(shared, 0.9), GateKind.THRESHOLD, 0.95)
    assert attempt.rule is None


def test_the_certified_gate_has_the_best_net_saving_of_those_certified_and_says_on_what_it_rests() -> None:
    sample = drawn(np.random.default_rng(3), 1500, 4.0)
    attempt = certify(sample, search_of(sample, 0.8), GateKind.THRESHOLD, 0.95)
    assert attempt.rule is not None
    assert attempt.certificate is not None
    (cell,) = (cell for cell in attempt.cells if cell.rule == attempt.rule)
    found = attempt.certificate
    assert (found.cuts, found.true_positives, found.p_value) == (cell.cuts, cell.true_positives, cell.p_value)
    assert (found.tests, found.tasks) == (len(attempt.cells), 1500)
    assert found.p_value == pytest.approx(binom.sf(found.true_positives - 1, found.cuts, 0.8))
    assert found.p_value <= found.level
    saved = {c.rule: (c.cuts - c.true_positives, c.cuts) for c in attempt.cells if c.certified}
    informative = 1500 - sample.zero_variance.sum()
    worth = {rule: 1 - (1 - 20 * n / (30 * 1500)) / (1 - fp / informative) for rule, (fp, n) in saved.items()}
    assert attempt.rule == max(worth, key=lambda rule: worth[rule])


def test_when_precision_is_short_it_is_named_with_the_nearest() -> None:
    sample = drawn(np.random.default_rng(4), 600, 0.0)
    told = certify(sample, search_of(sample, 0.9), GateKind.THRESHOLD, 0.95).shortfall
    assert told.startswith("precision: the most precise")
    assert "of" in told


def test_when_groups_are_short_about_how_many_would_do_is_named_and_is_about_right() -> None:
    rng = np.random.default_rng(5)

    def population(size: int) -> Sample:
        """A quarter of the groups score 0.001 and are zero-variance at 0.97; the others score 0.9."""
        low = rng.random(size) < 0.25
        return sample_of(np.where(low, 0.001, 0.9), np.where(low, rng.random(size) < 0.03, rng.random(size) < 0.7))

    small = population(130)
    told = certify(small, search_of(small, 0.85), GateKind.THRESHOLD, 0.95).shortfall
    assert told.startswith("groups: ")
    needed = cuts_needed(0.97, 0.85, 0.05 / 20)
    assert needed is not None
    enough = [population(4 * needed) for _ in range(60)]
    certified = sum(certify(s, search_of(s, 0.85), GateKind.THRESHOLD, 0.95).rule is not None for s in enough)
    assert 0.65 < certified / 60 <= 1.0


def test_of_fewer_than_ten_cuts_their_rate_is_told_and_what_would_do_at_that_rate() -> None:
    sample = sample_of(np.full(8, 0.001), np.zeros(8, bool))
    attempt = certify(sample, search_of(sample, 0.9), GateKind.THRESHOLD, 0.95)
    # Where all are hits, n cuts certify when 0.9^n is at most the level.
    needed = math.ceil(math.log(0.05 / len(attempt.cells)) / math.log(0.9))
    assert "cut 8 of 8 tasks, 8 of them zero-variance (1.000)" in attempt.shortfall
    assert f"about {needed} cuts, from about {needed} tasks" in attempt.shortfall


def test_of_fewer_than_ten_cuts_at_too_low_a_rate_no_number_of_groups_is_promised() -> None:
    sample = sample_of(np.full(9, 0.001), np.arange(9) >= 6)
    told = certify(sample, search_of(sample, 0.9), GateKind.THRESHOLD, 0.95).shortfall
    assert told.startswith("precision or groups, which cannot be told yet: of 9 tasks no candidate cuts 10 or more")
    assert "has 6 of 9, 0.667 [0.30,0.93]; 20,000 cuts at that rate would not certify 0.9" in told


def test_where_no_candidate_cuts_any_that_is_said() -> None:
    sample = sample_of(np.full(9, 1.0), np.zeros(9, bool))
    told = certify(sample, search_of(sample, 0.9), GateKind.THRESHOLD, 0.95).shortfall
    assert told == "groups: of 9 tasks no candidate cuts any"


def test_of_the_certified_gates_only_one_that_reaches_the_target_on_all_groups_is_taken() -> None:
    # The lower threshold cuts 300 groups, all zero-variance. The higher one cuts 200 more of them, and 10 games visited
    # 10 times that are mixed: 500 of 510 with one group a game, 500 of 600 (0.833) on all, and twice the saving.
    scores = np.concatenate([np.full(300, 0.001), np.full(300, 0.3), np.full(600, 1.0)])
    mixed = np.arange(1200) >= 500
    tasks = [f"a{i}" for i in range(500)] + [f"b{i % 10}" for i in range(100)] + [f"c{i}" for i in range(600)]
    sample = sample_of(scores, mixed, tasks)
    attempt = certify(sample, search_of(sample, 0.85), GateKind.THRESHOLD, 0.95)
    certified = {(cell.cuts, cell.true_positives) for cell in attempt.cells if cell.certified}
    assert certified == {(300, 300), (510, 500)}
    assert isinstance(attempt.rule, Threshold)
    assert 0.001 < attempt.rule.threshold < 0.3


def test_a_gate_that_is_right_once_a_task_and_wrong_on_all_groups_is_not_certified() -> None:
    # 300 games visited once, whose groups are zero-variance; 20 visited 20 times, mixed but for one in ten.
    tasks = [f"a{i}" for i in range(300)] + [f"b{i % 20}" for i in range(400)]
    mixed = np.arange(700) >= 340
    sample = sample_of(np.full(700, 0.001), mixed, tasks)
    one_each = sample_of(np.full(320, 0.001), np.arange(320) >= 302)
    assert certify(one_each, search_of(one_each, 0.9), GateKind.THRESHOLD, 0.95).shortfall.startswith("informative")
    told = certify(sample, search_of(sample, 0.85), GateKind.THRESHOLD, 0.95).shortfall
    assert "candidates pass with one group a task, but on all groups together the most precise has 340 of 700" in told


def test_the_power_is_as_tables_of_the_binomial_test_have_it() -> None:
    needed = cuts_needed(0.95, 0.9, 0.05)
    assert needed is not None
    assert 150 < needed < 210  # "about 180"
    rng = np.random.default_rng(6)
    hits = rng.binomial(needed, 0.95, 4000)
    assert (binom.sf(hits - 1, needed, 0.9) <= 0.05).mean() > 0.78
    assert cuts_needed(0.9, 0.9, 0.05) is None
    assert cuts_needed(0.9001, 0.9, 0.05) is None


def test_a_gate_beyond_the_grid_is_chosen_on_one_half_of_the_tasks_and_tested_on_the_other() -> None:
    rng = np.random.default_rng(7)
    mixed = rng.random(900) < 0.5
    scores = 1 / (1 + np.exp(-rng.normal(size=(900, 2)) - 4 * mixed[:, None]))
    sample = sample_of(scores, mixed)
    attempt = certify(sample, search_of(sample, 0.8), GateKind.SEQUENTIAL, 0.95)
    assert isinstance(attempt.rule, Sequential)
    assert attempt.certificate is not None
    assert (attempt.certificate.tests, attempt.certificate.tasks) == (1, 450)
    assert attempt.certificate.level == pytest.approx(0.05)


def test_where_half_of_the_tasks_choose_twice_as_many_are_asked_for() -> None:
    rng = np.random.default_rng(11)

    def population(size: int) -> Sample:
        """A quarter of the groups score 0.001 and are zero-variance at 0.96; the others score 0.9 and never are."""
        low = rng.random(size) < 0.25
        return sample_of(np.where(low, 0.001, 0.9), np.where(low, rng.random(size) < 0.04, True))

    small = population(160)
    told = certify(small, search_of(small, 0.85), GateKind.SEQUENTIAL, 0.95).shortfall
    assert told.startswith("groups: ")
    cuts, tasks = (int(n) for n in re.findall(r"about (\d+)", told))
    assert "of 80 tasks" in told
    assert "half of them to choose on" in told
    assert cuts * 160 / tasks == pytest.approx(int(re.findall(r"cut (\d+) of 80", told)[0]), rel=0.05)
    samples = [population(8 * cuts_needed(0.96, 0.85, 0.05)) for _ in range(40)]  # type: ignore[operator]
    certified = sum(certify(s, search_of(s, 0.85), GateKind.SEQUENTIAL, 0.95).rule is not None for s in samples)
    assert certified / 40 > 0.6


@pytest.mark.parametrize(
    ("hits", "cuts", "short"), [(12, 15, "precision or groups"), (2, 15, "precision: "), (10, 10, "groups: ")]
)
def test_precision_is_short_only_where_its_upper_bound_is_under_the_target(hits: int, cuts: int, short: str) -> None:
    scores = np.full(60, 0.9)
    scores[:cuts] = 0.001
    sample = sample_of(scores, np.arange(60) >= hits)
    told = certify(sample, search_of(sample, 0.9), GateKind.THRESHOLD, 0.95).shortfall
    assert told.startswith(short)
    if hits < cuts:
        known = binomtest(hits, cuts).proportion_ci(0.95, "exact")
        assert f"{hits} of {cuts}, {hits / cuts:.3f} [{known.low:.2f},{known.high:.2f}]" in told


def test_where_half_of_the_tasks_gives_no_gate_it_says_what_is_short_there() -> None:
    few = drawn(np.random.default_rng(8), 14, 0.0)
    assert certify(few, search_of(few, 0.9), GateKind.SEQUENTIAL, 0.95).shortfall == (
        "groups: on the half of the tasks that a gate is chosen on (7 groups) no step K has 10 groups to cut "
        "(at most 7)"
    )
    useless = drawn(np.random.default_rng(8), 900, 0.0)
    told = certify(useless, search_of(useless, 0.9), GateKind.SEQUENTIAL, 0.95).shortfall
    assert told.startswith(("precision: ", "precision or groups"))
    assert "on the half of the tasks that a gate is chosen on (450 groups)" in told
    scores = np.concatenate([np.full(16, 0.001), np.linspace(0.5, 0.9, 144)])
    scarce = sample_of(scores, np.arange(160) >= 16)
    told = certify(scarce, search_of(scarce, 0.99), GateKind.SEQUENTIAL, 0.95).shortfall
    (fewer,) = re.findall(r"cut at most (\d+) there", told)
    assert f"about {math.ceil(10 / int(fewer) * 160)} tasks" in told


@pytest.mark.parametrize(("apart", "target"), [(0.0, 0.5), (1.0, 0.7)])
def test_certificates_fail_no_more_often_than_they_say(apart: float, target: float) -> None:
    rng, confidence, sets = np.random.default_rng(9), 0.8, 120
    large = drawn(np.random.default_rng(10), 200_000, apart)
    wrong = 0
    for _ in range(sets):
        sample = drawn(rng, 150, apart)
        rule = certify(sample, search_of(sample, target), GateKind.THRESHOLD, confidence).rule
        if rule is not None:
            assert isinstance(rule, Threshold)
            cut = large.signals[SIGNAL][:, 0] < rule.threshold
            wrong += bool(large.zero_variance[cut].mean() < target)
    assert wrong / sets <= 1 - confidence + 3 * np.sqrt(confidence * (1 - confidence) / sets)
