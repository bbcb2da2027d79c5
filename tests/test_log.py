"""The log of a training run, and who else is told."""

import math
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from collect.errors import InputError, MissingDependency
from collect.schema import EVALUATIONS, ITERATIONS
from collect.store import open_run
from train import trackers
from train.audit import Tally
from train.evaluation import Evaluation
from train.gating import Gating
from train.iteration import Clock, Harvest, iteration_row
from train.learner import Update
from train.log import Log, evaluation_row, number, path_of
from train.trackers import check_trackers, open_trackers

SKIPPED = Update(0, "no examples", 0, None, 0.0, 0.0, None, None, None, 0, 0, 0, 0.1, 10)


def an_iteration(number: int, gating: Gating | None = None) -> dict[str, Any]:
    return iteration_row(number, Harvest([], 0, 0, 0, 0, 0), [], SKIPPED, gating or Gating("off", 0.9), Clock(), 0.0)


class Heard:
    def __init__(self) -> None:
        self.numbers: list[tuple[int, dict[str, float]]] = []
        self.closed = False

    def write(self, iteration: int, numbers: Mapping[str, float]) -> None:
        self.numbers.append((iteration, dict(numbers)))

    def close(self) -> None:
        self.closed = True


def test_an_iteration_without_a_group_and_without_an_update_is_a_row_without_nan(tmp_path: Path) -> None:
    Log(tmp_path, 0).iteration(an_iteration(1))
    (row,) = pq.read_table(tmp_path / "iterations.parquet").to_pylist()
    assert list(row) == ITERATIONS.arrow.names
    assert not [value for value in row.values() if isinstance(value, float) and not math.isfinite(value)]
    assert (row["loss"], row["success"], row["gate_precision"], row["drift_alarm"]) == (None, None, None, False)


def test_an_evaluation_in_which_every_game_failed_is_a_row_without_rates(tmp_path: Path) -> None:
    Log(tmp_path, 0).evaluation(evaluation_row(0, Evaluation({}, 3, 0, 0, 1.0)))
    (row,) = pq.read_table(tmp_path / "evaluations.parquet").to_pylist()
    assert (row["games"], row["games_failed"], row["success"], row["mean_steps"]) == (0, 3, None, None)


def test_an_evaluation_keeps_each_game_and_its_exact_interval() -> None:
    won = {f"game {n}": n < 3 for n in range(10)}
    row = evaluation_row(4, Evaluation(won, 0, 55, 100, 1.0))
    assert (row["games"], row["won"], row["success"], row["mean_steps"]) == (10, 3, 0.3, 5.5)
    # Clopper-Pearson for 3 of 10, as published tables have it.
    assert (round(row["success_low"], 4), round(row["success_high"], 4)) == (0.0667, 0.6525)
    assert dict(zip(row["game_ids"], row["game_won"], strict=True)) == won


def test_an_iteration_done_again_replaces_its_row_and_those_after_it(tmp_path: Path) -> None:
    log = Log(tmp_path, 0)
    for iteration in (1, 2, 3):
        log.iteration(an_iteration(iteration))
    log.iteration(an_iteration(2))
    assert [row["iteration"] for row in log.rows(ITERATIONS)] == [1, 2]

    resumed = Log(tmp_path, 1)
    assert [row["iteration"] for row in resumed.rows(ITERATIONS)] == [1]
    assert resumed.rows(EVALUATIONS) == []


def test_a_log_of_a_version_with_fewer_columns_is_gone_on_with(tmp_path: Path) -> None:
    Log(tmp_path, 0).iteration(an_iteration(1))
    path = path_of(tmp_path, ITERATIONS)
    pq.write_table(pq.read_table(path).drop_columns(["gate_recall", "drift_e_value"]), path)
    Log(tmp_path, 1).iteration(an_iteration(2))
    assert pq.read_table(path).schema.names == ITERATIONS.arrow.names
    assert pq.read_table(path)["gate_recall"].to_pylist() == [None, None]


def test_a_damaged_log_is_refused_by_name(tmp_path: Path) -> None:
    path = path_of(tmp_path, ITERATIONS)
    path.write_bytes(random.Random(0).randbytes(200))
    with pytest.raises(InputError, match=r"iterations\.parquet"):
        Log(tmp_path, 3)


def test_the_audit_is_in_the_row_with_its_intervals() -> None:
    row = an_iteration(5, Gating("shadow", 0.9, None, Tally(flagged=30, ran=30, flat=12, passed_flat=12)))
    assert (row["audit_flagged"], row["audit_runs"], row["audit_zero_variance"]) == (30, 30, 12)
    assert (row["gate_precision"], row["gate_recall"]) == (0.4, 0.5)
    assert row["gate_precision_low"] == pytest.approx(0.2266, abs=1e-4)
    assert row["drift_alarm"] is True


def test_trackers_are_told_every_number_that_is_known(tmp_path: Path) -> None:
    heard = Heard()
    log = Log(tmp_path, 0, [heard])
    log.iteration(an_iteration(1))
    log.close()
    ((iteration, numbers),) = heard.numbers
    assert iteration == 1
    assert numbers["iterations/groups"] == 0.0
    assert "iterations/loss" not in numbers
    assert heard.closed


def test_what_is_not_finite_is_null() -> None:
    assert [number(value) for value in (0.5, math.nan, math.inf, -math.inf)] == [0.5, None, None, None]


# TensorBoard, Weights & Biases


def test_tensorboard_gets_the_numbers_and_forgets_what_is_done_again(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed (the extra dev)")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for done, iterations in ((0, (1, 2)), (1, (2, 3))):
        log = Log(tmp_path, done, open_trackers(tmp_path, done, True, None, {}))
        for iteration in iterations:
            log.iteration(an_iteration(iteration))
        log.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("iterations/groups")] == [1, 2, 3]


def test_weights_and_biases_gets_the_numbers_even_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with open_run(tmp_path, {}, {}, command="train"):
        pass
    log = Log(tmp_path, 0, open_trackers(tmp_path, 0, False, "project", {"seed": 7}))
    log.iteration(an_iteration(1))
    log.close()
    (written,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    until = time.monotonic() + 60  # a process of its own writes it
    while b"iterations/groups" not in written.read_bytes():
        assert time.monotonic() < until, written.read_bytes()
        time.sleep(0.1)


@pytest.mark.parametrize(("asked", "package"), [((True, None), "tensorboard"), ((False, "project"), "wandb")])
def test_a_tracker_that_is_not_installed_is_answered_with_the_command(
    asked: tuple[bool, str | None], package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=rf"{package} is not installed; run: pip install {package}"):
        check_trackers(*asked)
    check_trackers(False, None)
