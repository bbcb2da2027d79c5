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
    shares = [counts.zero_variance / counts.groups for counts in (whole, *(counts for _, counts in rows))]
    assert shares[0] < shares[1] < shares[2]


def test_the_rule_is_applied_as_it_is(run: Path) -> None:
    rule = Threshold(signal=D, step=3, threshold=0.7)
    counts = transfer(run, rule, 8, 1e-8)[0][1]
    halves = [read_rollouts(run, 1e-8, keep=4, part=part) for part in range(2)]
    cuts = [(half.signals[D][:, 2] < 0.7) & half.eligible[:, 2] for half in halves]
    hits = [(cut & half.zero_variance).sum() for cut, half in zip(cuts, halves, strict=True)]
    saved = [half.cost.after[cut, 2].sum() for cut, half in zip(cuts, halves, strict=True)]
    assert (counts.groups, counts.tasks) == (80, 40)
    assert (counts.taken, counts.true_positives) == (sum(map(sum, cuts)), sum(hits))
    assert counts.saving.value == pytest.approx(sum(saved) / sum(half.cost.total.sum() for half in halves))


def test_a_group_is_dealt_into_smaller_ones_that_share_no_trajectory(run: Path, groups: list[Group]) -> None:
    tokens = {group.id: sum(len(t.logprobs) for t in group.trajectories) for group in groups}
    for keep in (2, 4):
        parts = [read_rollouts(run, 1e-8, keep=keep, part=part) for part in range(8 // keep)]
        for row, name in enumerate(parts[0].group_ids):
            assert sum(int(part.cost.total[row]) for part in parts) == tokens[name]


def test_what_is_left_of_a_group_after_dealing_counts_nowhere(tmp_path: Path) -> None:
    rng = random.Random(1)
    with open_run(tmp_path / "run", {}, {}) as writer:
        for number in range(6):
            writer.add(make_group(rng, 5, 6, number=number))
    ((size, counts),) = transfer(tmp_path / "run", Threshold(signal=D, step=3, threshold=0.7), 5, 1e-8)
    assert (size, counts.groups) == (2, 12)
