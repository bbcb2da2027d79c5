import random
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rapidfuzz.distance import Levenshtein
from synthetic import make_group

from calibrate.prefixes import Prefix
from calibrate.rollouts import read_rollouts, write_signals
from calibrate.signals import REGISTRY, SIGNALS
from collect.errors import InputError
from collect.schema import STEPS, TRAJECTORIES
from collect.store import committed_parts, open_run
from collect.trajectory import Decision, Group

TOLERANCE = 1e-8
D = "prefix_edit_distance_mean"


def write(folder: Path, groups: list[Group], flush: int = 7) -> Path:
    with open_run(folder, {"model": "tiny"}, {}, flush_groups=flush) as run:
        for group in groups:
            run.add(group)
    return folder


def random_groups(count: int, seed: int = 0, **options: Any) -> list[Group]:
    rng = random.Random(seed)
    return [make_group(rng, number=number, **options) for number in range(count)]


def with_rewards(group: Group, rewards: list[float]) -> Group:
    trajectories = [replace(t, reward=r) for t, r in zip(group.trajectories, rewards, strict=True)]
    return replace(group, trajectories=tuple(trajectories))


@pytest.mark.parametrize(("size", "horizon"), [(2, 2), (4, 6), (8, 30), (3, 70)])
def test_every_number_of_the_sample_equals_what_the_groups_say(tmp_path: Path, size: int, horizon: int) -> None:
    groups = random_groups(9, group_size=size, horizon=horizon)
    sample = read_rollouts(write(tmp_path / "run", groups), TOLERANCE)
    by_id = {group.id: group for group in groups}
    assert sample.group_ids.to_list() == sorted(by_id)
    assert (sample.group_size, sample.horizon, sample.steps.tolist()) == (size, horizon, list(range(1, horizon)))
    assert sample.notes == ()
    for row, name in enumerate(sample.group_ids):
        trajectories = by_id[name].trajectories
        rewards = [t.reward for t in trajectories]
        assert sample.zero_variance[row] == (len(set(rewards)) == 1)
        assert sample.reward_variance[row] == pytest.approx(np.var(rewards))
        assert sample.tasks[row] == by_id[name].game.id
        assert sample.cost.total[row] == sum(len(t.logprobs) for t in trajectories)
        for column, step in enumerate(sample.steps.tolist()):
            padded = [[*t.actions[:step], *["END"] * (step - len(t.actions))] for t in trajectories]
            distances = [Levenshtein.distance(a, b) for a, b in combinations(padded, 2)]
            assert sample.signals[D][row, column] == sum(distances) / (len(distances) * step)
            assert sample.eligible[row, column] == any(len(t.steps) > step for t in trajectories)
            prefixes = [Prefix.of(t.steps) for t in trajectories]
            for signal in REGISTRY:
                live = signal.at_step(prefixes, step)
                assert sample.signals[signal.name][row, column] == pytest.approx(live, rel=1e-12, abs=1e-12)
            assert sample.step_cost is not None
            assert sample.step_cost.after[row, column] == sum(max(0, len(t.steps) - step) for t in trajectories)
            later = [s.reply_tokens for t in trajectories for s in t.steps[step:]]
            assert sample.cost.after[row, column] == sum(later)


def test_a_sample_does_not_depend_on_the_order_in_which_groups_were_written(tmp_path: Path) -> None:
    groups = random_groups(30)
    one = write(tmp_path / "one", groups, flush=4)
    other = write(tmp_path / "other", groups[::-1], flush=30)
    first, second = read_rollouts(one, TOLERANCE), read_rollouts(other, TOLERANCE)
    assert first.fingerprint() == second.fingerprint()
    write_signals(one / "signals.parquet", first)
    write_signals(other / "signals.parquet", second)
    assert (one / "signals.parquet").read_bytes() == (other / "signals.parquet").read_bytes()


def test_trajectories_of_a_group_may_lie_apart_and_in_any_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write(tmp_path / "run", random_groups(40), flush=40)
    expected = read_rollouts(run, TOLERANCE).fingerprint()
    for table in ("trajectories", "steps"):
        (part,) = committed_parts(run, table)
        rows = pq.read_table(part)
        order = np.random.default_rng(0).permutation(rows.num_rows)
        pq.write_table(rows.take(pa.array(order)), part, row_group_size=9)
    monkeypatch.setattr("calibrate.blocks._TRAJECTORIES_AT_ONCE", 10)
    monkeypatch.setattr("calibrate.blocks._STEPS_AT_ONCE", 25)
    assert read_rollouts(run, TOLERANCE).fingerprint() == expected


def test_signals_are_written_as_declared_one_row_a_group_and_step(tmp_path: Path) -> None:
    groups = random_groups(12, horizon=5)
    sample = read_rollouts(write(tmp_path / "run", groups), TOLERANCE)
    path = tmp_path / "run" / "signals.parquet"
    write_signals(path, sample)
    assert pq.read_schema(path).equals(SIGNALS.arrow, check_metadata=True)
    rows = pl.read_parquet(path)
    assert rows.select("group_id", "step").rows() == [(name, k) for name in sample.group_ids for k in range(1, 5)]
    types = {group.id: group.game.task_type for group in groups}
    assert rows["task_type"].to_list() == [types[name] for name in rows["group_id"]]
    assert rows["prefix_edit_distance_mean"].to_list() == sample.signals[D].ravel().tolist()
    ended = [
        np.mean([len(t.steps) < k for t in group.trajectories])
        for group in sorted(groups, key=lambda g: g.id)
        for k in range(1, 5)
    ]
    assert rows["termination_fraction"].to_list() == pytest.approx(ended)


def test_groups_that_a_gate_cut_are_left_out_and_counted(tmp_path: Path) -> None:
    rng = random.Random(0)
    cut = Decision(2, 0.0, 0.1, flagged=True, enforced=True)
    audited = Decision(2, 0.0, 0.1, flagged=True, enforced=False, audited=True)
    groups = [
        make_group(rng, number=number, decision=decision)
        for number, decision in enumerate([None, cut, audited, cut, None])
    ]
    sample = read_rollouts(write(tmp_path / "run", groups), TOLERANCE)
    assert sample.group_ids.to_list() == sorted(groups[i].id for i in (0, 2, 4))
    (note,) = sample.notes
    assert note.startswith("left out: 2 groups that a gate cut (their rewards are truncated); the others are")


def test_groups_that_failed_and_are_owed_are_counted(tmp_path: Path) -> None:
    groups = random_groups(3)
    with open_run(tmp_path / "run", {}, {}) as run:
        run.add_error(groups[0].id, "engine", "out of memory")  # succeeded later
        run.add_error("task/trial#0", "environment", "crashed")
        run.add_error("task/trial#0", "environment", "crashed again")
        for group in groups:
            run.add(group)
    assert read_rollouts(tmp_path / "run", TOLERANCE).notes == (
        "left out: 1 groups that failed and are owed (run sr collect again to have them)",
    )


def test_a_group_with_a_missing_trajectory_is_left_out_and_named(tmp_path: Path) -> None:
    groups = random_groups(5)
    run = write(tmp_path / "run", groups, flush=5)
    (part,) = committed_parts(run, "trajectories")
    rows = pq.read_table(part)
    broken = (pl.Series(rows["group_id"]) == groups[1].id) & (pl.Series(rows["trajectory"]) == 2)
    pq.write_table(rows.filter(pa.array((~broken).to_numpy())), part)
    sample = read_rollouts(run, TOLERANCE)
    assert sample.group_ids.to_list() == sorted(g.id for g in groups if g is not groups[1])
    assert sample.notes == (f"left out: 1 groups with missing trajectories (the first is {groups[1].id!r})",)


def test_real_valued_rewards_count_as_equal_within_the_tolerance(tmp_path: Path) -> None:
    near, far, same = [[0.5, 0.5, 0.5, 0.7], [0.0, 0.2, 0.4, 0.9], [0.3] * 4]
    groups = [with_rewards(g, r) for g, r in zip(random_groups(3), (near, far, same), strict=True)]
    run = write(tmp_path / "run", groups)
    names = [group.id for group in groups]

    def outcomes(tolerance: float) -> list[str]:
        sample = read_rollouts(run, tolerance)
        told = dict(zip(sample.group_ids, sample.outcomes.tolist(), strict=True))
        return [told[name] for name in names]

    assert outcomes(TOLERANCE) == ["mixed", "mixed", "uniform"]
    assert outcomes(0.25) == ["uniform", "mixed", "uniform"]


@pytest.mark.parametrize(
    ("column", "unknown"),
    [
        ("observation", {"obs_unique_ratio", "observations_reached", "repetition"}),
        ("admissible_commands", {"commands_reached"}),
        ("match", {"refused_share"}),
        ("reply_logprob", {"mean_logprob"}),
        ("reply_tokens", {"mean_logprob"}),
    ],
)
@pytest.mark.parametrize("everywhere", [False, True])
def test_a_signal_that_reads_what_some_step_lacks_is_not_known(
    tmp_path: Path, column: str, unknown: set[str], everywhere: bool
) -> None:
    run = write(tmp_path / "run", random_groups(6), flush=3)
    whole = read_rollouts(run, TOLERANCE)
    part = committed_parts(run, "steps")[-1]
    rows = pq.read_table(part).to_pylist()
    for row in rows if everywhere else rows[5:6]:
        row[column] = None
    pq.write_table(pa.Table.from_pylist(rows, schema=STEPS.arrow), part)
    sample = read_rollouts(run, TOLERANCE)
    assert set(whole.signals) - set(sample.signals) == unknown
    for name, values in sample.signals.items():
        assert np.array_equal(values, whole.signals[name])
    (note,) = sample.notes
    assert note.startswith(f"not known: {', '.join(name for name in whole.signals if name in unknown)} (this run")
    assert sample.cost.unit == "tokens"
    write_signals(run / "signals.parquet", sample)
    table = pl.read_parquet(run / "signals.parquet")
    assert {name for name in table.columns if table[name].has_nulls()} == unknown | {"no_draw"}


def test_without_numbers_of_tokens_cost_is_steps(tmp_path: Path) -> None:
    run = write(tmp_path / "run", random_groups(6), flush=6)
    (part,) = committed_parts(run, "trajectories")
    rows = pq.read_table(part).to_pylist()
    rows[5]["reply_tokens"] = None
    pq.write_table(pa.Table.from_pylist(rows, schema=TRAJECTORIES.arrow), part)
    sample = read_rollouts(run, TOLERANCE)
    assert sample.cost is sample.step_cost
    assert sample.cost.unit == "steps"
    assert sample.cost.total.sum() == sum(row["length"] for row in rows)


def refusal(run: Path) -> str:
    with pytest.raises(InputError) as raised:
        read_rollouts(run, TOLERANCE)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_groups_of_different_size_are_refused_with_the_counts(tmp_path: Path) -> None:
    rng = random.Random(0)
    groups = [make_group(rng, size, number=number) for number, size in enumerate([4, 4, 8])]
    assert "group_size differs between groups (4 in 2, 8 in 1 groups)" in refusal(write(tmp_path / "run", groups))


def test_groups_of_different_horizon_are_refused_with_the_counts(tmp_path: Path) -> None:
    rng = random.Random(0)
    groups = [make_group(rng, horizon=horizon, number=number) for number, horizon in enumerate([6, 9])]
    assert "horizon differs between groups (6 in 1, 9 in 1 groups)" in refusal(write(tmp_path / "run", groups))


def test_a_run_without_a_finished_group_is_refused(tmp_path: Path) -> None:
    assert "no finished ungated group" in refusal(write(tmp_path / "run", []))


def test_a_horizon_of_one_leaves_no_step_to_cut_at(tmp_path: Path) -> None:
    assert "horizon 1" in refusal(write(tmp_path / "run", random_groups(3, horizon=1)))


def test_a_reward_that_is_no_number_is_refused_by_group(tmp_path: Path) -> None:
    groups = random_groups(3)
    groups[1] = with_rewards(groups[1], [1.0, float("nan"), 0.0, 0.0])
    assert f"group {groups[1].id!r} has a reward that is no finite number" in refusal(write(tmp_path / "run", groups))


@pytest.mark.parametrize("column", ["length", "action_symbols", "reply_tokens", "trajectory"])
def test_trajectories_that_contradict_themselves_are_refused_by_group(tmp_path: Path, column: str) -> None:
    groups = random_groups(3)
    run = write(tmp_path / "run", groups, flush=3)
    (part,) = committed_parts(run, "trajectories")
    rows = pq.read_table(part).to_pylist()
    rows[5][column] = {"length": 99, "action_symbols": "", "reply_tokens": [], "trajectory": 7}[column]
    pq.write_table(pa.Table.from_pylist(rows, schema=TRAJECTORIES.arrow), part)
    told = refusal(run)
    assert f"group {rows[5]['group_id']!r}" in told
    assert "do not fit together" in told


@pytest.mark.parametrize("column", ["trajectory", "step", "reply_logprob"])
def test_steps_that_contradict_the_trajectories_are_refused_by_group(tmp_path: Path, column: str) -> None:
    groups = random_groups(3)
    run = write(tmp_path / "run", groups, flush=3)
    (part,) = committed_parts(run, "steps")
    rows = pq.read_table(part).to_pylist()
    rows[5][column] = {"trajectory": 7, "step": 99, "reply_logprob": float("nan")}[column]
    pq.write_table(pa.Table.from_pylist(rows, schema=STEPS.arrow), part)
    told = refusal(run)
    assert f"the steps of group {rows[5]['group_id']!r} do not fit its trajectories" in told


@pytest.mark.parametrize("table", ["groups", "trajectories", "steps"])
def test_a_part_damaged_in_the_middle_is_refused(tmp_path: Path, table: str) -> None:
    run = write(tmp_path / "run", random_groups(8), flush=8)
    (part,) = committed_parts(run, table)
    content = bytearray(part.read_bytes())
    content[4:500] = bytes(496)
    part.write_bytes(content)
    told = refusal(run)
    assert str(run) in told
    assert "damaged" in told


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_rewards_whose_variance_no_number_holds_are_refused(tmp_path: Path) -> None:
    one, other, third = random_groups(3, group_size=3)
    # Twice 1e153 has a variance of about 1e306, and twice 1e200 one of 1e400.
    write(tmp_path / "run", [one, with_rewards(other, [1e153, -1e153, 0.0])])
    assert read_rollouts(tmp_path / "run", TOLERANCE).reward_variance.max() == pytest.approx(2 / 3 * 1e306)
    for rewards in ([1e200, 0.0, -1e200], [1.7e308, 1.7e308, -1.7e308]):
        folder = tmp_path / f"run{rewards[0]}"
        write(folder, [one, with_rewards(third, rewards)])
        with pytest.raises(InputError) as refusal:
            read_rollouts(folder, TOLERANCE)
        told = f"{folder}: group {third.id!r} has rewards as large as {rewards[0]:g}, whose variance no number holds; "
        assert str(refusal.value) == told + "scale the rewards and make the run again"


def test_a_disk_that_is_full_is_told_in_the_systems_words(tmp_path: Path) -> None:
    sample = read_rollouts(write(tmp_path / "run", random_groups(2)), TOLERANCE)
    (tmp_path / "file").write_text("")
    for place, why in (("file", "Not a directory"), ("nowhere", "No such file or directory")):
        path = tmp_path / place / "signals.parquet"
        with pytest.raises(InputError) as refusal:
            write_signals(path, sample)
        assert str(refusal.value) == f"{path}: cannot be written ({why}); make the run's folder writable"
