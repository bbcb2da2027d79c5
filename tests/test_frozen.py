"""Groups read back from a run are those that were rolled out."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from synthetic import make_group

from collect.errors import InputError
from collect.store import open_run
from collect.trajectory import Decision, Group
from train.batch import examples_of
from train.frozen import stored_groups

DECISION = Decision(step=2, score=0.25, threshold=0.5, flagged=True, enforced=True, audited=False)


@pytest.fixture
def groups() -> list[Group]:
    rng = random.Random(0)
    made = [make_group(rng, 2 + number % 3, number=number) for number in range(5)]
    return [*made, make_group(rng, 3, number=7, visit=2, decision=DECISION)]


def write(folder: Path, groups: list[Group]) -> Path:
    with open_run(folder, {}, {}, flush_groups=2) as run:
        for group in groups:
            run.add(group)
    return folder


def as_stored(group: Group) -> Group:
    """What a run cannot tell: where the game lay; log-probabilities are stored in fp32."""
    trajectories = tuple(
        replace(t, logprobs=tuple(float(np.float32(value)) for value in t.logprobs)) for t in group.trajectories
    )
    path = Path(group.game.split, group.game.id, "game.tw-pddl")
    return replace(group, game=replace(group.game, path=path), trajectories=trajectories)


def test_groups_come_back_in_order_as_they_were(groups: list[Group], tmp_path: Path) -> None:
    assert list(stored_groups(write(tmp_path / "run", groups))) == [as_stored(group) for group in groups]


def test_what_is_learnt_from_them_is_what_would_have_been_learnt_live(groups: list[Group], tmp_path: Path) -> None:
    stored = examples_of(list(stored_groups(write(tmp_path / "run", groups))))
    assert stored == examples_of([as_stored(group) for group in groups])
    assert {example.group for example in stored} == {group.id for group in groups[:5]}  # the sixth was cut


def test_groups_can_be_asked_for_by_id(groups: list[Group], tmp_path: Path) -> None:
    wanted = [groups[4].id, groups[1].id]
    got = stored_groups(write(tmp_path / "run", groups), wanted)
    assert [group.id for group in got] == [groups[1].id, groups[4].id]


def test_a_run_without_a_group_gives_none(tmp_path: Path) -> None:
    assert list(stored_groups(write(tmp_path / "run", []))) == []


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a run"):
        list(stored_groups(tmp_path))


def test_a_damaged_part_is_refused_by_name(groups: list[Group], tmp_path: Path) -> None:
    run = write(tmp_path / "run", groups)
    part = run / "trajectories" / "part-000002.parquet"
    part.write_bytes(part.read_bytes()[: part.stat().st_size // 2])
    with pytest.raises(InputError, match=r"trajectories/part-000002\.parquet"):
        list(stored_groups(run))


def test_without_logged_steps_what_is_learnt_is_the_same_and_steps_are_asked_for(
    groups: list[Group], tmp_path: Path
) -> None:
    with open_run(tmp_path / "run", {}, {}) as run:
        run.log_steps = False
        for group in groups:
            run.add(group)
    stored = list(stored_groups(tmp_path / "run", steps_logged=False))
    assert examples_of(stored) == examples_of([as_stored(group) for group in groups])
    for group, live in zip(stored, groups, strict=True):
        assert [t.actions for t in group.trajectories] == [t.actions for t in live.trajectories]
        tokens = [[step.reply_tokens for step in t.steps] for t in group.trajectories]
        assert tokens == [[step.reply_tokens for step in t.steps] for t in live.trajectories]
    with pytest.raises(InputError, match=r"0 of the .* steps of trajectory 0 are there; take a run that logged all"):
        list(stored_groups(tmp_path / "run"))
