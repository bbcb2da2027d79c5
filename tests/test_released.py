"""`sr calibrate` on the tables that the paper's authors released."""

import csv
from pathlib import Path

import pytest
from calibration_runs import RELEASED, RESULTS, Run, cells, gate_rows, released, without_interval

from calibrate.gate import load

PUBLISHED = ["0.05", "0.08", "0.10", "0.12", "0.14", "0.18"]


@released
def test_the_papers_convention_reproduces_the_published_table_to_the_last_digit(calibrate: Run) -> None:
    code, out, _ = calibrate(
        "--signals", RELEASED, "--at-step", "10", "--thresholds", ",".join(PUBLISHED), "--convention", "paper"
    )
    assert code == 0
    # K, threshold, flagged, cut, TP, FP, precision, recall, tokens saved, net saving, budget safe %, budget raw %
    found = [[row[2], *row[4:6], *map(without_interval, row[6:8]), *row[10:]] for row in cells(out)]
    assert found == [
        ["14", "11", "3", "0.786", "0.28", "7.3", "9.3"],
        ["19", "15", "4", "0.789", "0.38", "10.0", "12.7"],
        ["20", "16", "4", "0.800", "0.41", "10.7", "13.3"],
        ["21", "17", "4", "0.810", "0.44", "11.3", "14.0"],
        ["24", "18", "6", "0.750", "0.46", "12.0", "16.0"],
        ["25", "19", "6", "0.760", "0.49", "12.7", "16.7"],
    ]


@released
def test_eligible_groups_give_what_a_live_gate_could_have_cut(calibrate: Run) -> None:
    code, out, _ = calibrate("--signals", RELEASED, "--at-step", "10", "--thresholds", ",".join(PUBLISHED))
    assert code == 0
    found = [[*row[3:6], without_interval(row[6])] for row in cells(out)]
    assert found == [
        ["12", "9", "3", "0.750"],
        ["15", "11", "4", "0.733"],
        ["16", "12", "4", "0.750"],
        ["17", "13", "4", "0.765"],
        ["20", "14", "6", "0.700"],
        ["21", "15", "6", "0.714"],
    ]


@released
def test_the_released_threshold_sweep_comes_out_row_by_row(calibrate: Run) -> None:
    with (RESULTS / "threshold_sweep_K10.csv").open() as file:
        expected = [row for row in csv.DictReader(file) if row["rule"] == "R1"]
    levels = ",".join(row["d_low"] for row in expected)
    code, out, _ = calibrate("--signals", RELEASED, "--at-step", "10", "--thresholds", levels, "--convention", "paper")
    assert code == 0
    found = [[*row[4:6], *map(without_interval, row[6:8]), row[10]] for row in cells(out)]
    assert found == [
        [
            row["TP"],
            row["FP"],
            f"{float(row['prec']):.3f}",
            f"{float(row['rec']):.2f}",
            f"{100 * float(row['savings']):.1f}",
        ]
        for row in expected
    ]
    assert len(found) == 39


@released
def test_auroc_and_rank_correlation_are_the_published_ones(calibrate: Run) -> None:
    _, out, _ = calibrate("--signals", RELEASED, "--convention", "paper")
    assert [(row[0], without_interval(row[3]), row[4]) for row in cells(out)] == [
        ("10", "0.757", "0.374"),
        ("20", "0.753", "0.418"),
    ]
    _, out, _ = calibrate("--signals", RELEASED)
    assert [(*row[:3], without_interval(row[3])) for row in cells(out)] == [
        ("10", "94", "33", "0.738"),
        ("20", "88", "27", "0.651"),
    ]


@released
def test_at_step_20_most_of_what_is_flagged_is_already_over(calibrate: Run) -> None:
    options = ("--signals", RELEASED, "--at-step", "20", "--thresholds", "0.24")
    _, out, _ = calibrate(*options, "--convention", "paper")
    assert cells(out)[0][4:6] == ["18", "2"]
    _, out, _ = calibrate(*options)
    assert cells(out)[0][2:6] == ["20", "8", "6", "2"]


@released
def test_no_threshold_on_the_released_data_reaches_the_papers_floor_among_eligible_groups(calibrate: Run) -> None:
    code, out, _ = calibrate("--signals", RELEASED, "--at-step", "10", "--target-precision", "0.77")
    assert code == 3
    assert "no gate: precision too low" in out
    assert "0.765 (13 of 17, K = 10)" in out
    code, out, _ = calibrate(
        "--signals", RELEASED, "--at-step", "10", "--convention", "paper", "--target-precision", "0.82"
    )
    assert code == 3
    assert "0.810 (17 of 21, K = 10)" in out


@released
def test_the_papers_upper_threshold_on_terminations_flags_groups_that_are_over(calibrate: Run) -> None:
    options = ("--signals", RELEASED, "--at-step", "10", "--signal", "termination_fraction", "--thresholds", "0.89")
    _, out, _ = calibrate(*options, "--convention", "paper")
    assert cells(out)[0][2:6] == ["6", "0", "6", "0"]
    _, out, _ = calibrate(*options)
    assert cells(out)[0][2:6] == ["6", "0", "0", "0"]


@released
def test_refitted_in_folds_the_papers_gate_misses_the_papers_floor(calibrate: Run) -> None:
    _, out, _ = calibrate(
        "--signals", RELEASED, "--at-step", "10", "--convention", "paper", "--target-precision", "0.8"
    )
    inside, outside = gate_rows(out)
    assert float(without_interval(inside[6])) >= 0.8 > float(without_interval(outside[6]))
    assert "warning: out of sample the precision is under the target of 0.8" in out


@released
def test_a_table_says_what_it_cannot_know(calibrate: Run) -> None:
    code, out, _ = calibrate("--signals", RELEASED, "--target-precision", "0.75")
    assert code == 0
    assert "25 all-fail / 61 mixed / 14 all-succeed" in out
    assert "eligibility is approximate" in out
    assert "tokens saved n/a" in out
    assert "not certified" in out
    gate = load(Path("gate.json"))
    assert (gate.step, gate.group_size, gate.evidence.saving_unit) == (10, None, "budget")
    assert (gate.evidence.cut, gate.evidence.true_positives) == (17, 13)
    # 17 cuts of 100 groups save 20 of 30 steps and drop 4 of 61 informative groups; break even at 1 - 2/3 * 61/100.
    assert gate.evidence.net_saving == pytest.approx(1 - (1 - 0.17 * 2 / 3) / (57 / 61))
    assert gate.evidence.break_even_precision == pytest.approx(1 - 2 / 3 * 0.61)
    assert round(gate.evidence.advantage_l2_kept, 4) == 0.9667
