from dataclasses import replace

import numpy as np
import pytest
from samples import make_sample, search_of

from calibrate.calibration import Judged, choice_out_of_sample, choose, judge
from calibrate.folds import deal
from calibrate.intervals import Interval
from calibrate.kinds import KINDS, GateKind, Kind
from calibrate.sample import Sample


@pytest.fixture(scope="module")
def sample() -> Sample:
    """Groups with two signals and some that have partly ended."""
    rng = np.random.default_rng(2)
    mixed = rng.random(200) < 0.45
    scores, other = (np.clip(rng.normal(0.35, 0.15, (200, 3)) + 0.3 * mixed[:, None], 0, 1) for _ in range(2))
    ended = np.sort(rng.integers(0, 4, (200, 3)), axis=1) / 4
    outcomes = ["mixed" if one else "all_fail" for one in mixed]
    return make_sample(
        scores.tolist(),
        outcomes,
        after=[[9, 6, 3]] * 200,
        signals={"action_entropy": other.tolist(), "termination_fraction": ended.tolist()},
    )


@pytest.fixture(scope="module")
def judged(sample: Sample) -> list[Judged]:
    return judge(sample, search_of(sample, 0.85), GateKind.AUTO)


def with_expected(
    judged: list[Judged], expected: list[tuple[float, float]], precisions: tuple[float, ...] = (0.9,) * 4
) -> list[Judged]:
    """The same, as if their net saving out of sample were these, each with its standard error, and their precision."""
    made = []
    for one, (value, error), precision in zip(judged, expected, precisions, strict=True):
        assert one.out_of_sample is not None
        interval = Interval(value, value - 1.96 * error, value + 1.96 * error)
        counts = replace(one.out_of_sample.tally, net_saving=interval, precision=Interval(precision, 0.1, 1.0))
        made.append(replace(one, out_of_sample=replace(one.out_of_sample, tally=counts)))
    return made


def test_auto_judges_every_kind_in_sample_and_out_of_sample(judged: list[Judged]) -> None:
    assert tuple(one.search.kind for one in judged) == KINDS
    for one in judged:
        assert one.rule is not None
        assert one.rule.kind == one.search.kind
        assert one.in_sample is not None
        assert one.in_sample.precision.value >= 0.85
        assert one.out_of_sample is not None
        assert len(one.out_of_sample.rules) == 5


@pytest.mark.parametrize("kind", KINDS)
def test_one_kind_alone_is_judged_as_among_all(sample: Sample, judged: list[Judged], kind: Kind) -> None:
    (alone,) = judge(sample, search_of(sample, 0.85), GateKind(kind))
    (among,) = (one for one in judged if one.search.kind == kind)
    assert (alone.rule, alone.in_sample) == (among.rule, among.in_sample)


def test_the_learned_gate_reads_every_signal(sample: Sample, judged: list[Judged]) -> None:
    learned = judged[-1].rule
    assert learned is not None
    assert set(learned.signals) == set(sample.signals)


@pytest.mark.parametrize(
    ("expected", "kind"),
    [
        ([(0.08, 0.02), (0.09, 0.02), (0.06, 0.02), (0.095, 0.02)], "threshold"),
        ([(0.05, 0.02), (0.09, 0.02), (0.10, 0.02), (0.10, 0.02)], "either"),
        ([(0.01, 0.02), (0.02, 0.02), (0.03, 0.02), (0.30, 0.02)], "learned"),
        ([(-0.2, 0.3), (0.0, 0.3), (0.0, 0.3), (0.05, 0.3)], "threshold"),
    ],
)
def test_the_simplest_kind_within_one_standard_error_of_the_best_is_chosen(
    judged: list[Judged], expected: list[tuple[float, float]], kind: Kind
) -> None:
    chosen = choose(with_expected(judged, expected))
    assert chosen is not None
    assert chosen.search.kind == kind


@pytest.mark.parametrize(
    ("precisions", "kind"),
    [((0.84, 0.84, 0.85, 0.9), "learned"), ((0.84, 0.9, 0.84, 0.9), "learned"), ((0.1, 0.84, 0.1, 0.1), "threshold")],
)
def test_where_some_kinds_reach_the_target_out_of_sample_one_of_them_is_chosen(
    judged: list[Judged], precisions: tuple[float, ...], kind: Kind
) -> None:
    expected = [(0.5, 0.001), (0.1, 0.001), (0.1, 0.001), (0.2, 0.001)]
    chosen = choose(with_expected(judged, expected, precisions))
    assert chosen is not None
    assert chosen.search.kind == kind


def test_the_choice_among_kinds_is_judged_by_choices_that_never_saw_the_fold(sample: Sample) -> None:
    search = search_of(sample, 0.85)
    out = choice_out_of_sample(sample, search)
    assert out is not None
    fold = deal(sample, np.ones(sample.size, np.bool_), 5)
    cut = np.zeros(sample.size, np.bool_)
    for held_out, rule in enumerate(out.rules):
        best = choose(judge(sample, search, GateKind.AUTO, fold != held_out))
        assert rule == (None if best is None else best.rule)
        if rule is not None:
            at = rule.flags(sample)
            cut |= (fold == held_out) & (at >= 0) & sample.eligible[np.arange(sample.size), at]
    assert (out.cuts.taken == cut).all()
    assert out.tally.taken == cut.sum() > 0


def test_a_kind_without_a_rule_is_never_chosen(judged: list[Judged]) -> None:
    expected = [(0.5, 0.01), (0.1, 0.01), (0.1, 0.01), (0.1, 0.01)]
    made = with_expected(judged, expected)
    made[0] = replace(made[0], rule=None, in_sample=None)
    chosen = choose(made)
    assert chosen is not None
    assert chosen.search.kind == "either"
    assert choose([made[0]]) is None


def test_without_terminations_the_or_rule_is_left_out() -> None:
    sample = make_sample([[0.1]] * 12 + [[0.8]] * 12, ["all_fail"] * 12 + ["mixed"] * 12)
    assert [one.search.kind for one in judge(sample, search_of(sample, 0.9), GateKind.AUTO)] == [
        "threshold",
        "sequential",
        "learned",
    ]


def test_a_kind_that_cuts_nothing_out_of_sample_is_no_better_than_one_that_loses(judged: list[Judged]) -> None:
    made = with_expected(judged, [(0.0, 0.0), (-0.02, 0.01), (-0.01, 0.01), (-0.02, 0.01)])
    assert made[0].out_of_sample is not None
    counts = replace(made[0].out_of_sample.tally, taken=0, precision=Interval(float("nan"), 0.0, 1.0))
    made[0] = replace(made[0], out_of_sample=replace(made[0].out_of_sample, tally=counts))
    chosen = choose(made)
    assert chosen is not None
    assert chosen.search.kind == "either"
