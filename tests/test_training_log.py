"""Training runs and released tables in one shape, or one line that says what is wrong."""

from pathlib import Path

import polars as pl
import pytest
from conftest import SHARED
from training_runs import write_training

from collect.errors import InputError
from reports.training_log import in_order, is_released, is_training, read_released, read_training

GATED = SHARED / "paper" / "results" / "per_iteration_gated_seeds7_42.csv"
released = pytest.mark.skipif(
    not GATED.is_file(), reason="the paper's tables are not beside this repository (../shared)"
)


@released
def test_a_released_table_is_read_as_it_is_one_run_a_seed() -> None:
    seven, forty_two = read_released(GATED)
    raw = pl.read_csv(GATED).filter(pl.col("seed") == 42)
    assert (seven.name, forty_two.name) == ("gated, seed 7", "gated, seed 42")
    assert forty_two.iterations["seconds"].to_list() == raw["iter_secs"].to_list()
    assert forty_two.iterations["groups_zero_variance"][0] == 3  # 5 with the 2 that were cut
    assert not forty_two.ungated


def test_a_run_says_its_arm_and_seed(tmp_path: Path) -> None:
    write_training(tmp_path / "run", "shadow", 13, [{"seconds": 3.0}, {"seconds": 4.0}])
    log = read_training(tmp_path / "run")
    assert is_training(tmp_path / "run")
    assert log.name == "shadow, seed 13"
    assert log.iterations["seconds"].to_list() == [3.0, 4.0]
    assert log.evaluations is not None
    assert log.evaluations["iteration"].to_list() == [0, 2]


@released
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda frame: frame.drop("grad_norm"), "the column grad_norm is missing"),
        (
            lambda frame: frame.with_columns(iter_secs=pl.lit("soon")),
            "row 1, column seconds: is missing or not a number",
        ),
    ],
)
def test_a_faulty_table_is_refused_in_one_line(tmp_path: Path, change: object, told: str) -> None:
    assert callable(change)
    change(pl.read_csv(GATED)).write_csv(tmp_path / "table.csv")
    assert is_released(tmp_path / "table.csv")
    with pytest.raises(InputError, match=told) as refused:
        read_released(tmp_path / "table.csv")
    assert "\n" not in str(refused.value)


def test_what_is_no_table_of_iterations_is_not_taken_for_one(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_bytes(b"\xff\x00\n,,,\n")
    (tmp_path / "empty.csv").write_bytes(b"")
    assert not is_released(tmp_path / "notes.txt")
    assert not is_released(tmp_path / "empty.csv")


def test_a_run_of_no_iteration_and_a_damaged_one_are_refused(tmp_path: Path) -> None:
    write_training(tmp_path / "none", "on", 0, [])
    with pytest.raises(InputError, match="no iteration is done yet"):
        read_training(tmp_path / "none")
    (tmp_path / "none" / "iterations.parquet").write_bytes(b"PAR1 and nothing more")
    with pytest.raises(InputError, match=r"iterations\.parquet"):
        read_training(tmp_path / "none")


def test_one_arm_and_seed_twice_is_refused(tmp_path: Path) -> None:
    write_training(tmp_path / "run", "on", 1, [{}])
    log = read_training(tmp_path / "run")
    with pytest.raises(InputError, match="two runs of on, seed 1 were given"):
        in_order([log, log])
