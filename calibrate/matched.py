"""Two arms of one experiment, the same groups ungated and with a gate: which cuts were right, and what they saved.

Groups are matched by id. Until the gate's first cut both arms run alike but for the last bits of the engine, so what a
cut group would have become is read off the ungated arm.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from calibrate.intervals import CONFIDENCE, Interval, share
from calibrate.outcomes import REWARD_TOLERANCE, outcomes
from collect.errors import InputError
from collect.store import read_run, scan

RESAMPLES = 2000
_SEED = 20261  # of the resamples: the same runs give the same intervals
# What the configurations of the two arms may differ in.
_OF_THE_GATE = frozenset({"gate", "gate_mode"})
_COLUMNS = (
    "group_id",
    "game_id",
    "rewards",
    "started",
    "seconds",
    "gate_step",
    "gate_score",
    "gate_threshold",
    "gate_enforced",
)

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Cut:
    """A group that the gate cut: its decision, what became of the group in the ungated arm, and what the cut saved."""

    group_id: str
    step: int
    score: float
    threshold: float
    outcome: str
    steps_saved: int
    tokens_saved: int | None

    @property
    def right(self) -> bool:
        """Whether the group is zero-variance in the ungated arm."""
        return self.outcome != "mixed"


@dataclass(frozen=True)
class Total:
    """One cost of both arms over the matched groups, and the share of it that the gate saved; by task."""

    name: str
    ungated: float
    gated: float
    saved: Interval


@dataclass(frozen=True)
class Matched:
    """The comparison of two arms on the groups that both have; `alone` counts those of one arm only."""

    groups: int
    tasks: int
    alone: int
    cuts: tuple[Cut, ...]
    precision: Interval
    totals: tuple[Total, ...]


def compare(ungated: Path, gated: Path, reward_tolerance: float = REWARD_TOLERANCE) -> Matched:
    """Match the groups of two runs that differ in nothing but the gate.

    Raises:
        InputError: one is no run, they differ in more than the gate, the second's gate cut nothing because there was
            none or it only looked, or no group is in both.
    """
    _check_arms(ungated, gated)
    arms = [_groups(run) for run in (ungated, gated)]
    both = arms[0].join(arms[1], on="group_id", suffix="_gated").sort("group_id")
    if not both.height:
        raise InputError(f"{gated}: has no group in common with {ungated}; give runs of the same games and seed")
    odd = both.filter(pl.col("rewards").list.len() != pl.col("rewards_gated").list.len())
    if odd.height:
        raise InputError(f"{gated}: group {odd['group_id'][0]!r} differs in size from {ungated}; give matched runs")
    both = both.with_columns(outcome=pl.Series(_outcomes(both["rewards"], reward_tolerance)))
    cut = both.filter(pl.col("gate_enforced_gated").fill_null(value=False))
    right = (cut["outcome"] != "mixed").to_numpy().astype(np.float64)
    task = both["game_id"].rank("dense").to_numpy().astype(np.int64) - 1
    return Matched(
        groups=both.height,
        tasks=int(task.max()) + 1,
        alone=arms[0].height + arms[1].height - 2 * both.height,
        cuts=tuple(_cut(row) for row in cut.iter_rows(named=True)),
        precision=share(right, np.ones(len(right)), cut["game_id"].rank("dense").to_numpy().astype(np.int64)),
        totals=tuple(_total(name, both, task) for name in ("tokens", "steps", "seconds") if _known(name, both)),
    )


def _check_arms(ungated: Path, gated: Path) -> None:
    """InputError where the runs are not two arms of one experiment."""
    one, other = (read_run(run).configuration for run in (ungated, gated))
    if one.get("gate") is not None:
        raise InputError(f"{ungated}: was rolled out with a gate; give the ungated run first")
    if other.get("gate") is None:
        raise InputError(f"--gated {gated}: was rolled out without a gate; give the run of sr collect --gate")
    if other.get("gate_mode") == "shadow":
        raise InputError(
            f"--gated {gated}: its gate was in shadow mode and cut nothing; sr replay {gated} --gate says what one "
            "would cut"
        )
    for name in sorted((one.keys() | other.keys()) - _OF_THE_GATE):
        if one.get(name) != other.get(name):
            raise InputError(
                f"--gated {gated}: its {name} is {other.get(name)}, that of {ungated} {one.get(name)}; the arms must "
                "differ in the gate alone"
            )


def _groups(run: Path) -> pl.DataFrame:
    """The groups of a run with their steps, tokens (null where not known) and seconds."""
    costs = (
        scan(run, "trajectories")
        .group_by("group_id")
        .agg(
            steps=pl.col("length").sum(),
            tokens=pl.when(pl.col("reply_tokens").is_null().any())
            .then(None)
            .otherwise(pl.col("reply_tokens").list.sum().sum()),
        )
    )
    groups = scan(run, "groups").select(_COLUMNS).join(costs, on="group_id").collect()
    return groups.drop("started", "seconds").with_columns(seconds=pl.Series(elapsed(groups), dtype=pl.Float64))


def elapsed(groups: pl.DataFrame) -> Floats:
    """Seconds of the clock that each group took, (N,): from the end of the group that ended before it, or from when
    work on some unfinished group began if that is later, to its own end. They add up to the time in which any group was
    being rolled out, whatever ran side by side. NaN where the run does not say.
    """
    begun = groups["started"].dt.epoch("us").to_numpy() / 1e6
    ended = begun + groups["seconds"].to_numpy()
    order = np.argsort(ended, kind="stable")
    # The earliest beginning among the groups that end at or after each.
    first = np.minimum.accumulate(begun[order][::-1])[::-1]
    previous = np.append(-np.inf, ended[order][:-1])
    took = np.empty(len(order))
    took[order] = ended[order] - np.maximum(previous, first)
    return took


def _outcomes(rewards: pl.Series, tolerance: float) -> NDArray[np.str_]:
    return outcomes(np.array(rewards.to_list(), np.float64), tolerance)


def _cut(row: dict[str, Any]) -> Cut:
    tokens = row["tokens"], row["tokens_gated"]
    return Cut(
        group_id=row["group_id"],
        step=row["gate_step_gated"],
        score=row["gate_score_gated"],
        threshold=row["gate_threshold_gated"],
        outcome=row["outcome"],
        steps_saved=row["steps"] - row["steps_gated"],
        tokens_saved=None if None in tokens else tokens[0] - tokens[1],
    )


def _known(name: str, both: pl.DataFrame) -> bool:
    columns = both[name], both[f"{name}_gated"]
    return not any(column.is_null().any() or column.cast(pl.Float64).is_nan().any() for column in columns)


def _total(name: str, both: pl.DataFrame, task: NDArray[np.int64]) -> Total:
    one, other = (np.bincount(task, both[column].to_numpy()).astype(np.float64) for column in (name, f"{name}_gated"))
    return Total(name, float(one.sum()), float(other.sum()), _bootstrapped(one, other))


def _bootstrapped(one: Floats, other: Floats) -> Interval:
    """1 - Σ other / Σ one with the percentile interval of a bootstrap that draws tasks in pairs; arrays (tasks,)."""
    from scipy.stats import bootstrap

    def saved(one: Floats, other: Floats, axis: int = -1) -> Floats:
        return np.asarray(1 - other.sum(axis=axis) / one.sum(axis=axis))

    value = float(saved(one, other))
    if len(one) < 2:
        return Interval(value, np.nan, np.nan)
    found = bootstrap(
        (one, other),
        saved,
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        paired=True,
        rng=np.random.default_rng(_SEED),
    ).confidence_interval
    return Interval(value, float(found.low), float(found.high))
