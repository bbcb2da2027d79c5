from fractions import Fraction
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrate.convention import Convention
from calibrate.fit import Search, apply, find, fit, ladder
from calibrate.ladder import MIN_CUTS
from calibrate.rules import Rule, Threshold
from calibrate.sample import Cost, Sample
from calibrate.tally import Tally
from collect.errors import InputError

SIGNAL = "prefix_edit_distance_mean"


def make_sample(
    scores: list[list[float]],
    outcomes: list[str],
    eligible: list[list[bool]] | None = None,
    after: list[list[int]] | None = None,
    total: list[int] | None = None,
    tasks: list[str] | None = None,
    signals: dict[str, list[list[float]]] | None = None,
) -> Sample:
    """A sample at K = 1 ... S; without costs, each group costs 10 and saves 6 when cut."""
    shape = np.array(scores).shape
    return Sample(
        group_size=4,
        horizon=30,
        steps=np.arange(1, shape[1] + 1),
        group_ids=pl.Series([f"g{g:03}" for g in range(shape[0])]),
        tasks=pl.Series([f"g{g:03}" for g in range(shape[0])] if tasks is None else tasks),
        task_types=None,
        outcomes=np.array(outcomes),
        reward_variance=np.where(np.array(outcomes) == "mixed", 0.1875, 0.0),
        signals={SIGNAL: np.array(scores)} | {name: np.array(values) for name, values in (signals or {}).items()},
        eligible=np.ones(shape, bool) if eligible is None else np.array(eligible),
        eligible_exactly=True,
        cost=Cost(
            "tokens",
            np.full(shape, 6) if after is None else np.array(after),
            np.full(shape[0], 10) if total is None else np.array(total),
        ),
    )


def search_of(sample: Sample, target: float, convention: Convention = Convention.ELIGIBLE, **more: Any) -> Search:
    columns = tuple(range(len(sample.steps)))
    return Search(target, convention, columns, **({"signals": (SIGNAL,)} | more))


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
            assert applied.net_saving.value == pytest.approx(found.net_saving[place], abs=1e-12)


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
    sample = make_sample([[0.1]] * 11 + [[0.1 + 1e-8]] * 5 + [[0.1001]] * 5, ["all_succeed"] * 11 + ["mixed"] * 10)
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


def test_groups_of_one_class_alone_can_be_fitted() -> None:
    sample = make_sample([[0.0], [0.1]] * 10, ["all_fail"] * 20)
    _, idle = threshold_of(sample, 0.9)
    assert idle.precision.value == 1.0
    assert idle.net_saving.value == idle.saving.value == 0.6
    assert fit(sample, search_of(sample, 0.9), SIGNAL).steps[0].auroc is None
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
