"""The gate in training: where it comes from, and what becomes of it."""

import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gates import make_gate
from hypothesis import given
from hypothesis import strategies as st
from synthetic import make_group
from typer.testing import CliRunner

import sr
from calibrate.gate import load, save
from calibrate.ladder import MIN_CUTS
from calibrate.rules import Learned, Sequential, Stage, Threshold
from collect.errors import InputError
from collect.policy import SMALL_MODEL, Policy
from collect.store import open_run
from collect.trajectory import Decision, Group
from train.audit import Tally
from train.gating import Gating, TimedWatcher, after_iteration, begin, calibrated, find_gate, tightened, watcher_of
from train.settings import Settings, resolve

D = "prefix_edit_distance_mean"
RULE = Threshold(signal=D, step=2, threshold=0.4)
FLAT, MIXED = [False, False, False], [True, False, True]
ALIKE = ["look", "go to desk 1", "open drawer 1", "look", "inventory"]


def settings_of(**options: Any) -> Settings:
    options = {"engine": "transformers", "model": SMALL_MODEL, "group_size": 3, "horizon": 6} | options
    return resolve(Settings.model_validate(options), Policy(SMALL_MODEL, "folder"))


def configuration_of(settings: Settings) -> dict[str, Any]:
    return settings.configuration(Policy(SMALL_MODEL, "folder"))


def start(**options: Any) -> tuple[Gating, tuple[str, ...]]:
    settings = settings_of(**options)
    gating, _, lines = begin(settings, configuration_of(settings))
    return gating, lines


def group(number: int, won: list[bool], decision: Decision | None = None) -> Group:
    """Failing groups repeat one another, others scatter."""
    rng = random.Random(number)
    actions = [list(ALIKE) if not any(won) else [f"go to shelf {rng.randint(1, 99)}" for _ in range(5)] for _ in won]
    return make_group(rng, len(won), 6, number=number, actions=actions, won=won, decision=decision)


def write_run(folder: Path, groups: list[Group]) -> Path:
    with open_run(folder, {"model": SMALL_MODEL, "prompt": "act", "adapter": None}, {}) as run:
        for one in groups:
            run.add(one)
    return folder


@pytest.fixture
def gate_file(tmp_path: Path) -> str:
    path = tmp_path / "gate.json"
    save(make_gate(horizon=6), path)
    return str(path)


# Where it comes from


@pytest.mark.parametrize(
    "options", [{"threshold": "off"}, {"gate_mode": "off"}, {"threshold": 0.3, "gate_mode": "off"}]
)
def test_off_is_no_gate(options: dict[str, Any]) -> None:
    gating, lines = start(**options)
    assert (gating.stage, gating.rule, lines) == ("off", None, ())


def test_a_number_is_a_threshold_at_a_third_of_the_horizon_or_where_it_is_told() -> None:
    assert start(threshold=0.4)[0].rule == RULE
    assert start(threshold=0.12, horizon=30)[0].rule == Threshold(signal=D, step=10, threshold=0.12)
    told, _ = start(threshold=0.4, at_step=5, signal="unique_prefix_ratio", gate_mode="shadow")
    assert told.rule == Threshold(signal="unique_prefix_ratio", step=5, threshold=0.4)
    assert told.stage == "shadow"


def test_a_number_with_a_gate_takes_its_signal_and_step(gate_file: str) -> None:
    assert start(threshold=0.2, gate=gate_file)[0].rule == Threshold(signal=D, step=3, threshold=0.2)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"threshold": 2.0}, "--threshold 2: prefix_edit_distance_mean lies in"),
        ({"threshold": 0.1, "horizon": 1}, "--threshold 0.1: there is no step K under --max-steps 1"),
    ],
)
def test_a_threshold_that_can_decide_nothing_is_refused(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError) as refused:
        start(**options)
    assert str(refused.value).startswith(complaint)


def test_a_gate_that_is_given_is_taken_with_its_target_and_what_speaks_against_it(gate_file: str) -> None:
    gating, lines = start(gate=gate_file, horizon=7)
    assert gating == Gating("on", 0.75, make_gate().rule)
    assert any("horizon 6, not 7" in line for line in lines)
    with pytest.raises(InputError, match="fitted on groups of 3, not 8"):
        start(gate=gate_file, group_size=8)


def test_without_a_gate_the_run_calibrates_itself_first() -> None:
    gating, lines = start(warmup_iterations=3)
    assert (gating.stage, gating.rule) == ("warmup", None)
    assert lines == ("gate: none yet; calibrated on the first 3 iterations",)


def test_the_latest_gate_in_runs_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for age, (name, threshold) in enumerate((("new", 0.1), ("old", 0.2))):
        (tmp_path / "runs" / name).mkdir(parents=True)
        path = tmp_path / "runs" / name / "gate.json"
        save(make_gate(horizon=6, threshold=threshold), path)
        os.utime(path, (1e9 - age, 1e9 - age))
    settings = settings_of()

    found, lines = find_gate(settings, configuration_of(settings))
    assert (found.gate, lines) == ("runs/new/gate.json", ("gate: runs/new/gate.json",))
    for unwanted in ({"threshold": "off"}, {"threshold": 0.1}, {"gate_mode": "off"}):
        settings = settings_of(**unwanted)
        assert find_gate(settings, configuration_of(settings)) == (settings, ())


def test_a_latest_gate_that_does_not_fit_is_left_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for age, (name, size) in enumerate((("new", 3), ("older", 4), ("oldest", 8))):
        (tmp_path / "runs" / name).mkdir(parents=True)
        save(make_gate(group_size=size), tmp_path / "runs" / name / "gate.json")
        os.utime(tmp_path / "runs" / name / "gate.json", (1e9 - age, 1e9 - age))
    settings = settings_of(group_size=8)
    found, lines = find_gate(settings, configuration_of(settings))
    assert found.gate == "runs/oldest/gate.json"
    assert lines[1:] == ("gate: runs/oldest/gate.json",)
    assert "fitted on groups of 3, not 8" in lines[0]

    settings = settings_of(group_size=5)
    found, lines = find_gate(settings, configuration_of(settings))
    assert found.gate is None
    assert len(lines) == 1


def test_the_gate_of_a_frozen_run_comes_before_later_ones_if_it_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("frozen", "runs/later"):
        (tmp_path / folder).mkdir(parents=True)
        save(make_gate(horizon=6), tmp_path / folder / "gate.json")
    settings = settings_of(from_run="frozen")
    assert find_gate(settings, configuration_of(settings))[0].gate == "frozen/gate.json"
    save(make_gate(group_size=8), tmp_path / "frozen" / "gate.json")
    assert find_gate(settings, configuration_of(settings))[0].gate == "runs/later/gate.json"


def test_the_gate_of_the_warm_up_is_the_one_that_sr_calibrate_fits(tmp_path: Path) -> None:
    groups = [group(number, FLAT) for number in range(12)] + [group(number, MIXED) for number in range(12, 20)]
    run = write_run(tmp_path / "run", groups)
    settings = settings_of(target_precision=0.8, warmup_iterations=2)
    warmup, _, _ = begin(settings, configuration_of(settings))

    assert after_iteration(warmup, groups, 1, settings, run).gating == warmup
    change = after_iteration(warmup, groups, 2, settings, run)
    done = CliRunner().invoke(sr.app, ["calibrate", str(run), "--target-precision", "0.8"])

    assert done.exit_code == 0
    assert change.gate == load(run / "gate.json")
    assert change.gating == Gating("on", 0.8, load(run / "gate.json").rule, since=3)
    assert all(line in done.stdout for line in change.lines)


def test_where_no_threshold_reaches_the_target_the_run_says_so_and_goes_on_ungated(tmp_path: Path) -> None:
    groups = [group(number, FLAT if number < 4 else MIXED) for number in range(8)]
    run = write_run(tmp_path / "run", groups)
    settings = settings_of(warmup_iterations=1)
    warmup, _, _ = begin(settings, configuration_of(settings))

    change = after_iteration(warmup, groups, 1, settings, run)
    assert change.gating.stage == "off"
    assert change.gate is None
    assert change.lines[0].startswith("no gate: too few groups: a gate needs 10 cuts")
    assert change.lines[0].endswith("; the run goes on ungated")


def test_a_warm_up_in_which_every_group_failed_goes_on_ungated(tmp_path: Path) -> None:
    gate, lines = calibrated(write_run(tmp_path / "run", []), settings_of())
    assert gate is None
    assert lines[0].endswith("; the run goes on ungated")


# What it does


def test_a_gate_decides_as_the_gate_of_a_file_does_and_its_time_is_counted() -> None:
    timed = TimedWatcher(make_gate().rule)
    steps = [trajectory.steps for trajectory in group(1, FLAT).trajectories]
    decision = timed.decide(steps, eligible=True, step=3)

    assert decision == make_gate().decide(steps, eligible=True)
    assert decision.enforced
    assert timed.seconds > 0
    shadow = watcher_of(Gating("shadow", 0.9, timed.rule), timed)
    assert shadow is not None
    assert shadow.decide(steps, eligible=True, step=3) == replace(decision, enforced=False)
    assert watcher_of(Gating("off", 0.9), None) is None


# What becomes of it

AUDITED = Decision(2, 0.1, 0.4, flagged=True, enforced=False, audited=True)


def audited(number: int, score: float, flat: bool) -> Group:
    return group(number, FLAT if flat else MIXED, replace(AUDITED, score=score))


def drifted(**options: Any) -> tuple[Gating, list[Group], Settings]:
    """A gate whose audits in one iteration say that it is bad, but good at low scores."""
    groups = [audited(n, n / 100, flat=True) for n in range(12)] + [
        audited(n, n / 100, flat=False) for n in range(12, 30)
    ]
    return Gating("on", 0.9, RULE), groups, settings_of(threshold=0.4, **options)


def test_drift_is_warned_of_once_and_the_gate_stays(tmp_path: Path) -> None:
    gating, groups, settings = drifted()
    run = write_run(tmp_path / "run", groups)
    first = after_iteration(gating, groups, 1, settings, run)
    second = after_iteration(first.gating, [], 2, settings, run)

    assert first.lines == ("gate: drift: precision 0.400 [0.227, 0.594] of 30 audited is under its target of 0.9",)
    assert first.gating == first.seen == replace(gating, tally=Tally(30, 30, 12))
    assert second.gating == first.gating
    assert second.gating.alarm
    assert second.lines == ()


def test_on_drift_off_says_nothing(tmp_path: Path) -> None:
    gating, groups, settings = drifted(on_drift="off")
    change = after_iteration(gating, groups, 1, settings, write_run(tmp_path / "run", groups))
    assert change.lines == ()
    assert change.seen.alarm


def test_a_tightened_gate_has_a_threshold_that_the_audits_bear_out_and_is_audited_anew(tmp_path: Path) -> None:
    gating, groups, settings = drifted(on_drift="tighten")
    change = after_iteration(gating, groups, 4, settings, write_run(tmp_path / "run", groups))

    # 12 of the first 13 scores are zero-variance groups, 12 of the first 14 are under 0.9.
    assert change.gating == Gating("on", 0.9, RULE.model_copy(update={"threshold": pytest.approx(0.125)}), since=5)
    assert change.seen.tally == Tally(30, 30, 12)
    assert "a certificate of the old one no longer holds" in change.lines[0]


def test_a_gate_that_cannot_be_tightened_cuts_nothing_any_more(tmp_path: Path) -> None:
    groups = [audited(n, 0.1, flat=n < 12) for n in range(30)]
    gating, _, settings = drifted(on_drift="tighten")
    change = after_iteration(gating, groups, 4, settings, write_run(tmp_path / "run", groups))
    assert (change.gating.stage, change.gating.rule, change.gating.tally) == ("shadow", RULE, Tally())
    assert "nothing is cut any more" in change.lines[0]


def test_only_audits_since_the_last_tightening_count_as_evidence(tmp_path: Path) -> None:
    gating, groups, settings = drifted(on_drift="tighten")
    run = write_run(tmp_path / "run", groups)  # all of policy version 0: iteration 1
    change = after_iteration(replace(gating, since=2), groups, 4, settings, run)
    assert change.gating.stage == "shadow"


@given(
    st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=60),
    st.floats(0.5, 0.99),
    st.sampled_from([RULE, Learned(step=2, threshold=1.0, intercept=0.0, terms=())]),
)
def test_a_tightened_threshold_is_the_loosest_that_reaches_the_target(
    evidence: list[tuple[float, bool]], target: float, rule: Threshold | Learned
) -> None:
    stricter = tightened(rule, evidence, target)
    reached = []
    for level in {score for score, _ in evidence}:
        flagged = [flat for score, flat in evidence if score <= level]
        if len(flagged) >= MIN_CUTS and len(flagged) < len(evidence) and sum(flagged) / len(flagged) >= target:
            reached.append(len(flagged))
    if stricter is None:
        assert not reached
        return
    assert isinstance(stricter, Threshold | Learned)
    assert sum(score < stricter.threshold for score, _ in evidence) == max(reached)


def test_a_signal_that_is_high_in_groups_that_look_alike_is_tightened_upwards() -> None:
    rule = Threshold(signal="termination_fraction", step=2, threshold=0.5)
    evidence = [(0.9, True)] * 10 + [(0.6, False)] * 10
    assert tightened(rule, evidence, 0.9) == rule.model_copy(update={"threshold": 0.75})


def test_a_rule_of_several_thresholds_cannot_be_tightened() -> None:
    rule = Sequential(signal=D, stages=(Stage(step=1, threshold=0.1), Stage(step=2, threshold=0.2)))
    assert tightened(rule, [(0.1, True)] * 20 + [(0.2, False)] * 20, 0.9) is None


def test_the_state_of_a_gate_survives_being_written() -> None:
    gating = Gating("on", 0.9, RULE, Tally(5, 4, 3, 2, 1, 1, 7), since=3)
    assert Gating.from_json(gating.as_json()) == gating
    assert Gating.from_json(Gating("off", 0.9).as_json()) == Gating("off", 0.9)
