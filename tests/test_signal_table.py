from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from calibrate.sample import Sample
from calibrate.signal_table import read_table
from collect.errors import InputError

D = "prefix_edit_distance_mean"
ROWS = pl.DataFrame(
    {
        "group_id": ["a", "a", "b", "b", "c", "c"],
        "step": [1, 2, 1, 2, 1, 2],
        "outcome": ["mixed", "mixed", "all_fail", "all_fail", "all_succeed", "all_succeed"],
        "reward_variance": [0.25, 0.25, 0.0, 0.0, 0.0, 0.0],
        "prefix_edit_distance_mean": [0.5, 0.25, 0.0, 0.125, 0.0, 1.0],
        "termination_fraction": [0.0, 0.5, 0.0, 0.0, 0.0, 1.0],
    }
)


def read(path: Path, **options: Any) -> Sample:
    return read_table(path, **({"max_steps": None, "at_step": None, "reward_tolerance": None} | options))


@pytest.fixture(params=["csv", "parquet"])
def write(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[pl.DataFrame], Path]:
    def write(rows: pl.DataFrame) -> Path:
        path = tmp_path / f"table.{request.param}"
        if request.param == "csv":
            rows.write_csv(path)
        else:
            rows.write_parquet(path)
        return path

    return write


def refusal(path: Path, **options: Any) -> str:
    with pytest.raises(InputError) as raised:
        read(path, **options)
    told = str(raised.value)
    assert str(path) in told
    assert "\n" not in told
    return told


def test_a_table_is_read_as_it_is_whatever_the_order_of_its_rows(write: Callable[[pl.DataFrame], Path]) -> None:
    sample = read(write(ROWS.sample(fraction=1, shuffle=True, seed=3)))
    assert sample.group_ids.to_list() == ["a", "b", "c"]
    assert sample.steps.tolist() == [1, 2]
    assert sample.outcomes.tolist() == ["mixed", "all_fail", "all_succeed"]
    assert sample.signals[D].tolist() == [[0.5, 0.25], [0.0, 0.125], [0.0, 1.0]]
    assert sample.reward_variance.tolist() == [0.25, 0.0, 0.0]


def test_without_lengths_a_group_is_taken_as_eligible_until_all_have_ended_and_that_is_said(
    write: Callable[[pl.DataFrame], Path],
) -> None:
    sample = read(write(ROWS))
    assert sample.eligible.tolist() == [[True, True], [True, True], [True, False]]
    assert not sample.eligible_exactly
    assert any("approximate" in note for note in sample.notes)


def test_a_column_eligible_is_believed(write: Callable[[pl.DataFrame], Path]) -> None:
    told = [True, False, True, True, True, True]
    sample = read(write(ROWS.with_columns(eligible=pl.Series(told)).drop("termination_fraction")))
    assert sample.eligible.ravel().tolist() == told
    assert sample.eligible_exactly
    assert sample.notes == ()


def test_the_cost_is_the_step_budget_of_the_horizon(write: Callable[[pl.DataFrame], Path]) -> None:
    path = write(ROWS)
    assert read(path).cost.unit == "budget"
    assert read(path).cost.after.tolist() == [[29, 28]] * 3
    assert read(path, max_steps=5).cost.total.tolist() == [5, 5, 5]


def test_one_step_alone_can_be_read(write: Callable[[pl.DataFrame], Path]) -> None:
    sample = read(write(ROWS), at_step=2)
    assert sample.steps.tolist() == [2]
    assert sample.signals[D].tolist() == [[0.25], [0.125], [1.0]]


def test_without_outcomes_the_reward_variance_decides(write: Callable[[pl.DataFrame], Path]) -> None:
    rows = ROWS.drop("outcome").with_columns(reward_variance=pl.Series([0.02, 0.02, 1e-35, 1e-35, 0.01, 0.01]))
    path = write(rows)
    assert read(path).outcomes.tolist() == ["mixed", "uniform", "mixed"]
    # Two rewards 0.2 apart have a population variance of 0.01.
    assert read(path, reward_tolerance=0.2).outcomes.tolist() == ["mixed", "uniform", "uniform"]


def test_a_reward_tolerance_over_decided_outcomes_is_refused(write: Callable[[pl.DataFrame], Path]) -> None:
    assert "drop --reward-tolerance" in refusal(write(ROWS), reward_tolerance=0.1)


def test_the_tables_own_horizon_and_group_size_count(write: Callable[[pl.DataFrame], Path]) -> None:
    path = write(ROWS.with_columns(horizon=12, group_size=8))
    sample = read(path)
    assert (sample.horizon, sample.group_size) == (12, 8)
    assert "its horizon is 12, not 30" in refusal(path, max_steps=30)


def test_numbers_of_a_csv_are_read_to_the_last_bit(tmp_path: Path) -> None:
    values = np.random.default_rng(0).random(500)
    text = "".join(f"g{i},1,0.25,{v!r},0.0\n" for i, v in enumerate(values.tolist()))
    path = tmp_path / "table.csv"
    path.write_text("group_id,step,reward_variance,prefix_edit_distance_mean,termination_fraction\n" + text)
    sample = read(path)
    expected = {f"g{i}": v for i, v in enumerate(values.tolist())}
    assert sample.signals[D][:, 0].tolist() == [expected[name] for name in sample.group_ids]


@pytest.mark.parametrize(
    ("column", "values", "told"),
    [
        ("prefix_edit_distance_mean", [0.5, float("nan"), 0, 0, 0, 0], "row 2, column prefix_edit_distance_mean: "),
        ("prefix_edit_distance_mean", [0.5, None, 0, 0, 0, 0], "row 2, column prefix_edit_distance_mean: None is miss"),
        ("prefix_edit_distance_mean", ["0.5", "0", "high", "0", "0", "0"], "row 3, column prefix_edit_distance_mean"),
        ("prefix_edit_distance_mean", [0.5, 0, 0, 0, 1.5, 2.0], "is outside 0 to 1 (and 1 more rows)"),
        ("reward_variance", [0.25, 0.25, -1.0, 0, 0, 0], "row 3, column reward_variance"),
        ("reward_variance", [float("inf"), 0.25, 0, 0, 0, 0], "row 1, column reward_variance"),
        ("reward_variance", [0.0, 0.0, 0, 0, 0, 0], "contradicts the row's reward variance of 0"),
        ("reward_variance", [0.25, 0.25, 0, 0, 0, 0.1], "'c' has more than one reward_variance"),
        ("termination_fraction", [0, 0, 0, 0, 0, -0.5], "row 6, column termination_fraction"),
        ("step", [1, 2, 1, 2, 1, 2.5], "row 6, column step"),
        ("step", [0, 2, 1, 2, 1, 2], "row 1, column step"),
        ("step", [1, 2, 1, 2, 1, 1], "row 6, column group_id: 'c' has this step twice"),
        ("step", [1, 2, 1, 2, 1, 3], "group 'a' has no row at K = 3"),
        ("step", [1, 30, 1, 30, 1, 30], "K = 30 leaves nothing to cut at a horizon of 30"),
        ("outcome", ["mixed", "mixed", "lost", "lost", "x", "y"], "row 3, column outcome: 'lost' is none of"),
        ("outcome", ["mixed", "mixed", "all_fail", "all_succeed", "uniform", "uniform"], "more than one outcome"),
        ("group_id", ["a", "a", None, "b", "c", "c"], "row 3, column group_id"),
        ("group_size", [8, 8, 8, 8, 4, 4], "group_size differs between groups (4 in 1, 8 in 2 groups)"),
        ("eligible", ["true", "false", "true", "maybe", "true", "true"], "row 4, column eligible: 'maybe'"),
    ],
)
def test_a_bad_value_is_named_by_row_and_column(
    write: Callable[[pl.DataFrame], Path], column: str, values: list[Any], told: str
) -> None:
    path = write(ROWS.with_columns(pl.Series(column, values, strict=False)))
    assert told in refusal(path)


@pytest.mark.parametrize("column", ["group_id", "step", "reward_variance", "prefix_edit_distance_mean"])
def test_a_missing_column_is_named(write: Callable[[pl.DataFrame], Path], column: str) -> None:
    assert f"the column {column}" in refusal(write(ROWS.drop(column)))


def test_a_table_needs_one_of_termination_fraction_and_eligible(write: Callable[[pl.DataFrame], Path]) -> None:
    assert "termination_fraction" in refusal(write(ROWS.drop("termination_fraction")))


def test_a_table_without_rows_is_refused(write: Callable[[pl.DataFrame], Path]) -> None:
    assert "no rows" in refusal(write(ROWS.clear()))


def test_a_column_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    ROWS.with_columns(step=pl.Series([[1]] * 6)).write_parquet(path)
    assert "the column step holds List(Int64), not numbers" in refusal(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("table.csv", b""),
        ("table.csv", b"\x00\xff\xfe binary \xc3\x28"),
        ("table.csv", b"group_id,step\na,1,2,3\n"),
        ("table.parquet", b"group_id,step\na,1\n"),
        ("table.parquet", b"PAR1 but then nothing of the kind"),
        ("table.csv", b"PAR1"),
    ],
)
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    refusal(path)


def test_a_foreign_parquet_file_is_refused_by_its_missing_column(tmp_path: Path) -> None:
    path = tmp_path / "other.parquet"
    pl.DataFrame({"x": [1]}).write_parquet(path)
    assert "the column group_id (or task_id) is missing" in refusal(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    refusal(tmp_path / "none.csv")
    refusal(tmp_path)


def test_every_signal_that_a_table_carries_is_read_and_one_that_is_asked_for_must_be_there(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    ROWS.with_columns(repetition=pl.Series([0.0, 0.5, 0.25, 0.0, 1.0, 1.0])).write_parquet(path)
    sample = read(path)
    assert set(sample.signals) == {D, "termination_fraction", "repetition"}
    assert sample.signals["repetition"].tolist() == [[0.0, 0.5], [0.25, 0.0], [1.0, 1.0]]
    assert "the column mean_logprob is missing" in refusal(path, signals=("mean_logprob",))


def test_the_task_is_the_game_or_else_the_group_id_without_its_visit(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    names = {"a": "task#0", "b": "task#1", "c": "other"}
    rows = ROWS.with_columns(pl.col("group_id").replace_strict(names))
    rows.write_parquet(path)
    assert read(path).tasks.to_list() == ["other", "task", "task"]
    rows.with_columns(game_id=pl.Series(["x", "x", "y", "y", "x", "x"])).write_parquet(path)
    assert read(path).tasks.to_list() == ["x", "x", "y"]
