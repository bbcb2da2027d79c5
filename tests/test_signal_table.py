from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from calibrate.rollouts import read_rollouts, write_signals
from calibrate.sample import Sample
from calibrate.signal_table import read_table
from calibrate.signals import REGISTRY
from collect.errors import InputError
from collect.import_format import Format
from collect.import_long import read_mapping
from collect.importer import import_log

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


@pytest.mark.parametrize(
    "told", [{"eligible": [True] * 4 + [False, True]}, {"termination_fraction": [0.0] * 4 + [1, 0.5]}]
)
def test_a_group_that_is_over_does_not_run_again(
    write: Callable[[pl.DataFrame], Path], told: dict[str, list[float]]
) -> None:
    path = write(ROWS.with_columns(**{name: pl.Series(values) for name, values in told.items()}))
    assert "group 'c' is over at K = 1 and runs at K = 2" in refusal(path)
    assert read(path, at_step=2).eligible.tolist() == [[True]] * 3


def test_a_reward_tolerance_over_decided_outcomes_is_refused(write: Callable[[pl.DataFrame], Path]) -> None:
    assert "drop --reward-tolerance" in refusal(write(ROWS), reward_tolerance=0.1)


def test_the_tables_own_horizon_and_group_size_count(write: Callable[[pl.DataFrame], Path]) -> None:
    path = write(ROWS.with_columns(horizon=12, group_size=8))
    sample = read(path)
    assert (sample.horizon, sample.group_size) == (12, 8)
    assert "its horizon is 12, not 30" in refusal(path, max_steps=30)


def test_a_step_past_the_horizon_is_told_by_whose_horizon_it_is(write: Callable[[pl.DataFrame], Path]) -> None:
    rows = ROWS.with_columns(step=pl.col("step") * 5)
    assert "at a horizon of 10; give --max-steps over 10" in refusal(write(rows), max_steps=10)
    assert read(write(rows), max_steps=11).horizon == 11
    path = write(rows.with_columns(horizon=10))
    told = refusal(path)
    assert "K = 10 leaves nothing to cut at the table's own horizon of 10; correct its column horizon" in told
    assert "leave out its rows from K = 10 on" in told
    assert "--max-steps" not in told
    assert read(write(rows.filter(pl.col("step") < 10).with_columns(horizon=10))).steps.tolist() == [5]


@pytest.mark.parametrize("outcome", ["all_fail", "all_succeed"])
def test_rewards_that_vary_are_neither_all_failures_nor_all_successes(
    write: Callable[[pl.DataFrame], Path], outcome: str
) -> None:
    rows = ROWS.with_columns(outcome=pl.Series([outcome] * 2 + ["uniform"] * 4))
    # One success among eight rewards of 0 and 1.
    told = refusal(write(rows.with_columns(reward_variance=pl.Series([7 / 64] * 2 + [0.0] * 4))))
    assert f"row 1, column outcome: '{outcome}' contradicts the row's reward variance, which is over 0.01" in told
    # Rewards of 0 and 0.2, which a tolerance of 0.2 takes as equal.
    within = float(np.var([0.0, 0.2]))
    sample = read(write(rows.with_columns(reward_variance=pl.Series([within] * 2 + [0.0] * 4))))
    assert sample.outcomes.tolist() == [outcome, "uniform", "uniform"]


@pytest.mark.parametrize("outcome", ["all_fail", "all_succeed"])
def test_the_tables_own_reward_tolerance_says_how_far_rewards_of_one_outcome_may_differ(
    write: Callable[[pl.DataFrame], Path], outcome: str
) -> None:
    # Two rewards 0.5 apart have a population variance of 0.0625.
    rows = ROWS.with_columns(
        outcome=pl.Series([outcome] * 2 + ["mixed"] * 4),
        reward_variance=pl.Series([0.0625] * 2 + [0.25] * 4),
    )
    sample = read(write(rows.with_columns(reward_tolerance=0.5)))
    assert sample.outcomes.tolist() == [outcome, "mixed", "mixed"]
    assert sample.reward_tolerance == 0.5
    assert "within its reward tolerance" in refusal(write(rows.with_columns(reward_tolerance=0.49)))
    without = read(write(rows.with_columns(reward_tolerance=0.5).drop("outcome")))
    assert without.outcomes.tolist() == ["uniform", "mixed", "mixed"]
    assert "reward_tolerance differs between groups" in refusal(
        write(rows.with_columns(reward_tolerance=pl.Series([0.5] * 4 + [0.6] * 2)))
    )


def test_uniform_rewards_may_have_any_variance_as_their_scale_is_not_known(
    write: Callable[[pl.DataFrame], Path],
) -> None:
    rows = ROWS.with_columns(outcome=pl.lit("uniform"), reward_variance=pl.lit(25.0))
    assert read(write(rows)).outcomes.tolist() == ["uniform"] * 3


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
        (
            "prefix_edit_distance_mean",
            [0.5, None, 0, 0, 0, 0],
            "column prefix_edit_distance_mean: the value is missing",
        ),
        ("reward_variance", [0.25, 0.25, 0, None, 0, None], "row 4, column reward_variance: the value is missing (and"),
        ("task_type", ["look", None, "look", "look", "look", "look"], "row 2, column task_type: the value is missing;"),
        ("prefix_edit_distance_mean", ["0.5", "0", "high", "0", "0", "0"], "row 3, column prefix_edit_distance_mean"),
        ("prefix_edit_distance_mean", [0.5, 0, 0, 0, 1.5, 2.0], "is outside 0 to 1 (and 1 more rows)"),
        ("reward_variance", [0.25, 0.25, -1.0, 0, 0, 0], "row 3, column reward_variance"),
        ("reward_variance", [float("inf"), 0.25, 0, 0, 0, 0], "row 1, column reward_variance"),
        ("reward_variance", [0.0, 0.0, 0, 0, 0, 0], "contradicts the row's reward variance of 0"),
        ("reward_variance", [0.25, 0.1, 0, 0, 0, 0], "'a' has more than one reward_variance"),
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


@pytest.mark.parametrize(
    ("column", "named"),
    [
        ("group_id", "group_id (or task_id)"),
        ("step", "step (or K)"),
        ("reward_variance", "reward_variance (or reward_var)"),
        ("prefix_edit_distance_mean", "prefix_edit_distance_mean"),
        ("termination_fraction", "termination_fraction"),
    ],
)
def test_a_column_that_is_needed_is_named_where_it_is_missing_or_empty(
    write: Callable[[pl.DataFrame], Path], column: str, named: str
) -> None:
    assert f"the column {named} is missing; a signals table needs it" in refusal(write(ROWS.drop(column)))
    empty = write(ROWS.with_columns(pl.lit(None).alias(column)))
    assert f"the column {named} is empty; a signals table needs it" in refusal(empty)


@pytest.mark.parametrize(
    "column",
    ["outcome", "game_id", "task_type", "group_size", "horizon", "eligible", "mean_logprob", "obs_unique_ratio"],
)
@pytest.mark.parametrize("dtype", [pl.Null, pl.String, pl.Float64, pl.Categorical])
def test_a_column_that_is_empty_throughout_counts_as_absent(
    write: Callable[[pl.DataFrame], Path], column: str, dtype: pl.DataType
) -> None:
    absent = read(write(ROWS.drop(column, strict=False)))
    empty = read(write(ROWS.with_columns(pl.Series(column, [None] * ROWS.height, dtype))))
    assert empty.fingerprint() == absent.fingerprint()
    assert set(empty.signals) == {D, "termination_fraction"}
    assert (empty.task_types, empty.eligible_exactly, empty.notes) == (None, False, absent.notes)


def test_quoted_cells_of_a_csv_may_be_empty_too(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    ROWS.with_columns(task_type=pl.lit("")).write_csv(path, quote_style="always")
    assert read(path).task_types is None
    ROWS.with_columns(group_id=pl.Series(["a", "a", "", "b", "c", "c"])).write_csv(path, quote_style="always")
    assert "row 3, column group_id: the value is missing" in refusal(path)


def test_a_released_name_counts_where_the_column_of_our_name_is_empty(write: Callable[[pl.DataFrame], Path]) -> None:
    rows = ROWS.rename({"outcome": "label", "step": "K"}).with_columns(outcome=None, step=None)
    sample = read(write(rows))
    assert sample.outcomes.tolist() == ["mixed", "all_fail", "all_succeed"]
    assert sample.steps.tolist() == [1, 2]
    assert "the column step (or K) is empty" in refusal(write(rows.drop("step").with_columns(K=None)))


def test_the_signals_of_an_imported_run_are_a_table_though_it_lacks_what_some_read(tmp_path: Path) -> None:
    log = Path(__file__).with_name("logs") / "long.csv"
    mapping = read_mapping("group=prompt_id,trajectory=sample,step=t,action=command,reward=score")
    import_log(log, Format.LONG, mapping, tmp_path / "run", lambda done, total: None)
    run = read_rollouts(tmp_path / "run", 1e-8)
    write_signals(tmp_path / "signals.parquet", run)
    table = read(tmp_path / "signals.parquet")
    assert table.task_types is None
    assert set(table.signals) == {signal.name for signal in REGISTRY if not signal.reads}
    for name, values in table.signals.items():
        np.testing.assert_array_equal(values, run.signals[name])
    assert (table.outcomes.tolist(), table.eligible.tolist()) == (run.outcomes.tolist(), run.eligible.tolist())


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"eligible": True}, "no column is a signal; a signals table needs at least one, such as prefix_edit_distance"),
        ({"eligible": True, "repetition": None}, "no column is a signal"),
        ({}, "no column is a signal"),
        ({"repetition": 0.5}, "the column termination_fraction is missing"),
    ],
)
def test_a_table_needs_a_signal_whichever_it_is(
    write: Callable[[pl.DataFrame], Path], columns: dict[str, Any], told: str
) -> None:
    rows = ROWS.drop(D, "termination_fraction")
    path = write(rows.with_columns(pl.lit(value).alias(name) for name, value in columns.items()))
    assert told in refusal(path, signals=())
    other = rows.with_columns(eligible=pl.lit(True), repetition=pl.lit(0.5))
    assert set(read(write(other), signals=()).signals) == {"repetition"}


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


@pytest.mark.parametrize(
    ("separator", "encoding"),
    [(";", "utf-8"), ("\t", "utf-8"), (",", "utf-16"), (",", "utf-16-le"), (";", "utf-16-be")],
)
def test_a_csv_of_another_separator_or_encoding_is_told_so(tmp_path: Path, separator: str, encoding: str) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(ROWS.write_csv(separator=separator).encode(encoding))
    assert "is not names of columns separated by commas, in UTF-8; save the table so" in refusal(path)


def test_a_foreign_parquet_file_is_refused_by_its_missing_column(tmp_path: Path) -> None:
    path = tmp_path / "other.parquet"
    pl.DataFrame({"x": [1]}).write_parquet(path)
    assert "the column group_id (or task_id) is missing" in refusal(path)


def test_a_missing_file_and_a_folder_are_refused_as_what_they_are(tmp_path: Path) -> None:
    assert "none.csv: no such file; give" in refusal(tmp_path / "none.csv")
    assert f"{tmp_path}: is a folder; give" in refusal(tmp_path)
    assert "/dev/null: is not a file; give" in refusal(Path("/dev/null"))
    assert "cannot be read as a table (" in refusal(tmp_path / ("x" * 256))


@pytest.mark.parametrize("name", ["x[1].{}", "x?.{}", "*.{}", "x1.{}", "~/x.{}", "K=7/x.{}"])
def test_the_file_that_is_named_is_read_and_no_other(
    write: Callable[[pl.DataFrame], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    other = write(ROWS.with_columns(group_id=pl.lit("other ") + pl.col("group_id")))
    kind = other.suffix[1:]
    other.rename(tmp_path / f"x1.{kind}")
    monkeypatch.chdir(tmp_path)
    path = Path(name.format(kind))
    if path.parent.name or path.name != f"x1.{kind}":
        refusal(path)
    path.parent.mkdir(exist_ok=True)
    write(ROWS.rename({"step": "K"})).rename(path)
    sample = read(path)
    assert sample.group_ids.to_list() == ["a", "b", "c"]
    assert sample.steps.tolist() == [1, 2]


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
