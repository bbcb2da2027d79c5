"""Groups of a frozen run, gated as if they were live."""

import asyncio
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from synthetic import make_group
from test_watch import Asked

from collect.engine import Sampling
from collect.errors import InputError
from collect.rollout import Settings, Task
from collect.store import open_run, scan
from collect.trajectory import Decision, Group
from train.frozen import stored_groups
from train.rolling import Frozen, Live, Rolled, replayed
from train.schedule import Schedule

RNG = random.Random(0)
CUT = Decision(2, 0.1, 0.2, flagged=True, enforced=True)


def write(folder: Path, groups: list[Group]) -> Path:
    with open_run(folder, {"model": "m"}, {}) as run:
        for group in groups:
            run.add(group)
    return folder


def roll(source: Path, out: Path, iterations: range, groups: int = 2, watcher: Asked | None = None) -> list[Rolled]:
    with open_run(out, {}, {}, command="train") as run:
        frozen = Frozen(source, groups, 7, run)
        return [asyncio.run(frozen.roll(frozen.tasks(i), i - 1, watcher, None, lambda done: None)) for i in iterations]


# The gate, replayed


def test_a_flagged_group_ends_where_a_live_one_would_have() -> None:
    group = make_group(RNG, 3, actions=[["a"] * 5, ["b"] * 2, ["c"] * 4], won=[False, True, False])
    cut = replayed(group, Asked((2,), flags=(2,)), None)

    assert cut.decision == Decision(2, 0.25, 0.5, flagged=True, enforced=True)
    assert [len(t.steps) for t in cut.trajectories] == [2, 2, 2]
    assert [t.ending for t in cut.trajectories] == ["cut", "won", "cut"]
    assert cut.trajectories[1] == group.trajectories[1]
    for short, whole in zip(cut.trajectories, group.trajectories, strict=True):
        n = len(short.token_ids)
        assert (short.token_ids, short.policy_mask) == (whole.token_ids[:n], whole.policy_mask[:n])
        assert short.logprobs == whole.logprobs[: sum(short.policy_mask)]
        assert sum(short.policy_mask) == sum(step.reply_tokens for step in short.steps)
        assert short.policy_mask[-1]
    assert cut.trajectories[0].final_observation == group.trajectories[0].steps[2].observation


def test_a_group_that_is_over_is_flagged_and_stays_whole() -> None:
    group = make_group(RNG, 2, actions=[["a"] * 2, ["b"]], won=[False, True])
    after = replayed(group, Asked((2,), flags=(2,)), None)
    assert after.trajectories == group.trajectories
    assert after.decision == Decision(2, 0.25, 0.5, flagged=True, enforced=False)


def test_an_audited_group_stays_whole_and_is_not_asked_about_again() -> None:
    group = make_group(RNG, 2, actions=[["a"] * 5, ["b"] * 5], won=[False, False])
    watcher = Asked((1, 3), flags=(1, 3))
    after = replayed(group, watcher, lambda _, decision: replace(decision, enforced=False, audited=True))
    assert after.trajectories == group.trajectories
    assert after.decision == Decision(1, 0.25, 0.5, flagged=True, enforced=False, audited=True)
    assert len(watcher.asked) == 1


def test_a_group_that_no_step_flags_keeps_the_last_decision() -> None:
    group = make_group(RNG, 2, actions=[["a"] * 5, ["b"] * 5], won=[False, False])
    after = replayed(group, Asked((1, 3)), None)
    assert after == replace(group, decision=Decision(3, 0.25, 0.5, flagged=False, enforced=False))


# The run


def test_a_group_of_another_iteration_is_not_learned_from_again_but_a_fresh_one_left_over_is(tmp_path: Path) -> None:
    planned, fresh = make_group(RNG), make_group(RNG, visit=-1)
    source = write(tmp_path / "run", [planned, fresh])  # both of policy version 0: iteration 1
    with open_run(source, {"model": "m"}, {}) as run:
        schedule = Schedule([planned.game], 1, 7)
        settings = Settings(4, 6, Sampling(0.7), 1, 7)
        live = Live(schedule, None, None, None, settings, run)  # type: ignore[arg-type]

        def again(group: Group, version: int) -> Rolled:
            task = Task(group.game, group.visit)
            return asyncio.run(live.roll([task], version, None, None, lambda done: None))

        assert again(planned, 0).groups[0].id == planned.id
        with pytest.raises(InputError, match=rf"group {planned.id} belongs to iteration 1, not 2; the games are not"):
            again(planned, 1)
        assert again(fresh, 1).groups[0].id == fresh.id


def test_every_pass_takes_every_whole_group_once_under_an_id_of_its_own(tmp_path: Path) -> None:
    groups = [make_group(RNG, number=number, visit=visit) for number in range(3) for visit in (-1, 0)]
    groups.append(make_group(RNG, number=9, decision=CUT))
    source = write(tmp_path / "source", groups)
    rolled = [group for one in roll(source, tmp_path / "out", range(1, 7)) for group in one.groups]

    assert len({group.id for group in rolled}) == 12
    contents = Counter(group.trajectories[0].token_ids for group in rolled)
    assert set(contents.values()) == {2}
    assert {group.game.id for group in rolled} == {group.game.id for group in groups[:-1]}
    assert [group.policy_version for group in rolled] == [i for i in range(6) for _ in range(2)]


def test_groups_are_recorded_as_they_were_gated_and_an_iteration_done_again_adds_nothing(tmp_path: Path) -> None:
    groups = [make_group(RNG, number=number, won=[False] * 4) for number in range(4)]
    source = write(tmp_path / "source", groups)
    first = roll(source, tmp_path / "out", range(1, 3), watcher=Asked((2,), flags=(2,)))
    again = roll(source, tmp_path / "out", range(2, 3), watcher=Asked((2,), flags=(2,)))

    assert again == first[1:]
    rows = scan(tmp_path / "out", "groups").collect()
    assert rows.height == 4
    assert rows["gate_enforced"].to_list() == [True] * 4
    assert set(scan(tmp_path / "out", "trajectories").collect()["length"]) == {2}


def test_without_a_gate_groups_are_as_they_were_rolled_out(tmp_path: Path) -> None:
    source = write(tmp_path / "source", [make_group(RNG, number=number) for number in range(2)])
    (rolled,) = roll(source, tmp_path / "out", range(1, 2))
    stored = {group.id: group for group in stored_groups(source)}
    for group in rolled.groups:
        assert [t.token_ids for t in group.trajectories] == [t.token_ids for t in stored[group.id].trajectories]
        assert [t.logprobs for t in group.trajectories] == [t.logprobs for t in stored[group.id].trajectories]
        assert group.decision is None


def test_a_frozen_run_without_a_whole_group_is_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "source", [make_group(RNG, decision=CUT)])
    with pytest.raises(InputError, match="holds no whole group to learn from"):
        roll(source, tmp_path / "out", range(1, 2))
