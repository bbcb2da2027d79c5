"""Live precision and recall of a gate, and the alarm."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import beta
from synthetic import make_group

from collect.trajectory import Decision, Group
from train.audit import ALARM, ALWAYS, Audit, Tally, audit_of, counted, e_value

RNG = random.Random(0)
CUTTING = Decision(2, 0.1, 0.2, flagged=True, enforced=True)
PASSING = Decision(2, 0.3, 0.2, flagged=False, enforced=False)


def group(decision: Decision | None, won: list[bool], length: int = 5) -> Group:
    actions = [["look"] * length for _ in won]
    return make_group(RNG, len(won), actions=actions, won=won, decision=decision)


# The coin


def test_the_first_flagged_groups_are_all_let_run_and_others_by_the_coin() -> None:
    early, late = audit_of(Tally(ran=ALWAYS - 1), 7, 0.2), audit_of(Tally(ran=ALWAYS), 7, 0.2)
    assert early is not None
    assert late is not None
    ran = [late.review(f"g#{n}", CUTTING).audited for n in range(3000)]

    assert all(early.review(f"g#{n}", CUTTING).audited for n in range(100))
    assert np.mean(ran) == pytest.approx(0.2, abs=0.03)
    assert ran == [late.review(f"g#{n}", CUTTING).audited for n in range(3000)]


def test_an_audited_group_is_flagged_still_and_not_cut() -> None:
    audited = Audit(7, 0.2, certain=True).review("g#0", CUTTING)
    assert audited == replace(CUTTING, enforced=False, audited=True)


def test_what_the_gate_does_not_cut_is_not_audited() -> None:
    assert Audit(7, 1.0, certain=True).review("g#0", PASSING) == PASSING


def test_without_a_probability_nothing_is_audited() -> None:
    assert audit_of(Tally(), 7, 0.0) is None


# The counts


def test_groups_are_counted_by_what_the_gate_said_and_what_became_of_them() -> None:
    audited = replace(CUTTING, enforced=False, audited=True)
    groups = [
        group(CUTTING, [False, False]),  # cut: what would have become of it is not known
        group(audited, [False, False]),  # a true positive
        group(audited, [True, False]),  # a false one
        group(PASSING, [True, True]),  # zero-variance, and passed
        group(PASSING, [True, False]),
        group(replace(CUTTING, enforced=False), [False, False], length=2),  # over at K: nothing to cut
        group(PASSING, [False, False], length=2),
        group(None, [False, False]),
    ]
    assert counted(Tally(), groups, 2, certain=False) == Tally(3, 2, 1, 3, 2, 1, passed_flat=1)
    assert counted(Tally(1, 1, 1), groups[1:], 2, certain=True) == Tally(3, 3, 2, passed_flat=1)


# The rates


@given(st.integers(0, 40), st.integers(0, 40))
def test_precision_is_the_share_of_audited_groups_with_its_exact_interval(flat: int, mixed: int) -> None:
    ran = flat + mixed
    found = Tally(flagged=ran, ran=ran, flat=flat).precision()
    if not ran:
        assert np.isnan(found.value)
        return
    assert found.value == flat / ran
    assert found.low == pytest.approx(beta.ppf(0.025, flat, mixed + 1) if flat else 0.0)
    assert found.high == pytest.approx(beta.ppf(0.975, flat + 1, mixed) if mixed else 1.0)


def test_recall_weighs_every_group_by_the_probability_with_which_it_ran() -> None:
    # 20 ran for sure, 18 of them zero-variance; then 50 were flagged, 10 of them ran by the coin (1/5), 6 of them
    # zero-variance; 12 zero-variance groups were not flagged. True positives: 18 · 1 + 6 · 5 = 48; recall 48 / 60.
    tally = Tally(70, 30, 24, sampled=50, sampled_ran=10, sampled_flat=6, passed_flat=12)
    assert tally.recall().value == pytest.approx(48 / 60)
    assert tally.recall().low < 48 / 60 < tally.recall().high


def test_recall_is_exact_while_every_flagged_group_runs() -> None:
    recall = Tally(flagged=10, ran=10, flat=8, passed_flat=2).recall()
    assert (recall.value, recall.low, recall.high) == (0.8, 0.8, 0.8)


def test_rates_of_nothing_are_not_known() -> None:
    assert np.isnan(Tally().recall().value)
    assert np.isnan(Tally(flagged=4, sampled=4).recall().value)
    assert np.isnan(Tally(flagged=4, sampled=4).precision().value)


def test_the_recall_interval_holds_what_it_promises() -> None:
    """Simulated with numpy alone: a gate of precision 0.85 that misses 30 zero-variance groups."""
    rng, inside = np.random.default_rng(1), 0
    for _ in range(400):
        flat, ran = rng.random(120) < 0.85, rng.random(120) < 0.25
        ran[:20] = True
        tally = Tally(
            120, int(ran.sum()), int((flat & ran).sum()), 100, int(ran[20:].sum()), int((flat & ran)[20:].sum()), 30
        )
        truth = flat.sum() / (flat.sum() + 30)
        inside += bool(tally.recall().low <= truth <= tally.recall().high)
    assert inside / 400 >= 0.95


# The alarm


@given(st.integers(0, 30), st.integers(0, 30), st.floats(0.05, 0.99))
def test_the_e_value_is_the_mixture_over_lower_precisions_against_the_target(x: int, misses: int, p: float) -> None:
    m = x + misses
    mixture = quad(lambda q: q**x * (1 - q) ** misses, 0, p)[0] / p
    assert e_value(x, m, p) == pytest.approx(mixture / (p**x * (1 - p) ** misses), rel=1e-5, abs=1e-12)


def test_a_target_of_one_is_refuted_by_the_first_informative_group() -> None:
    assert e_value(3, 4, 1.0) == float("inf")
    assert e_value(3, 3, 1.0) == pytest.approx(0.25)


def test_many_audits_overflow_nothing() -> None:
    assert e_value(0, 100_000, 0.99) >= 1e300
    assert e_value(100_000, 100_000, 0.01) == 0.0


@pytest.mark.parametrize("target", [0.7, 0.9])
def test_a_gate_as_precise_as_it_should_be_is_rarely_alarmed_however_often_one_looks(target: float) -> None:
    rng, alarms = np.random.default_rng(2), 0
    for _ in range(400):
        flat = np.cumsum(rng.random(150) < target)
        alarms += any(e_value(int(x), m, target) >= ALARM for m, x in enumerate(flat, start=1))
    assert alarms / 400 <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / 400)


def test_a_gate_far_under_its_target_is_found_out() -> None:
    rng = np.random.default_rng(3)
    found = [e_value(int((rng.random(60) < 0.6).sum()), 60, 0.9) >= ALARM for _ in range(200)]
    assert np.mean(found) > 0.9
