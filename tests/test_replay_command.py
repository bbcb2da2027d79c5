import json
from pathlib import Path
from typing import Any

import pytest
from calibration_runs import MANY, RELEASED, Run, released, write_run
from gates import EVIDENCE, D, make_gate

from calibrate.convention import Convention
from calibrate.gate import Gate, save
from calibrate.rules import Learned, Sequential, Stage, Term


@pytest.fixture
def calibrated(run: Run, tmp_path: Path) -> Path:
    """A run with its gate."""
    write_run(tmp_path / "run", MANY)
    assert run("calibrate", "run", "--at-step", "2")[0] == 0
    return tmp_path / "run"


def policies(out: str) -> dict[str, list[str]]:
    """The rows of the table of policies, by name."""
    rows = [[field.strip() for field in line.split("  ") if field.strip()] for line in out.splitlines()]
    return {row[0]: row[1:] for row in rows if len(row) == 14 and row[0] != "policy"}


def shown(run: Run, gate: Gate) -> str:
    """What `sr gate show` prints of a gate."""
    save(gate, Path("gate.json"))
    code, out, err = run("gate", "show", "gate.json")
    assert (code, err) == (0, "")
    return out


def test_a_run_is_replayed_with_its_own_gate_and_that_is_said_to_flatter(run: Run, calibrated: Path) -> None:
    before = sorted(calibrated.rglob("*"))
    code, out, err = run("replay", calibrated)
    assert (code, err) == (0, "")
    assert "fitted on these very groups, which flatters it" in out
    rows = policies(out)
    assert list(rows) == [
        "none",
        "random at the same rate",
        "oracle at K = 2",
        "post-filter",
        "pre-rollout skip by history",
        "gate",
        "gate + post-filter",
    ]
    assert rows["gate"][:3] == ["24", "24", "0"]
    assert set(rows["pre-rollout skip by history"]) == {"n/a"}
    assert sorted(calibrated.rglob("*")) == before


def test_a_gate_is_replayed_on_another_run(run: Run, calibrated: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "other", MANY[10:40], {"model": "huge", "prompt": "act", "adapter": None})
    code, out, _ = run("replay", tmp_path / "other", "--gate", calibrated / "gate.json")
    assert code == 0
    assert "flatters it" not in out
    assert "warning: fitted on rollouts with model tiny, not huge" in out
    assert policies(out)["gate"][:3] == ["14", "14", "0"]


def test_one_gate_by_two_paths_is_given_twice(run: Run, calibrated: Path) -> None:
    path = calibrated / "gate.json"
    again = calibrated / ".." / calibrated.name / "gate.json"
    code, _, err = run("replay", calibrated, "--gate", path, "--gate", again)
    assert (code, "given twice" in err) == (2, True)


def test_a_gate_for_another_group_size_is_refused_unless_told(run: Run, calibrated: Path) -> None:
    gate = json.loads((calibrated / "gate.json").read_text()) | {"group_size": 8}
    (calibrated / "gate.json").write_text(json.dumps(gate))
    code, out, err = run("replay", calibrated)
    assert (code, out) == (2, "")
    assert "was fitted on groups of 8, these are of 3" in err
    assert run("replay", calibrated, "--other-group-size")[0] == 0


@released
def test_a_table_is_replayed_without_what_it_cannot_tell(run: Run, tmp_path: Path) -> None:
    assert run("calibrate", "--signals", RELEASED, "--target-precision", "0.75")[0] == 0
    code, out, _ = run("replay", "--signals", RELEASED, "--gate", "gate.json")
    assert code == 0
    row = policies(out)["gate"]
    assert row[:3] == ["17", "13", "4"]
    assert row[5:7] == ["n/a", "n/a"]
    assert row[7:11] == ["8.7", "11.3", "n/a", "4 of 61"]
    assert "smaller groups: n/a, a table of signals does not hold the trajectories" in out


def test_a_gate_is_shown_in_words(run: Run, calibrated: Path) -> None:
    code, out, err = run("gate", "show", calibrated / "gate.json")
    assert (code, err) == (0, "")
    assert "rule: cut a group when prefix_edit_distance_mean < " in out
    assert "mean over the group's pairs of Levenshtein" in out
    assert "groups of 3 trajectories, horizon 6; policy: model tiny, prompt act" in out
    assert "in sample (flattering): of 52 groups of 52 tasks 24 cut" in out
    assert "out of sample" in out
    assert "not certified" in out


def test_a_gate_shows_how_its_rollouts_were_sampled_where_that_is_known(run: Run, tmp_path: Path) -> None:
    fields: dict[str, Any] = {"temperature": 0.7, "top_p": 1.0, "reward_tolerance": 0.01}
    assert "convention eligible; temperature 0.7; top-p 1; reward tolerance 0.01\n" in shown(run, make_gate(**fields))
    for unknown in (make_gate(), make_gate(reward_tolerance=None)):
        assert "convention eligible\n" in shown(run, unknown)


def test_a_gate_of_the_papers_convention_tells_flagged_groups_from_cut_ones(run: Run) -> None:
    evidence = EVIDENCE.model_copy(update={"cut": 12})
    out = shown(run, make_gate(convention=Convention.PAPER, evidence=evidence))
    assert "of 100 groups of 100 tasks 17 flagged (12 of them cut, the others were over), 13 zero-variance" in out
    out = shown(run, make_gate(convention=Convention.PAPER))
    assert "of 100 groups of 100 tasks 17 flagged (17 of them cut), 13 zero-variance" in out


def test_a_gate_counts_its_one_step_right(run: Run) -> None:
    assert "has taken 1 step or has ended" in shown(run, make_gate(step=1))
    assert "has taken 2, 3 steps or has ended" in shown(
        run, make_gate(rule=Sequential(signal=D, stages=(Stage(step=2, threshold=0.0), Stage(step=3, threshold=0.3))))
    )


def test_a_learned_gate_shows_its_weights_and_what_its_number_is(run: Run) -> None:
    terms = (
        Term(signal=D, mean=0.1, scale=0.5, weight=2.0),
        Term(signal="repetition", mean=0.0, scale=0.25, weight=-1.0),
    )
    out = shown(run, make_gate(rule=Learned(step=2, threshold=0.6353, intercept=0.3, terms=terms)))
    assert "the number is the estimated chance that the group is informative" in out
    assert "where x is 0.3 plus the sum of weight * (signal - mean) / scale:\n" in out
    assert f"  {D}: mean 0.1, scale 0.5, weight +2\n  repetition: mean 0, scale 0.25, weight -1\n" in out


def test_a_gate_that_does_not_save_is_warned_of(run: Run) -> None:
    assert "warning" not in shown(run, make_gate())
    lost = EVIDENCE.model_copy(update={"net_saving": -0.01})
    out = shown(run, make_gate(out_of_sample=lost))
    assert "warning: out of sample the net saving is not above 0" in out
    assert "warning: in sample" not in out
    none_left = EVIDENCE.model_copy(update={"net_saving": None})
    out = shown(run, make_gate(evidence=none_left))
    assert "net saving n/a\n" in out
    assert "warning: in sample the net saving is not above 0" in out


def test_a_certified_gate_says_so(run: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "run", MANY * 4)
    assert run("calibrate", "run", "--target-precision", "0.7", "--confidence", "0.9", "--at-step", "3")[0] == 0
    _, out, _ = run("gate", "show", "run/gate.json")
    assert "certified: precision >= 0.7 with confidence 0.9 for new tasks" in out
    assert "not certified" not in out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["replay", "run"], "gate.json: no such file"),
        (["replay", "none"], "none: no such folder"),
        (["replay", "--signals", "table.csv"], "--gate: give the gate.json"),
        (["gate", "show", "none.json"], "none.json: no such file"),
        (["gate", "show"], "Missing argument 'FILE'"),
    ],
)
def test_a_mistake_is_one_line(run: Run, tmp_path: Path, arguments: list[str], told: str) -> None:
    write_run(tmp_path / "run", MANY[:5])
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert told in err
    assert err.count("\n") == 1


def test_a_gate_that_asks_at_a_step_which_the_run_lacks_is_refused(run: Run, calibrated: Path) -> None:
    gate = json.loads((calibrated / "gate.json").read_text())
    gate["rule"]["step"], gate["horizon"] = 9, 30
    (calibrated / "gate.json").write_text(json.dumps(gate))
    code, _, err = run("replay", calibrated)
    assert code == 2
    assert "decides at K = 9, which these groups do not have" in err


def test_a_gate_is_replayed_with_the_reward_tolerance_that_it_was_fitted_with(run: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "run", MANY)
    assert run("calibrate", "run", "--at-step", "2", "--reward-tolerance", "1.5", "--target-precision", "0.5")[0] == 3
    assert run("calibrate", "run", "--at-step", "2", "--reward-tolerance", "0.5")[0] == 0
    assert json.loads((tmp_path / "run" / "gate.json").read_text())["reward_tolerance"] == 0.5
    _, out, _ = run("replay", "run")
    assert "fitted on these very groups" in out
    _, out, _ = run("replay", "run", "--reward-tolerance", "1.5")
    assert "zero-variance 1.000" in out


def test_the_groups_that_a_gate_was_fitted_on_are_known_again_from_a_table_and_at_one_step(
    run: Run, tmp_path: Path
) -> None:
    write_run(tmp_path / "run", MANY)
    assert run("calibrate", "run", "--at-step", "2")[0] == 0
    table = Path("run", "signals.parquet")
    assert run("calibrate", "--signals", table, "--at-step", "2")[0] == 0
    for options in (("run", "--gate", "gate.json"), ("--signals", table, "--gate", "gate.json"), ("run",)):
        assert "fitted on these very groups" in run("replay", *options)[1]
    write_run(tmp_path / "other", MANY[1:])
    assert "fitted on these very groups" not in run("replay", "other", "--gate", "gate.json")[1]


def test_a_table_without_outcomes_is_replayed_with_the_gates_reward_tolerance(run: Run) -> None:
    rows = [("g,step,reward_variance,prefix_edit_distance_mean,termination_fraction".replace("g,", "group_id,"))]
    # Rewards 0.1 apart, in the groups that look alike: variances of 0.0025.
    rows += [f"a{i},2,0.0025,0.0,0" for i in range(12)] + [f"b{i},2,0.25,0.9,0" for i in range(12)]
    Path("table.csv").write_text("\n".join(rows) + "\n")
    code, out, _ = run("calibrate", "--signals", "table.csv", "--reward-tolerance", "0.2")
    assert code == 0
    assert "note: outcomes are approximate: the table has no column `outcome`" in out
    _, out, _ = run("replay", "--signals", "table.csv", "--gate", "gate.json")
    assert policies(out)["gate"][:3] == ["12", "12", "0"]
    _, out, _ = run("replay", "--signals", "table.csv", "--gate", "gate.json", "--reward-tolerance", "0.01")
    assert policies(out)["gate"][:3] == ["12", "0", "12"]


def test_the_gated_arm_is_compared_as_it_was_rolled_out(run: Run, calibrated: Path) -> None:
    code, out, err = run("replay", calibrated, "--gated", calibrated)
    assert (code, out) == (2, "")
    assert "was rolled out without a gate; give the run of sr collect --gate" in err
    code, _, err = run("replay", calibrated, "--gated", calibrated, "--gate", calibrated / "gate.json")
    assert code == 2
    assert "drop --signals and --gate" in err
