import csv
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import precision_recall_curve, roc_auc_score, roc_curve
from synthetic import make_group

from calibrate.convention import Convention
from calibrate.curve_table import CURVES, POINTS, cells, write_curves
from calibrate.rollouts import read_rollouts
from calibrate.sample import Sample
from calibrate.signal_table import read_table
from calibrate.signals import BY_NAME, REGISTRY
from collect.store import open_run

RESULTS = Path(__file__).parent.parent.parent / "shared" / "paper" / "results"
released = pytest.mark.skipif(not RESULTS.is_dir(), reason="the paper's released tables are not beside the repository")


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    folder, rng = tmp_path_factory.mktemp("curves") / "run", random.Random(0)
    with open_run(folder, {}, {}) as run:
        for number in range(60):
            won = [[False] * 4, [True] * 4, None][number % 3]
            run.add(make_group(rng, number=number, won=won))
    return read_rollouts(folder, 1e-8)


@pytest.fixture(scope="module")
def written(sample: Sample, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("curves") / "calibration"
    columns = range(len(sample.steps))
    write_curves(folder, sample, Convention.ELIGIBLE, cells(sample, Convention.ELIGIBLE, columns))
    return folder


@released
def test_the_published_correlations_come_out_to_the_ninth_digit() -> None:
    with (RESULTS / "correlation_K10_K20.csv").open() as file:
        published = {(int(row["K"]), row["metric"]): row for row in csv.DictReader(file)}
    table = read_table(RESULTS / "group_signals_K10_K20.csv", max_steps=None, at_step=None, reward_tolerance=None)
    found = [cell for cell in cells(table, Convention.PAPER, [0, 1]) if cell.task_type == "all"]
    assert {(cell.step, cell.signal) for cell in found} == set(published)
    for cell in found:
        row = published[cell.step, cell.signal]
        assert cell.areas is not None
        assert cell.correlation is not None
        # They rank by the plain value; here an area over a half always speaks for the signal.
        area = cell.areas.roc.value if BY_NAME[cell.signal].alike == "low" else 1 - cell.areas.roc.value
        assert area == pytest.approx(float(row["auroc_nonzero_var"]), abs=1e-9)
        assert cell.correlation.rho == pytest.approx(float(row["spearman_rho"]), abs=1e-9)
        assert cell.correlation.p == pytest.approx(float(row["p_value"]), abs=1e-9)
        assert cell.groups == int(row["n"])


@released
def test_the_late_signal_is_largely_groups_that_are_over() -> None:
    table = read_table(RESULTS / "group_signals_K10_K20.csv", max_steps=None, at_step=None, reward_tolerance=None)
    found = {(c.step, c.signal): c for c in cells(table, Convention.ELIGIBLE, [0, 1]) if c.task_type == "all"}
    areas = [found[step, "prefix_edit_distance_mean"].areas for step in (10, 20)]
    assert [round(a.roc.value, 3) for a in areas if a is not None] == [0.738, 0.651]


def test_the_tables_are_as_declared_and_hold_every_signal_step_and_task_type(sample: Sample, written: Path) -> None:
    for table in (CURVES, POINTS):
        assert pq.read_schema(written / f"{table.name}.parquet").equals(table.arrow, check_metadata=True)
    rows = pl.read_parquet(written / "curves.parquet")
    assert sample.task_types is not None
    types = ["all", *sample.task_types.unique().sort()]
    assert rows.height == len(REGISTRY) * len(sample.steps) * len(types)
    assert rows.select("signal", "step", "task_type").is_unique().all()
    by_type = rows.filter(pl.col("task_type") != "all").group_by("signal", "step").agg(pl.col("groups").sum())
    whole = rows.filter(pl.col("task_type") == "all").select("signal", "step", "groups")
    assert by_type.sort("signal", "step").equals(whole.sort("signal", "step"), null_equal=True)


def test_a_task_types_area_is_that_of_its_groups_alone(sample: Sample, written: Path) -> None:
    rows = pl.read_parquet(written / "curves.parquet").filter(pl.col("signal") == "repetition", pl.col("step") == 2)
    for task_type, groups, area in rows.select("task_type", "groups", "auroc").rows():
        assert sample.task_types is not None
        of_type = (sample.task_types == task_type).to_numpy() if task_type != "all" else np.ones(sample.size, bool)
        here = sample.eligible[:, 1] & of_type
        assert groups == here.sum()
        if area is not None:  # high values speak for zero variance
            expected = roc_auc_score(~sample.zero_variance[here], -sample.signals["repetition"][here, 1])
            assert area == pytest.approx(expected)


@pytest.mark.parametrize("signal", ["prefix_edit_distance_mean", "refused_share"])
@pytest.mark.parametrize("task_type", ["all", "odd"])
def test_the_points_are_the_curves_that_scikit_learn_draws(
    sample: Sample, tmp_path: Path, signal: str, task_type: str
) -> None:
    odd = np.arange(sample.size) % 2 == 1
    dealt = replace(sample, task_types=pl.Series(np.where(odd, "odd", "even")))
    write_curves(tmp_path / "curves", dealt, Convention.ELIGIBLE, cells(dealt, Convention.ELIGIBLE, [2]))
    at = (pl.col("signal") == signal, pl.col("step") == 3, pl.col("task_type") == task_type)
    points = pl.read_parquet(tmp_path / "curves" / "points.parquet").filter(*at)
    here = sample.eligible[:, 2] & (odd | (task_type == "all"))
    positive, scores = sample.zero_variance[here], -BY_NAME[signal].sign * sample.signals[signal][here, 2]
    false, true, _ = roc_curve(positive, scores, drop_intermediate=False)
    assert points["recall"].to_list() == pytest.approx(true[1:].tolist())
    assert points["false_positive_rate"].to_list() == pytest.approx(false[1:].tolist())
    precision, _, _ = precision_recall_curve(positive, scores)
    assert points["precision"].to_list() == pytest.approx(precision[:-1][::-1].tolist())
    for taken, threshold in points.select("taken", "threshold").rows():
        low = sample.signals[signal][here, 2] < threshold
        assert taken == (low if BY_NAME[signal].alike == "low" else ~low).sum()


def test_a_step_at_which_no_group_is_eligible_has_empty_rows(tmp_path: Path) -> None:
    rng = random.Random(1)
    with open_run(tmp_path / "run", {}, {}) as run:
        for number in range(4):
            run.add(make_group(rng, number=number, actions=[["look"]] * 4, won=[number < 2] * 4))
    found = cells(read_rollouts(tmp_path / "run", 1e-8), Convention.PAPER, [2])
    assert {(cell.groups, cell.areas, cell.correlation) for cell in found} == {(0, None, None)}


def test_a_task_type_that_is_named_all_is_told_from_all_of_them(sample: Sample) -> None:
    assert sample.task_types is not None
    named = replace(sample, task_types=pl.Series(["all", "other"] * (sample.size // 2)))
    groups = {cell.task_type: cell.groups for cell in cells(named, Convention.ELIGIBLE, [1])}
    assert list(groups) == ["all", "all (task type)", "other"]
    assert groups["all"] == groups["all (task type)"] + groups["other"]


def test_a_curve_of_many_points_is_thinned_and_keeps_its_ends(tmp_path: Path) -> None:
    values = np.linspace(0.1, 0.9, 1000)
    rows = pl.DataFrame(
        {
            "group_id": [f"g{i:04}" for i in range(1000)],
            "step": 3,
            "reward_variance": [0.0, 0.25] * 500,
            "prefix_edit_distance_mean": values,
            "termination_fraction": 0.0,
        }
    )
    rows.write_parquet(tmp_path / "table.parquet")
    table = read_table(tmp_path / "table.parquet", max_steps=None, at_step=None, reward_tolerance=None)
    write_curves(tmp_path / "c", table, Convention.ELIGIBLE, cells(table, Convention.ELIGIBLE, [0]))
    points = pl.read_parquet(tmp_path / "c" / "points.parquet").filter(pl.col("signal") == "prefix_edit_distance_mean")
    assert points.height == 200
    assert (points["taken"][0], points["taken"][-1]) == (1, 1000)
