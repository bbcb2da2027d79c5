import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from samples import SIGNAL, make_sample, search_of
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from calibrate.convention import Convention
from calibrate.fit import apply, find, fit, ladder
from calibrate.ladder import MIN_CUTS, Change, Start, climb
from calibrate.rules import Either, Learned, Rule, Sequential, Threshold
from calibrate.sample import Sample
from calibrate.tally import Tally
from collect.errors import InputError


def chosen_by(
    sample: Sample, target: float, convention: Convention = Convention.ELIGIBLE, **more: Any
) -> tuple[Rule, Tally] | None:
    """The chosen rule, and what it does to the sample."""
    found = find(sample, search_of(sample, target, convention, **more))
    return None if found is None else (found.rule, apply(sample, found.rule, convention))


def threshold_of(sample: Sample, target: float) -> tuple[Threshold, Tally]:
    chosen = chosen_by(sample, target)
    assert chosen is not None
    assert isinstance(chosen[0], Threshold)
    return chosen[0], chosen[1]


def at(sample: Sample, threshold: float, convention: Convention = Convention.ELIGIBLE, step: int = 1) -> Tally:
    return apply(sample, Threshold(signal=SIGNAL, step=step, threshold=threshold), convention)


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    size, steps = draw(st.integers(1, 40)), draw(st.integers(1, 3))
    levels = draw(st.integers(1, 12))

    def table(of: st.SearchStrategy[Any]) -> list[list[Any]]:
        return draw(st.lists(st.lists(of, min_size=steps, max_size=steps), min_size=size, max_size=size))

    kinds = st.sampled_from(["mixed", "all_fail", "all_succeed"])
    outcomes = draw(st.lists(kinds, min_size=size, max_size=size))
    scores = table(st.integers(0, levels).map(lambda j: j / 12))
    eligible = table(st.integers(0, 5).map(bool))
    after = [
        [spent if running else 0 for spent, running in zip(*rows, strict=True)]
        for rows in zip(table(st.integers(0, 50)), eligible, strict=True)
    ]
    total = [max(row) + draw(st.integers(1, 20)) for row in after]
    return make_sample(scores, outcomes, eligible, after, total)


def brute_force(sample: Sample, target: float, convention: Convention) -> dict[tuple[int, int], Fraction]:
    """Net saving of every feasible (K, groups taken), by loops over exact fractions."""
    size, found = sample.size, {}
    mixed = [outcome == "mixed" for outcome in sample.outcomes]
    for column, step in enumerate(sample.steps.tolist()):
        running, scores = sample.eligible[:, column].tolist(), sample.signals[SIGNAL][:, column].tolist()
        counted = [g for g in range(size) if convention is Convention.PAPER or running[g]]
        if not any(running):
            continue
        for highest in {scores[g] for g in counted}:
            taken = [g for g in counted if scores[g] <= highest]
            hits = sum(not mixed[g] for g in taken)
            saved = Fraction(int(sum(sample.cost.after[g, column] for g in taken)), int(sample.cost.total.sum()))
            dropped = Fraction(len(taken) - hits, max(1, sum(mixed)))
            if len(taken) >= 10 and hits / len(taken) >= target and dropped < 1:
                found[step, len(taken)] = 1 - (1 - saved) / (1 - dropped)
    return found


@given(samples(), st.sampled_from([0.2, 0.5, 0.6, 0.75, 0.9, 1.0]), st.sampled_from(Convention))
@settings(max_examples=300, deadline=None)
def test_the_chosen_gate_is_the_best_that_a_brute_force_search_finds(
    sample: Sample, target: float, convention: Convention
) -> None:
    feasible = brute_force(sample, target, convention)
    chosen = chosen_by(sample, target, convention)
    if not feasible:
        assert chosen is None
        return
    assert chosen is not None
    rule, counts = chosen
    assert (rule.steps[0], counts.taken) in feasible
    assert counts.net_saving.value == pytest.approx(float(feasible[rule.steps[0], int(counts.taken)]), abs=1e-12)
    assert counts.net_saving.value == pytest.approx(float(max(feasible.values())), abs=1e-12)


@given(samples(), st.sampled_from(Convention))
@settings(max_examples=100, deadline=None)
def test_each_swept_threshold_counts_what_applying_it_counts(sample: Sample, convention: Convention) -> None:
    for column in range(len(sample.steps)):
        found = ladder(sample, SIGNAL, column, convention)
        assert np.all(np.diff(found.thresholds) > 0)
        for place, threshold in enumerate(found.thresholds.tolist()):
            applied = at(sample, threshold, convention, column + 1)
            assert (applied.taken, applied.true_positives) == (found.taken[place], found.true_positives[place])
            assert applied.net_saving.value == pytest.approx(found.net_saving[place], abs=1e-12, nan_ok=True)


@given(samples())
@settings(max_examples=100, deadline=None)
def test_a_fit_does_not_depend_on_the_order_of_the_groups(sample: Sample) -> None:
    order = np.random.default_rng(0).permutation(sample.size)
    shuffled = make_sample(
        sample.signals[SIGNAL][order].tolist(),
        sample.outcomes[order].tolist(),
        sample.eligible[order].tolist(),
        sample.cost.after[order].tolist(),
        sample.cost.total[order].tolist(),
    )
    one, other = chosen_by(sample, 0.5), chosen_by(shuffled, 0.5)
    assert (one and (one[0], one[1].taken)) == (other and (other[0], other[1].taken))


def test_the_threshold_lies_halfway_to_the_next_score() -> None:
    sample = make_sample([[0.0]] * 12 + [[0.3]] * 6, ["all_fail"] * 12 + ["mixed"] * 6)
    rule, chosen = threshold_of(sample, 0.9)
    assert rule.threshold == 0.15
    assert (chosen.flagged, chosen.true_positives, chosen.false_positives) == (12, 12, 0)


def test_scores_that_differ_by_less_than_the_rounding_of_sums_are_taken_together() -> None:
    sample = make_sample([[0.1]] * 11 + [[0.1 + 1e-13]] * 5 + [[0.1001]] * 5, ["all_succeed"] * 11 + ["mixed"] * 10)
    assert chosen_by(sample, 1.0) is None
    rule, chosen = threshold_of(sample, 0.6)
    assert chosen.taken == 16
    assert rule.threshold == pytest.approx(0.10005)


def test_ineligible_groups_are_flagged_but_not_cut() -> None:
    sample = make_sample(
        [[0.0]] * 14 + [[0.5]] * 6,
        ["all_succeed"] * 12 + ["mixed"] * 8,
        [[False]] * 2 + [[True]] * 18,
        [[0]] * 2 + [[6]] * 18,
    )
    live = at(sample, 0.25)
    assert (live.flagged, live.cut, live.taken, live.true_positives) == (14, 12, 12, 10)
    paper = at(sample, 0.25, Convention.PAPER)
    assert (paper.flagged, paper.cut, paper.taken, paper.true_positives) == (14, 12, 14, 12)
    assert live.saving.value == paper.saving.value == 72 / 200
    assert live.recall.value == 1.0
    assert live.recall_of_all.value == 10 / 12


def test_ties_in_net_saving_go_to_the_smaller_step_and_the_fewer_groups() -> None:
    # Both steps rank alike; the two groups at 0.2 save nothing and so tie with the twelve at 0.
    scores = [[0.0, 0.0]] * 12 + [[0.2, 0.2]] * 2 + [[0.5, 0.5]] * 6
    sample = make_sample(scores, ["all_fail"] * 14 + ["mixed"] * 6, after=[[6, 6]] * 12 + [[0, 0]] * 2 + [[6, 6]] * 6)
    rule, chosen = threshold_of(sample, 0.9)
    assert (rule.step, chosen.taken) == (1, 12)


def test_precision_need_not_rise_with_the_threshold() -> None:
    scores = [[0.0]] * 4 + [[0.1]] * 20 + [[0.6]] * 9
    sample = make_sample(scores, ["mixed"] * 4 + ["all_fail"] * 20 + ["mixed"] * 9)
    _, chosen = threshold_of(sample, 0.8)
    assert (chosen.taken, chosen.true_positives) == (24, 20)


def test_a_gate_under_the_break_even_precision_has_a_negative_net_saving() -> None:
    sample = make_sample([[0.0]] * 12 + [[0.5]] * 8, ["all_fail"] * 4 + ["mixed"] * 16, after=[[1]] * 20)
    found = at(sample, 0.25)
    # A cut saves a tenth of a group and four fifths of the groups are informative.
    assert found.break_even_precision == pytest.approx(1 - 0.1 * 0.8)
    assert found.precision.value < found.break_even_precision
    assert found.net_saving.value < 0


def no_gate(sample: Sample, target: float) -> str:
    assert chosen_by(sample, target) is None
    return fit(sample, search_of(sample, target), SIGNAL).shortfall


def test_too_few_groups_are_named_as_what_is_short() -> None:
    few = MIN_CUTS - 1
    assert no_gate(make_sample([[0.0]] * few, ["all_fail"] * few), 0.5).startswith("too few groups")


def test_too_low_a_precision_is_named_as_what_is_short_with_the_nearest_threshold() -> None:
    sample = make_sample([[0.0]] * 20 + [[0.1]] * 5, (["all_fail"] * 3 + ["mixed"]) * 5 + ["mixed"] * 5)
    told = no_gate(sample, 0.9)
    assert told.startswith("precision too low")
    assert "0.750 (15 of 20, K = 1)" in told


def test_the_most_groups_cut_by_a_precise_enough_threshold_are_named() -> None:
    sample = make_sample([[0.0]] * 7 + [[0.1]] * 9, ["all_fail"] * 7 + ["mixed"] * 9)
    assert no_gate(sample, 0.9).endswith("thresholds that reach the target cut at most 7")


def test_a_gate_that_drops_every_informative_group_is_none() -> None:
    sample = make_sample([[0.0]] * 20 + [[0.5]] * 5, ["all_fail"] * 19 + ["mixed"] + ["all_fail"] * 5)
    assert "no informative group would be left" in no_gate(sample, 0.9)


def test_on_groups_of_one_class_alone_no_gate_may_stand() -> None:
    # Where all are zero-variance a gate would leave no informative group, and there is no cost of one to save.
    sample = make_sample([[0.0], [0.1]] * 10, ["all_fail"] * 20)
    assert "no informative group would be left" in no_gate(sample, 0.9)
    everything = fit(sample, search_of(sample, 0.9), SIGNAL).steps[0]
    assert everything.auroc is None
    assert everything.best is not None
    assert everything.best.precision.value == 1.0
    assert everything.best.saving.value == 0.3  # half of the groups, each cut with 0.6 of its cost to come
    assert math.isnan(everything.best.net_saving.value)
    assert chosen_by(make_sample([[0.0], [0.1]] * 10, ["mixed"] * 20), 0.9) is None


def test_a_step_without_an_eligible_group_is_no_candidate_in_either_convention() -> None:
    eligible = [[True, False]] * 20
    sample = make_sample([[0.4, 0.0]] * 20, (["all_fail"] * 3 + ["mixed"]) * 5, eligible, [[6, 0]] * 20)
    for convention in Convention:
        ended = fit(sample, search_of(sample, 0.5, convention), SIGNAL).steps[1]
        assert ended.best is None
        assert ended.auroc is None


def test_a_step_that_the_sample_lacks_is_refused_with_those_it_has() -> None:
    sample = make_sample([[0.0, 0.0, 0.0]], ["mixed"])
    with pytest.raises(InputError, match="1 to 3"):
        sample.column(4)


def test_the_fingerprint_changes_with_any_score_and_with_any_id() -> None:
    scores = [[0.0], [0.25]]
    one = make_sample(scores, ["mixed", "all_fail"]).fingerprint()
    assert make_sample(scores, ["mixed", "all_fail"]).fingerprint() == one
    assert make_sample([[0.0], [0.5]], ["mixed", "all_fail"]).fingerprint() != one
    assert make_sample(scores, ["mixed", "all_succeed"]).fingerprint() != one


def test_a_gate_counts_in_single_precision_what_its_ladder_counted() -> None:
    # Neighbours in single precision: rounded to it, a threshold halfway would be one of the two.
    low = np.float32(-2.3)
    high = np.nextafter(low, np.float32(0))
    sample = make_sample([[0.5]] * 24, ["mixed"] * 12 + ["all_fail"] * 12)
    values = np.array([[low]] * 12 + [[high]] * 12, np.float32)
    sample = replace(sample, signals={"mean_logprob": values})
    found = find(sample, search_of(sample, 0.9, signals=("mean_logprob",)))
    assert found is not None
    assert found.taken == apply(sample, found.rule, Convention.ELIGIBLE).taken == 12


def test_many_scores_close_together_are_not_all_taken_as_one() -> None:
    scores = np.linspace(0.2, 0.5, 300_000).astype(np.float32)
    rungs = climb(scores, Change(*(np.ones(300_000, np.int64) for _ in range(3))), Start(10**7, 10**6))
    assert len(rungs.thresholds) > 100_000


# Beyond one threshold on one signal


def test_among_several_signals_the_best_net_saving_wins_and_the_first_of_equals() -> None:
    outcomes = ["all_fail"] * 15 + ["mixed"] * 10
    far, near = [[0.1]] * 12 + [[0.5]] * 13, [[0.9]] * 15 + [[0.2]] * 10
    sample = make_sample(far, outcomes, signals={"repetition": near, "refused_share": near})
    chosen = chosen_by(sample, 0.9, signals=tuple(sample.signals))
    assert chosen is not None
    rule, counts = chosen
    assert isinstance(rule, Threshold)
    assert rule.signal == "repetition"  # high values speak for zero variance
    assert rule.threshold == pytest.approx(0.55)
    assert (counts.taken, counts.true_positives) == (15, 15)


@st.composite
def samples_with_ends(draw: st.DrawFn) -> Sample:
    sample = draw(samples())
    size, steps = sample.size, len(sample.steps)
    ended = draw(st.lists(st.lists(st.integers(0, 4), min_size=steps, max_size=steps), min_size=size, max_size=size))
    return replace(sample, signals=dict(sample.signals) | {"termination_fraction": np.sort(ended, axis=1) / 4})


@given(samples_with_ends(), st.sampled_from([0.4, 0.6, 0.75, 0.9]))
@settings(max_examples=60, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
def test_the_or_rule_is_the_best_pair_of_thresholds_that_a_brute_force_search_finds(
    sample: Sample, target: float
) -> None:
    found = []
    for column, step in enumerate(sample.steps.tolist()):
        over_each = np.minimum(np.unique(sample.signals[SIGNAL][:, column]) + 1e-3, 1 + 1e-9)
        for threshold in [-1.0, *over_each]:
            for ended in (0.25, 0.5, 0.75, 1.0):
                rule = Either(signal=SIGNAL, step=step, threshold=float(threshold), ended=ended)
                counts = apply(sample, rule, Convention.ELIGIBLE)
                kept = sample.size - sample.zero_variance.sum() - counts.false_positives
                if counts.taken >= MIN_CUTS and counts.precision.value >= target and kept > 0:
                    found.append(counts.net_saving.value)
    chosen = chosen_by(sample, target, kind="either")
    assert (chosen is None) == (not found)
    if chosen is not None:
        assert isinstance(chosen[0], Either)
        assert chosen[1].precision.value >= target
        assert chosen[1].net_saving.value == pytest.approx(max(found), abs=1e-12)


def by_hand(sample: Sample, rule: Sequential) -> tuple[int, int, int]:
    """Cut, hits and cost saved, group by group: the first stage that flags an eligible group cuts it."""
    cut = hits = saved = 0
    for g in range(sample.size):
        for stage in rule.stages:
            column = sample.column(stage.step)
            if sample.signals[SIGNAL][g, column] < stage.threshold:
                if sample.eligible[g, column]:
                    cut, hits = cut + 1, hits + int(sample.zero_variance[g])
                    saved += int(sample.cost.after[g, column])
                break
    return cut, hits, saved


@st.composite
def samples_that_end(draw: st.DrawFn) -> Sample:
    """As groups are: one that is over stays so, and the later the cut the less it saves."""
    sample = draw(samples())
    running = np.logical_and.accumulate(sample.eligible, axis=1)
    after = np.where(running, np.minimum.accumulate(sample.cost.after, axis=1), 0)
    return replace(sample, eligible=running, cost=replace(sample.cost, after=after))


@given(samples_that_end(), st.sampled_from([0.4, 0.6, 0.75, 0.9]))
@settings(max_examples=150, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
def test_a_sequential_gate_saves_no_less_than_its_first_stage_and_counts_as_by_hand(
    sample: Sample, target: float
) -> None:
    single, found = chosen_by(sample, target), find(sample, search_of(sample, target, kind="sequential"))
    assert (single is None) == (found is None)
    if single is None or found is None:
        return
    assert isinstance(found.rule, Sequential)
    assert 1 <= len(found.rule.stages) <= 3
    counts = apply(sample, found.rule, Convention.ELIGIBLE)
    cut, hits, saved = by_hand(sample, found.rule)
    assert (counts.taken, counts.true_positives) == (cut, hits)
    assert counts.saving.value == pytest.approx(saved / sample.cost.total.sum())
    # What the search thought of it is what it does.
    assert (found.taken, found.precision) == (counts.taken, counts.precision.value)
    assert found.net_saving == pytest.approx(counts.net_saving.value, abs=1e-12)
    assert counts.precision.value >= target
    assert counts.net_saving.value >= single[1].net_saving.value - 1e-12


def test_a_second_stage_is_added_where_it_takes_what_the_first_cannot_see() -> None:
    # Failing groups agree from the start; succeeding ones only by the second step.
    scores = [[0.0, 0.0]] * 12 + [[0.8, 0.1]] * 12 + [[0.8, 0.9]] * 12
    sample = make_sample(scores, ["all_fail"] * 12 + ["all_succeed"] * 12 + ["mixed"] * 12, after=[[8, 4]] * 36)
    found = find(sample, search_of(sample, 0.9, kind="sequential"))
    assert found is not None
    assert found.rule.steps == (1, 2)
    assert found.taken == 24
    assert apply(sample, found.rule, Convention.ELIGIBLE).saving.value == pytest.approx((12 * 8 + 12 * 4) / 360)


def learnable() -> Sample:
    """Two signals, each telling half; K = 1 of them by chance alone."""
    rng = np.random.default_rng(0)
    mixed = rng.random(400) < 0.5
    parts = [rng.normal(size=400) + mixed for _ in range(2)]
    values = [np.column_stack([rng.random(400), 1 / (1 + np.exp(-part))]) for part in parts]
    outcomes = ["mixed" if one else "all_fail" for one in mixed]
    return make_sample(values[0].tolist(), outcomes, signals={"action_entropy": values[1].tolist()})


def test_a_learned_gate_scores_as_the_logistic_regression_that_it_was() -> None:
    sample = learnable()
    found = find(sample, search_of(sample, 0.8, kind="learned", signals=tuple(sample.signals)))
    assert found is not None
    assert isinstance(found.rule, Learned)
    assert found.rule.step == 2
    x = np.column_stack([sample.signals[name][:, 1] for name in found.rule.signals])
    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.25)).fit(x, ~sample.zero_variance)
    values = {name: sample.signals[name][:, 1] for name in found.rule.signals}
    assert found.rule.score(values) == pytest.approx(model.predict_proba(x)[:, 1], abs=1e-5)


def test_a_learned_gate_beats_either_of_its_signals_where_each_tells_half() -> None:
    sample = learnable()
    learned = find(sample, search_of(sample, 0.85, kind="learned", signals=tuple(sample.signals)))
    single = find(sample, search_of(sample, 0.85, signals=tuple(sample.signals)))
    assert learned is not None
    assert single is None or learned.net_saving > single.net_saving


def test_a_signal_that_varies_by_rounding_alone_is_not_learned_from() -> None:
    mixed = np.arange(40) % 2 == 1
    other = (mixed * 1e-200).reshape(-1, 1).tolist()  # of so small numbers the standard deviation is 0
    scores = np.where(mixed, 0.9, 0.1).reshape(-1, 1).tolist()
    sample = make_sample(scores, ["mixed" if m else "all_fail" for m in mixed], signals={"action_entropy": other})
    chosen = chosen_by(sample, 0.9, kind="learned", signals=(SIGNAL, "action_entropy"))
    assert chosen is not None
    assert chosen[0].signals == (SIGNAL,)


def test_nothing_is_learned_from_one_class() -> None:
    sample = make_sample([[0.1]] * 20, ["all_fail"] * 20)
    assert find(sample, search_of(sample, 0.9, kind="learned")) is None
