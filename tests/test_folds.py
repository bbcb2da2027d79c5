import numpy as np
import polars as pl
import pytest
from samples import make_sample, search_of

from calibrate.fit import find
from calibrate.folds import deal, out_of_sample
from calibrate.rules import Threshold
from calibrate.sample import Sample


def drawn(seed: int = 0, size: int = 120, of_each: int = 2) -> Sample:
    """Groups whose score tells something, two of each task."""
    rng = np.random.default_rng(seed)
    mixed = rng.random(size) < 0.5
    scores = np.round(np.clip(rng.normal(0.3, 0.15, size) + 0.3 * mixed, 0, 1), 2)
    outcomes = ["mixed" if one else "all_fail" for one in mixed]
    tasks = [f"task {g // of_each:03}" for g in range(size)]
    return make_sample([[s, s] for s in scores.tolist()], outcomes, after=[[6, 4]] * size, tasks=tasks)


def test_tasks_are_dealt_whole_into_folds_of_equal_size() -> None:
    sample = drawn()
    fold = deal(sample, np.ones(sample.size, bool), 5)
    assert np.bincount(fold).tolist() == [24] * 5
    assert all(len(set(fold[sample.task == task])) == 1 for task in range(60))


def test_the_fold_of_a_task_depends_on_no_order() -> None:
    sample, order = drawn(), np.random.default_rng(1).permutation(120)
    shuffled = make_sample([[0.0, 0.0]] * 120, ["mixed"] * 120, tasks=pl.Series(sample.tasks).gather(order).to_list())
    rows = np.ones(120, bool)
    assert deal(shuffled, rows, 5).tolist() == deal(sample, rows, 5)[order].tolist()


def test_groups_that_are_not_asked_for_are_in_no_fold() -> None:
    sample = drawn()
    rows = sample.task < 30
    fold = deal(sample, rows, 5)
    assert set(fold[~rows]) == {-1}
    assert np.bincount(fold[rows]).tolist() == [12] * 5


def test_each_fold_is_judged_by_the_gate_of_the_others() -> None:
    sample = drawn()
    search = search_of(sample, 0.8)
    found = out_of_sample(sample, search)
    assert found is not None
    fold = deal(sample, np.ones(sample.size, bool), 5)
    cut = hits = saved = 0
    for held_out in range(5):
        chosen = find(sample, search, fold != held_out)
        assert (chosen and chosen.rule) == found.rules[held_out]
        if chosen is None:
            continue
        assert isinstance(chosen.rule, Threshold)
        column = sample.column(chosen.rule.step)
        here = (fold == held_out) & (sample.signals[chosen.rule.signal][:, column] < chosen.rule.threshold)
        cut, hits = cut + int(here.sum()), hits + int((here & sample.zero_variance).sum())
        saved += int(sample.cost.after[here, column].sum())
    assert cut > 0
    assert (found.tally.taken, found.tally.true_positives) == (cut, hits)
    assert found.tally.saving.value == pytest.approx(saved / sample.cost.total.sum())


def test_a_group_has_no_say_in_the_gate_that_judges_it() -> None:
    sample = drawn()
    search, fold = search_of(sample, 0.8), deal(sample, np.ones(sample.size, bool), 5)
    before = out_of_sample(sample, search)
    flipped = [
        ("all_fail" if o == "mixed" else "mixed") if f == 2 else o for o, f in zip(sample.outcomes, fold, strict=True)
    ]
    scores = np.where((fold == 2)[:, None], 0.99, sample.signals[search.signals[0]])
    other = make_sample(scores.tolist(), flipped, after=[[6, 4]] * 120, tasks=sample.tasks.to_list())
    after = out_of_sample(other, search)
    assert before is not None
    assert after is not None
    assert after.rules[2] == before.rules[2]
    assert after.rules != before.rules


def test_where_the_score_says_nothing_the_precision_out_of_sample_falls_to_the_share_of_zero_variance() -> None:
    rng = np.random.default_rng(3)
    mixed = rng.random(1500) < 0.5
    scores = rng.random((1500, 12))
    sample = make_sample(scores.tolist(), ["mixed" if one else "all_fail" for one in mixed])
    search = search_of(sample, 0.7)
    chosen, outside = find(sample, search), out_of_sample(sample, search)
    assert chosen is not None
    assert chosen.precision >= 0.7  # luck among thousands of thresholds
    assert outside is not None
    assert outside.tally.precision.low < 0.5 < outside.tally.precision.high


def test_with_fewer_tasks_than_folds_each_task_is_one_and_a_single_task_cannot_be_judged() -> None:
    of_three = make_sample([[0.1]] * 30, ["all_fail"] * 24 + ["mixed"] * 6, tasks=["a", "b", "c"] * 10)
    found = out_of_sample(of_three, search_of(of_three, 0.7))
    assert found is not None
    assert len(found.rules) == 3
    alone = make_sample([[0.1]] * 30, ["all_fail"] * 24 + ["mixed"] * 6, tasks=["a"] * 30)
    assert out_of_sample(alone, search_of(alone, 0.7)) is None


@pytest.mark.parametrize("outcome", ["all_fail", "mixed"])
def test_folds_of_one_class_are_no_obstacle(outcome: str) -> None:
    sample = make_sample([[0.1]] * 60, [outcome] * 60)
    found = out_of_sample(sample, search_of(sample, 0.9))
    assert found is not None
    assert found.tally.taken == 0  # where all are zero-variance, no informative group would be left
    assert found.found == 0


def test_five_groups_give_no_gate_and_no_cut() -> None:
    sample = make_sample([[0.1]] * 5, ["all_fail"] * 5)
    found = out_of_sample(sample, search_of(sample, 0.5))
    assert found is not None
    assert (found.found, found.tally.taken) == (0, 0)
    assert np.isnan(found.tally.precision.value)
