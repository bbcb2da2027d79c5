import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from synthetic import make_group, make_trajectory

from calibrate.matched import compare, elapsed
from calibrate.printing_matched import notes
from collect.errors import InputError
from collect.store import open_run
from collect.trajectory import Decision, Group


def arms(folder: Path, cut: dict[int, bool], **differences: object) -> tuple[Path, Path]:
    """Six groups of 4, ungated and gated; those in `cut`, zero-variance or not, end after 2 of 6 steps there."""
    free, gated = [], []
    for number in range(6):
        group = make_group(random.Random(number), 4, 6, number=number)
        flat = cut.get(number, False)
        won = [t if not flat else replace(t, reward=0.0, won=False, ending="horizon") for t in group.trajectories]
        if not flat:
            won[0], won[1] = replace(won[0], reward=1.0), replace(won[1], reward=0.0)
        group = replace(group, trajectories=tuple(won))
        free.append(group)
        gated.append(truncated(group) if number in cut else group)
    for name, groups, configuration in (("free", free, {}), ("gated", gated, {"gate": "f00", "gate_mode": "on"})):
        with open_run(
            folder / name, {"model": "tiny", "seed": 0} | configuration | (differences if name == "gated" else {}), {}
        ) as run:
            for group in groups:
                run.add(group)
    return folder / "free", folder / "gated"


def truncated(group: Group) -> Group:
    rng = random.Random(0)
    made = tuple(make_trajectory(rng, t.actions[:2], won=False, ending="cut") for t in group.trajectories)
    return replace(group, trajectories=made, decision=Decision(2, 0.05, 0.1, flagged=True, enforced=True))


def test_each_cut_is_right_where_the_ungated_group_is_zero_variance(tmp_path: Path) -> None:
    found = compare(*arms(tmp_path, {1: True, 3: False, 4: True}))
    assert (found.groups, found.tasks, found.alone) == (6, 6, 0)
    assert sorted(cut.right for cut in found.cuts) == [False, True, True]
    assert found.precision.value == pytest.approx(2 / 3)
    assert {(cut.step, cut.score, cut.threshold) for cut in found.cuts} == {(2, 0.05, 0.1)}


def test_what_was_saved_is_what_the_gated_run_did_not_take(tmp_path: Path) -> None:
    free, gated = arms(tmp_path, {1: True, 3: False})
    found = compare(free, gated)
    steps = {run: sum(pl.read_parquet(run / "trajectories" / "*.parquet")["length"].to_list()) for run in (free, gated)}
    total = next(total for total in found.totals if total.name == "steps")
    assert (total.ungated, total.gated) == (steps[free], steps[gated])
    assert total.saved.value == pytest.approx(1 - steps[gated] / steps[free])
    assert total.saved.low <= total.saved.value <= total.saved.high
    assert sum(cut.steps_saved for cut in found.cuts) == steps[free] - steps[gated]


def test_the_clock_is_dealt_to_the_groups_whole_and_once() -> None:
    begun = datetime(2026, 1, 1, tzinfo=UTC)
    # Two side by side from 0 to 10 and 4 to 12, a pause, and one from 20 to 25.
    groups = pl.DataFrame(
        {"started": [begun + timedelta(seconds=s) for s in (4, 20, 0)], "seconds": [8.0, 5.0, 10.0]},
        schema_overrides={"started": pl.Datetime("us", "UTC")},
    )
    assert elapsed(groups).tolist() == pytest.approx([2.0, 5.0, 10.0])


def test_arms_that_differ_in_more_than_the_gate_are_refused(tmp_path: Path) -> None:
    free, gated = arms(tmp_path, {1: True}, seed=1)
    with pytest.raises(InputError, match=r"its seed is 1, that of .* 0; the arms must differ in the gate alone"):
        compare(free, gated)
    with pytest.raises(InputError, match="was rolled out with a gate; give the ungated run first"):
        compare(gated, free)
    with pytest.raises(InputError, match="was rolled out without a gate"):
        compare(free, free)


def test_a_gate_that_only_looked_has_no_cuts_to_compare(tmp_path: Path) -> None:
    free, gated = arms(tmp_path, {1: True}, gate_mode="shadow")
    with pytest.raises(InputError, match="was in shadow mode and cut nothing; sr replay"):
        compare(free, gated)


def test_what_the_cuts_themselves_saved_is_told_from_what_else_differs(tmp_path: Path) -> None:
    found = compare(*arms(tmp_path, {1: True, 3: False}))
    total = next(total for total in found.totals if total.name == "tokens")
    saved = sum(cut.tokens_saved or 0 for cut in found.cuts)
    assert f"the {total.ungated - total.gated:,.0f} tokens saved the cuts themselves account for {saved:,}" in "".join(
        notes(found)
    )
