import random
from itertools import combinations
from pathlib import Path

import pytest
from rapidfuzz.distance import Levenshtein
from synthetic import make_group

from calibrate.convention import Convention
from calibrate.fit import apply
from calibrate.rollouts import read_rollouts
from calibrate.rules import Threshold
from calibrate.transfer import transfer
from collect.store import open_run
from collect.trajectory import Group

D = "prefix_edit_distance_mean"


@pytest.fixture(scope="module")
def groups() -> list[Group]:
    rng = random.Random(0)
    return [make_group(rng, 8, 6, number=number) for number in range(40)]


@pytest.fixture(scope="module")
def run(groups: list[Group], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("transfer") / "run"
    with open_run(folder, {}, {}) as writer:
        for group in groups:
            writer.add(group)
    return folder


def distance(actions: list[tuple[str, ...]], step: int) -> float:
    padded = [[*a[:step], *["END"] * (step - len(a))] for a in actions]
    found = [Levenshtein.distance(a, b) for a, b in combinations(padded, 2)]
    return sum(found) / (len(found) * step)


@pytest.mark.parametrize("keep", [2, 3, 7])
def test_every_group_is_that_of_some_of_its_trajectories(run: Path, groups: list[Group], keep: int) -> None:
    sample = read_rollouts(run, 1e-8, keep=keep)
    by_id = {group.id: group for group in groups}
    assert sample.group_size == keep
    for row, name in enumerate(sample.group_ids):
        candidates = list(combinations(by_id[name].trajectories, keep))
        matching = [
            c
            for c in candidates
            if distance([t.actions for t in c], 4) == sample.signals[D][row, 3]
            and sum(len(t.logprobs) for t in c) == sample.cost.total[row]
            and (len({t.reward for t in c}) == 1) == sample.zero_variance[row]
            and any(len(t.steps) > 4 for t in c) == sample.eligible[row, 3]
        ]
        assert matching


def test_which_trajectories_stay_is_the_same_every_time_and_not_the_same_in_every_group(run: Path) -> None:
    one, other = read_rollouts(run, 1e-8, keep=3), read_rollouts(run, 1e-8, keep=3)
    assert one.fingerprint() == other.fingerprint()
    assert one.fingerprint() != read_rollouts(run, 1e-8, keep=4).fingerprint()


def test_keeping_all_is_the_run_itself(run: Path) -> None:
    assert read_rollouts(run, 1e-8, keep=8).fingerprint() == read_rollouts(run, 1e-8).fingerprint()


def test_smaller_groups_are_more_often_zero_variance(run: Path) -> None:
    rule = Threshold(signal=D, step=3, threshold=0.7)
    rows = transfer(run, rule, 8, 1e-8)
    assert [size for size, _ in rows] == [4, 2]
    whole = apply(read_rollouts(run, 1e-8), rule, Convention.ELIGIBLE)
    assert whole.zero_variance < rows[0][1].zero_variance < rows[1][1].zero_variance


def test_the_rule_is_applied_as_it_is(run: Path) -> None:
    rule = Threshold(signal=D, step=3, threshold=0.7)
    small = read_rollouts(run, 1e-8, keep=4)
    counts = transfer(run, rule, 8, 1e-8)[0][1]
    cut = (small.signals[D][:, 2] < 0.7) & small.eligible[:, 2]
    assert (counts.taken, counts.true_positives) == (cut.sum(), (cut & small.zero_variance).sum())
