"""The tables of training runs: their iterations and evaluations, each arm in a row, and matched arms in pairs."""

from collections.abc import Sequence

import polars as pl

from calibrate.intervals import proportion
from collect.schema import EVALUATIONS, ITERATIONS
from reports.pairs import Difference
from reports.tables import Row, Sheet, bounds, sheet
from reports.training_log import Log

PHASES = ("rollout", "gate", "update", "swap", "evaluation", "other")
_LEFT_OUT = ("game_ids", "game_won")


def iterations(logs: Sequence[Log]) -> Sheet:
    """Every iteration of every run, with running sums of time and tokens."""
    frames = []
    for log in logs:
        frame = log.iterations.select(*ITERATIONS.arrow.names, "seconds_training")
        known = frame["tokens_sampled"].dtype.is_numeric()
        frames.append(
            frame.select(
                pl.lit(log.arm).alias("arm"),
                pl.lit(log.seed).alias("seed"),
                pl.all(),
                pl.col("seconds_training").cum_sum().alias("seconds_so_far"),
                (pl.col("tokens_sampled").cum_sum() if known else pl.lit(None)).alias("tokens_so_far"),
            )
        )
    note = (
        "One row an iteration of a run. What a released table lacks is empty. seconds_training: the iteration without "
        "its evaluation. so_far: summed up to this iteration."
    )
    return Sheet("iterations", "Iterations", note, pl.concat(frames, how="vertical_relaxed"))


def evaluations(logs: Sequence[Log]) -> Sheet | None:
    """Every evaluation on held-out games; None where there was none."""
    names = [name for name in EVALUATIONS.arrow.names if name not in _LEFT_OUT]
    frames = [
        log.evaluations.select(pl.lit(log.arm).alias("arm"), pl.lit(log.seed).alias("seed"), *names)
        for log in logs
        if log.evaluations is not None and log.evaluations.height
    ]
    if not frames:
        return None
    note = "One row an evaluation on held-out games, greedy and ungated [95 %, Clopper-Pearson, one draw a game]."
    return Sheet("evaluations", "Held-out success", note, pl.concat(frames, how="vertical_relaxed"))


def arms(logs: Sequence[Log]) -> Sheet:
    """One row a run: what it rolled out, cut and spent."""
    note = (
        "One row a run. cut_share: of all groups rolled out; success: of the last evaluation [95 %, Clopper-Pearson]; "
        "gate_precision: of the audited cuts [95 %, Clopper-Pearson]; gradient_norm: mean over iterations; hours: "
        "without evaluations."
    )
    return sheet("arms", "Arms", note, [_arm(log) for log in logs])


def _arm(log: Log) -> Row:
    rows = log.iterations
    groups, cut = int(rows["groups"].sum()), int(rows["groups_cut"].sum())
    last = log.evaluations[-1] if log.evaluations is not None and log.evaluations.height else None
    audited = rows.filter(pl.col("gate_precision").is_not_null())[-1:]
    return {
        "arm": log.arm,
        "seed": log.seed,
        "iterations": rows.height,
        "groups": groups,
        "cut": cut,
        **bounds("cut_share", proportion(cut, groups)),
        "zero_variance_uncut": int(rows["groups_zero_variance"].sum()),
        "hours": float(rows["seconds_training"].sum()) / 3600,
        "tokens_sampled": _sum(rows, "tokens_sampled"),
        "gradient_norm": _mean(rows, "gradient_norm"),
        "zero_advantage_share": _mean(rows, "zero_advantage_share"),
        "held_out_games": None if last is None else last["games"][0],
        **{name: None if last is None else last[name][0] for name in ("success", "success_low", "success_high")},
        "audited": audited["audit_runs"][0] if audited.height else None,
        **{
            name: audited[name][0] if audited.height else None
            for name in ("gate_precision", "gate_precision_low", "gate_precision_high")
        },
    }


def paired(found: Sequence[Difference]) -> Sheet:
    """Matched arms: one row a measure, arm and seed, and over all seeds."""
    rows = [
        {
            "measure": one.measure,
            "arm": one.arm,
            "seed": "all seeds" if one.seed is None else f"seed {one.seed}",
            "pairs": one.n,
            **bounds("value", one.value),
        }
        for one in found
    ]
    note = (
        "One row a measure and seed: an arm against the ungated run of the same seed. pairs: iterations that both did, "
        "or held-out games that both played. Saved: 1 - sum of the arm / sum of the ungated run. Intervals: 95 %, "
        "bootstrap of pairs, iterations in blocks of neighbours; they do not tell how other seeds would fall out. "
        "Rewards and shares of released tables count cut groups with their truncated rewards."
    )
    return sheet("paired_differences", "Matched arms", note, rows)


def phases(logs: Sequence[Log]) -> Sheet:
    """Where the time of an iteration goes."""
    rows = []
    for log in logs:
        count = log.iterations.height
        for phase in PHASES:
            if (seconds := _sum(log.iterations, f"seconds_{phase}")) is not None:
                # The gate decides while the rollout goes on; its seconds are part of those.
                gate = _sum(log.iterations, "seconds_gate") or 0.0
                own = seconds - gate if phase == "rollout" else seconds
                rows.append({"arm": log.arm, "seed": log.seed, "phase": phase, "seconds": own / count, "n": count})
    note = "One row a run and phase: mean seconds an iteration, over n iterations."
    return sheet("phases", "Phases of an iteration", note, rows)


def _sum(rows: pl.DataFrame, name: str) -> float | None:
    return float(rows[name].sum()) if rows[name].dtype.is_numeric() and rows[name].count() else None


def _mean(rows: pl.DataFrame, name: str) -> float | None:
    value = rows[name].cast(pl.Float64).mean()
    return None if value is None else float(value)  # type: ignore[arg-type]
