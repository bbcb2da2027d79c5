"""Matched arms: the released figures, and pairs made by hand."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from conftest import SHARED
from training_runs import write_training

from reports.pairs import SUCCESS, Difference, differences, pairs
from reports.training_log import Log, in_order, read_released, read_training

RELEASED = sorted((SHARED / "paper" / "results").glob("per_iteration_*_seeds7_42.csv"))
released = pytest.mark.skipif(len(RELEASED) < 2, reason="the paper's tables are not beside this repository (../shared)")


def by_measure(logs: list[Log]) -> dict[tuple[str, int | None], Difference]:
    return {(one.measure, one.seed): one for one in differences(pairs(in_order(logs)))}


@pytest.fixture
def logs(tmp_path: Path) -> list[Log]:
    """Two seeds of an ungated and a gated arm; the gated one takes 8 of 10 seconds in every iteration."""
    rng = np.random.default_rng(1)
    for seed in (3, 5):
        norms = rng.uniform(0.1, 0.3, 12)
        write_training(tmp_path / f"off-{seed}", "off", seed, [{"gradient_norm": float(norm)} for norm in norms])
        gated = [{"gradient_norm": 1.5 * float(norm), "seconds": 8.0, "tokens_sampled": 700} for norm in norms]
        write_training(tmp_path / f"on-{seed}", "on", seed, gated)
    return [read_training(folder) for folder in sorted(tmp_path.iterdir())]


@released
def test_the_released_runs_give_the_published_savings() -> None:
    logs = [log for path in RELEASED for log in read_released(path)]
    found = by_measure(logs)
    saved = {seed: 100 * found["wall-clock saved", seed].value.value for seed in (7, 42)}
    ratio = {seed: found["gradient norm, ratio of means", seed].value.value for seed in (7, 42)}
    cut = {log.seed: log.iterations["groups_cut"].sum() for log in logs if log.arm == "gated"}
    assert {seed: round(value, 2) for seed, value in saved.items()} == {7: 10.65, 42: 14.16}
    assert {seed: round(value, 2) for seed, value in ratio.items()} == {7: 1.23, 42: 1.20}
    assert cut == {7: 94, 42: 124}


@released
def test_the_interval_of_a_released_saving_is_about_that_of_the_central_limit() -> None:
    logs = [log for path in RELEASED for log in read_released(path)]
    for seed in (7, 42):
        gated, ungated = (
            next(log.iterations["seconds"].to_numpy() for log in logs if (log.arm, log.seed) == (arm, seed))
            for arm in ("gated", "baseline")
        )
        ratio = gated.sum() / ungated.sum()
        error = np.std(gated - ratio * ungated, ddof=1) / np.sqrt(len(gated)) / ungated.mean()
        value = by_measure(logs)["wall-clock saved", seed].value
        assert value.low < value.value < value.high
        assert 0.7 < (value.high - value.low) / (2 * 1.96 * error) < 1.3


def test_a_saving_that_is_the_same_in_every_pair_has_no_width(logs: list[Log]) -> None:
    found = by_measure(logs)
    for seed, pairs_of_iterations in ((3, 12), (5, 12), (None, 24)):
        one = found["wall-clock saved", seed]
        assert one.n == pairs_of_iterations
        assert [one.value.low, one.value.value, one.value.high] == pytest.approx([0.2, 0.2, 0.2])
        ratio = found["gradient norm, ratio of means", seed].value
        assert [ratio.low, ratio.value, ratio.high] == pytest.approx([1.5, 1.5, 1.5])


def test_evaluations_are_no_part_of_the_wall_clock(tmp_path: Path) -> None:
    write_training(tmp_path / "off", "off", 1, [{"seconds": 10.0}] * 6)
    write_training(tmp_path / "on", "on", 1, [{"seconds": 108.0, "seconds_evaluation": 100.0}] * 6)
    found = by_measure([read_training(tmp_path / name) for name in ("off", "on")])
    assert found["wall-clock saved", 1].value.value == pytest.approx(0.2)


def test_held_out_success_is_compared_game_by_game(logs: list[Log]) -> None:
    won = {log.name: np.array(log.evaluations["game_won"][-1].to_list()) for log in logs if log.evaluations is not None}
    one = by_measure(logs)[SUCCESS, 3]
    assert one.n == 20
    assert one.value.value == pytest.approx(won["on, seed 3"].mean() - won["off, seed 3"].mean())


def test_the_order_of_rows_and_of_runs_changes_nothing(logs: list[Log]) -> None:
    turned = [Log(log.arm, log.seed, log.iterations.reverse(), log.evaluations) for log in reversed(logs)]
    assert by_measure(turned) == by_measure(logs)


def test_a_gated_run_without_its_ungated_one_is_in_no_pair(logs: list[Log]) -> None:
    assert pairs([log for log in logs if log.name != "off, seed 3"])[0].gated.seed == 5
    assert pairs([log for log in logs if log.arm == "on"]) == []


def test_few_pairs_have_no_interval(logs: list[Log]) -> None:
    short = [Log(log.arm, log.seed, log.iterations.filter(pl.col("iteration") <= 4)) for log in logs]
    value = by_measure(short)["wall-clock saved", 3].value
    assert value.value == pytest.approx(0.2)
    assert np.isnan(value.low)
