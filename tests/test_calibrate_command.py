import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from calibration_runs import KINDS, KINDS_OF_GATE, MANY, Run, a_group, cells, gate_rows, write_run

from calibrate.gate import load
from calibrate.signals import REGISTRY
from collect.store import open_run
from collect.trajectory import Decision


def test_calibrate_alone_takes_the_latest_run_and_says_so_first(calibrate: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "older", ["mixed"] * 3)
    write_run(tmp_path / "runs" / "newer", KINDS)
    code, out, err = calibrate("--target-precision", "0.9")
    assert (code, err) == (0, "")
    assert out.startswith("run: runs/newer (the latest in runs/); model tiny, prompt act\n")
    assert "groups: 24 (G = 3, horizon 6): 12 all-fail / 8 mixed / 4 all-succeed" in out
    assert "not certified" in out
    assert (tmp_path / "runs" / "newer" / "gate.json").is_file()
    assert not (tmp_path / "runs" / "older" / "signals.parquet").exists()


def test_the_gate_of_a_run_carries_its_evidence(calibrate: Run, tmp_path: Path) -> None:
    groups = write_run(tmp_path / "run", KINDS)
    assert calibrate(tmp_path / "run")[0] == 0
    gate = load(tmp_path / "run" / "gate.json")
    # Cutting at the first step saves most: all trajectories of a failing group are the same from the start.
    assert (gate.step, gate.group_size, gate.horizon, gate.model, gate.prompt) == (1, 3, 6, "tiny", "act")
    assert (gate.evidence.population, gate.evidence.cut, gate.evidence.true_positives) == (24, 12, 12)
    tokens = [[sum(s.reply_tokens for s in t.steps[k:]) for t in g.trajectories] for g in groups for k in (0, 1)]
    total, after = sum(map(sum, tokens[::2])), sum(map(sum, tokens[1:24:2]))
    assert gate.evidence.saving == pytest.approx(after / total)
    assert gate.evidence.net_saving == pytest.approx(after / total)
    decision = gate.decide([t.actions[:1] for t in groups[0].trajectories], eligible=True)
    assert (decision.score, decision.enforced) == (0.0, True)


def test_a_step_with_no_trajectory_longer_than_it_prints_n_a(calibrate: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "run", KINDS)
    _, out, _ = calibrate(tmp_path / "run")
    assert [row[0] for row in cells(out)] == ["1", "2", "3", "4", "5"]
    assert cells(out)[4][:3] == ["5", "0", "0"]
    assert set(cells(out)[4][3:]) == {"n/a"}


def test_a_run_and_its_own_signals_table_agree(calibrate: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "run", KINDS)
    options = ("--thresholds", "0.1,0.5,0.9")
    _, of_run, _ = calibrate(tmp_path / "run", *options)
    _, of_table, _ = calibrate("--signals", tmp_path / "run" / "signals.parquet", *options)

    def counts(out: str) -> list[list[str]]:
        return [row[:9] + row[-2:] for row in cells(out)]

    assert counts(of_run) == counts(of_table)
    assert len(counts(of_run)) == 15
    assert {row[9] for row in cells(of_table)} == {"n/a"}


def test_thresholds_alone_show_rows_and_fit_no_gate(calibrate: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "run", KINDS)
    code, out, _ = calibrate(tmp_path / "run", "--thresholds", "0.5", "--at-step", "2")
    assert code == 0
    assert [row[:6] for row in cells(out)] == [["2", "0.5", "12", "12", "12", "0"]]
    assert not (tmp_path / "run" / "gate.json").exists()
    assert calibrate(tmp_path / "run", "--thresholds", "0.5", "--target-precision", "0.9")[0] == 0
    assert (tmp_path / "run" / "gate.json").exists()


def test_no_gate_exits_with_3_says_what_is_short_and_leaves_an_earlier_gate_alone(
    calibrate: Run, tmp_path: Path
) -> None:
    write_run(tmp_path / "run", KINDS)
    assert calibrate(tmp_path / "run")[0] == 0
    before = (tmp_path / "run" / "gate.json").read_bytes()
    write_run(tmp_path / "few", KINDS[8:16])
    code, out, err = calibrate(tmp_path / "few", "--out", tmp_path / "run" / "gate.json")
    assert (code, err) == (3, "")
    assert "no gate: too few groups" in out
    assert cells(out)[0][:3] == ["1", "8", "4"]
    assert (tmp_path / "run" / "gate.json").read_bytes() == before
    assert (tmp_path / "few" / "signals.parquet").is_file()


def test_groups_that_a_gate_cut_are_excluded_with_a_line(calibrate: Run, tmp_path: Path) -> None:
    cut = Decision(2, 0.0, 0.1, flagged=True, enforced=True)
    with open_run(tmp_path / "run", {}, {}) as run:
        for number, kind in enumerate(KINDS):
            run.add(a_group(number, kind, cut if number < 3 else None))
    _, out, _ = calibrate(tmp_path / "run")
    assert "left out: 3 groups that a gate cut" in out
    assert "groups: 21 " in out


def test_calibrating_twice_writes_the_same_bytes(calibrate: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "run", KINDS)
    written = []
    for _ in range(2):
        assert calibrate(tmp_path / "run")[0] == 0
        written.append([(tmp_path / "run" / name).read_bytes() for name in ("gate.json", "signals.parquet")])
    assert written[0] == written[1]


def test_text_that_looks_like_markup_is_printed_as_it_is(calibrate: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "[red]run[/red]", KINDS, {"model": "[bold]tiny[/nonsense]"})
    code, out, _ = calibrate(tmp_path / "[red]run[/red]")
    assert code == 0
    assert "[red]run[/red]; model [bold]tiny[/nonsense]" in out


def test_a_pipe_gets_every_line_whole(tmp_path: Path) -> None:
    write_run(tmp_path / "run", KINDS)
    command = [sys.executable, "-c", "import sr; sr.main()", "calibrate", "run"]
    environment = os.environ | {"COLUMNS": "40", "PYTHONSAFEPATH": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert all(len(row) == 16 for row in cells(done.stdout)[:4])
    assert done.stderr == ""


def test_beside_every_gate_stands_what_it_does_out_of_sample(calibrate: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "run", MANY)
    code, out, _ = calibrate(tmp_path / "run")
    assert code == 0
    inside, outside = gate_rows(out)
    assert inside[1] == "in sample"
    assert inside[-1] == "GATE"
    assert outside[1].startswith("out of sample (5 of 5 folds)")
    assert "optimism of the choice" in out
    gate = load(tmp_path / "run" / "gate.json")
    assert gate.out_of_sample is not None
    assert gate.out_of_sample.groups == 52
    assert gate.out_of_sample.true_positives == int(outside[4])
    for row, evidence in ((inside, gate.evidence), (outside, gate.out_of_sample)):
        value, low, high = evidence.net_saving, evidence.net_saving_low, evidence.net_saving_high
        assert value is not None
        assert low is not None
        assert high is not None
        assert f"{100 * value:.1f}% [{100 * low:.1f},{100 * high:.1f}]" in row


def test_every_kind_of_gate_is_judged_in_the_same_table(calibrate: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "run", MANY)
    code, out, _ = calibrate(tmp_path / "run", "--gate", "auto", "--signal", "auto")
    assert code == 0
    assert [row[0] for row in gate_rows(out)] == [kind for kind in KINDS_OF_GATE for _ in range(2)]
    assert sum(row[-1] == "GATE" for row in gate_rows(out)) == 1


@pytest.mark.parametrize("kind", ["either", "sequential", "learned"])
def test_each_kind_of_gate_is_written_and_decides_live_as_it_did_on_the_run(
    calibrate: Run, tmp_path: Path, kind: str
) -> None:
    groups = write_run(tmp_path / "run", MANY)
    assert calibrate(tmp_path / "run", "--gate", kind)[0] == 0
    gate = load(tmp_path / "run" / "gate.json")
    assert gate.rule.kind == kind
    cut = 0
    for group in groups:
        for step in gate.steps:
            running = any(len(t.steps) > step for t in group.trajectories)
            decision = gate.decide([t.steps[:step] for t in group.trajectories], eligible=running, step=step)
            if decision.enforced:
                cut += 1
                break
    assert cut == gate.evidence.cut > 0


def test_another_signal_can_be_asked_for(calibrate: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "run", MANY)
    code, out, _ = calibrate(tmp_path / "run", "--signal", "action_set_jaccard_mean", "--at-step", "3")
    assert code == 0
    assert "gate: action_set_jaccard_mean < " in out
    gate = load(tmp_path / "run" / "gate.json")
    assert (gate.rule.signals, gate.steps) == (("action_set_jaccard_mean",), (3,))


def test_curves_are_written_into_the_run_and_shown_for_every_signal(calibrate: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "run", MANY)
    _, out, _ = calibrate(tmp_path / "run")
    for signal in REGISTRY:
        assert f"\n {signal.name} " in out
    assert pl.read_parquet(tmp_path / "run" / "calibration" / "curves.parquet")["step"].unique().to_list() == [
        1,
        2,
        3,
        4,
        5,
    ]


def test_enough_groups_get_a_certified_gate(calibrate: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "run", MANY * 4)
    code, out, _ = calibrate(tmp_path / "run", "--target-precision", "0.7", "--confidence", "0.95", "--at-step", "3")
    assert code == 0
    assert "certified gate: prefix_edit_distance_mean < " in out
    assert "precision >= 0.7 with confidence 0.95, for new tasks of the same policy, games and settings" in out
    gate = load(tmp_path / "run" / "gate.json")
    assert gate.certified
    assert gate.certificate is not None
    assert (gate.certificate.confidence, gate.certificate.precision) == (0.95, 0.7)
    assert (gate.certificate.cuts, gate.certificate.true_positives) == (96, 96)
    assert gate.out_of_sample is None


def test_too_few_groups_get_no_certificate_and_no_gate_and_are_told_how_many_would_do(
    calibrate: Run, tmp_path: Path
) -> None:
    write_run(tmp_path / "run", MANY)
    code, out, _ = calibrate(tmp_path / "run", "--confidence", "0.99")
    assert code == 3
    told = re.search(r"Short of groups: .* cut 24 of 52 tasks, 24 of them zero-variance .* from about (\d+) tasks", out)
    assert told is not None
    assert 100 < int(told[1]) < 300
    assert not (tmp_path / "run" / "gate.json").exists()


@pytest.mark.parametrize("kind", ["fail", "mixed"])
def test_a_run_of_one_class_alone_is_calibrated_without_complaint(calibrate: Run, tmp_path: Path, kind: str) -> None:
    write_run(tmp_path / "run", [kind] * 30)
    code, out, err = calibrate(tmp_path / "run", "--gate", "auto")
    assert (code, err) == (3, "")
    assert ("no informative group would be left" in out) == (kind == "fail")


def test_a_single_task_has_no_row_out_of_sample(calibrate: Run, tmp_path: Path) -> None:
    with open_run(tmp_path / "run", {}, {}) as run:
        for visit in range(30):
            run.add(replace(a_group(0, "fail" if visit < 20 else "mixed"), visit=visit))
    code, out, _ = calibrate(tmp_path / "run", "--target-precision", "0.5")
    assert code == 0
    assert "groups: 30 of 1 tasks" in out
    assert "out of sample: n/a, the groups are of fewer than two tasks" in out


# The user's mistakes


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ("group_id,step,reward_variance,termination_fraction\na,1,0,0\n", "prefix_edit_distance_mean"),
        (
            "task_id,K,reward_var,prefix_edit_distance_mean,termination_fraction\na,10,0.1,0.5,0\nb,10,0.1,nan,0\n",
            "row 2, column prefix_edit_distance_mean",
        ),
        ("PAR1", "cannot be read as a table"),
    ],
)
def test_a_bad_signals_table_is_one_line_and_nothing_is_written(
    calibrate: Run, tmp_path: Path, table: str, told: str
) -> None:
    (tmp_path / "table.csv").write_text(table)
    code, out, err = calibrate("--signals", "table.csv", "--target-precision", "0.5")
    assert (code, out) == (2, "")
    assert told in err
    assert err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]


def test_a_run_with_a_foreign_part_is_refused_and_nothing_is_written(calibrate: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "run", KINDS)
    pl.DataFrame({"x": [1]}).write_parquet(tmp_path / "run" / "groups" / "part-000002.parquet")
    pl.DataFrame({"x": [1]}).write_parquet(tmp_path / "run" / "trajectories" / "part-000002.parquet")
    code, out, err = calibrate("run")
    assert (code, out) == (2, "")
    assert "part-000002.parquet" in err
    assert not (tmp_path / "run" / "signals.parquet").exists()


def test_gate_json_is_plain_json_that_says_it_is_not_certified(calibrate: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "run", KINDS)
    calibrate(tmp_path / "run", "--out", "my.json")
    assert json.loads(Path("my.json").read_text())["certified"] is False
    assert not (tmp_path / "run" / "gate.json").exists()


def test_with_a_confidence_no_uncertified_gate_is_marked_as_the_one(calibrate: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "run", MANY)
    code, out, _ = calibrate(tmp_path / "run", "--confidence", "0.99")
    assert code == 3
    assert "GATE" not in out
    assert "without a certificate it would be: " in out


def test_only_the_file_of_that_name_is_read(calibrate: Run, tmp_path: Path) -> None:
    header = "group_id,step,reward_variance,termination_fraction,prefix_edit_distance_mean\n"
    (tmp_path / "x1.csv").write_text(header)
    (tmp_path / "x[1].csv").write_text(header + "a,1,0.1,0.0,0.5\nb,1,0.0,0.0,0.5\n")
    _, out, _ = calibrate("--signals", "x[1].csv")
    assert "groups: 2 " in out


def test_the_or_rule_needs_terminations(calibrate: Run, tmp_path: Path) -> None:
    rows = "a,1,0.1,true,0.5\nb,1,0.0,true,0.5\n"
    (tmp_path / "t.csv").write_text("group_id,step,reward_variance,eligible,prefix_edit_distance_mean\n" + rows)
    code, _, err = calibrate("--signals", "t.csv", "--gate", "either")
    assert code == 2
    assert "--gate either: reads termination_fraction, which t.csv lacks" in err


def test_a_runs_own_signals_are_a_table_whatever_its_reward_tolerance(calibrate: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "run", MANY)
    calibrate("run", "--reward-tolerance", "1.5")  # so all groups are zero-variance
    code, out, err = calibrate("--signals", Path("run", "signals.parquet"))
    assert (code, err) == (3, "")
    assert "zero-variance 1.000" in out


def test_nothing_is_guaranteed_from_groups_that_a_gate_let_go_on(calibrate: Run, tmp_path: Path) -> None:
    cut = Decision(2, 0.0, 0.1, flagged=True, enforced=True)
    with open_run(tmp_path / "run", {}, {}) as run:
        for number, kind in enumerate(MANY):
            run.add(a_group(number, kind, cut if number == 3 else None))
    code, out, err = calibrate("run", "--confidence", "0.9")
    assert (code, out) == (2, "")
    assert "guarantees nothing, as a gate cut 1 of its groups" in err
    assert not (tmp_path / "run" / "signals.parquet").exists()
    assert calibrate("run")[0] == 0
    code, out, err = calibrate("--signals", Path("run", "signals.parquet"), "--confidence", "0.9")
    assert (code, out) == (2, "")
    assert "run/signals.parquet guarantees nothing, as a gate cut 1 of its groups" in err
    assert "note: a gate cut 1 of its groups" in calibrate("--signals", Path("run", "signals.parquet"))[1]


def test_a_run_of_a_policy_in_training_says_so_and_guarantees_nothing(calibrate: Run, tmp_path: Path) -> None:
    with open_run(tmp_path / "run", {}, {}) as run:
        for number, kind in enumerate(MANY):
            run.add(replace(a_group(number, kind), policy_version=number % 3))
    code, out, _ = calibrate("run")
    assert code == 0
    assert "policy: 3 versions of one in training" in out
    code, _, err = calibrate("run", "--confidence", "0.9")
    assert code == 2
    assert "3 versions of a policy in training" in err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--gate", "learned"], "no gate of the kind learned; of single thresholds on prefix_edit_distance_mean: "),
        (["--gate", "auto"], "no gate of any kind; of single thresholds on prefix_edit_distance_mean: "),
        ([], "no gate: too few groups: "),
    ],
)
def test_why_there_is_no_gate_is_told_of_the_kind_that_was_asked_for(
    calibrate: Run, tmp_path: Path, options: list[str], told: str
) -> None:
    write_run(tmp_path / "run", KINDS[8:16])
    code, out, _ = calibrate("run", *options)
    assert code == 3
    assert told in out


def test_under_the_papers_convention_a_group_that_is_over_saves_nothing(calibrate: Run) -> None:
    rows = ["group_id,step,outcome,reward_variance,prefix_edit_distance_mean,termination_fraction"]
    rows += [f"a{i},10,all_fail,0,0.0,1" for i in range(10)] + [f"b{i},10,all_fail,0,0.0,0.5" for i in range(10)]
    rows += [f"c{i},10,mixed,0.25,0.9,0" for i in range(20)]
    Path("table.csv").write_text("\n".join(rows) + "\n")
    assert calibrate("--signals", "table.csv", "--convention", "paper")[0] == 0
    gate = load(Path("gate.json"))
    assert (gate.evidence.taken, gate.evidence.cut) == (20, 10)
    # Ten of forty groups are cut at 10 of 30 steps, and no informative one.
    assert gate.evidence.net_saving == pytest.approx(10 / 40 * 20 / 30)


def test_what_a_run_json_says_of_its_sampling_in_words_is_not_known_to_the_gate(calibrate: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "run", KINDS, {"temperature": "warm", "top_p": None})
    assert calibrate("run")[0] == 0
    gate = load(tmp_path / "run" / "gate.json")
    assert (gate.temperature, gate.top_p) == (None, None)
