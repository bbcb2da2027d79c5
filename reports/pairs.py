"""Matched arms: what a gated run did against the ungated run of the same seed, iteration by iteration.

The intervals are of a bootstrap that keeps pairs together and draws blocks of neighbouring iterations, since those
share a policy and are not independent. They tell how far these runs would differ if their iterations had fallen
otherwise; how far other seeds would, is seen only by comparing the rows of the seeds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from calibrate.intervals import CONFIDENCE, UNKNOWN, Interval
from reports.training_log import Log

if TYPE_CHECKING:
    import polars as pl

RESAMPLES = 2_000
_SEED = 20261

Floats = NDArray[np.float64]
Estimate = Callable[[Floats, Floats], float]  # of the gated and the ungated values


@dataclass(frozen=True)
class Pair:
    """Two runs of one seed."""

    gated: Log
    ungated: Log


@dataclass(frozen=True)
class Difference:
    """One measure of an arm against the ungated one, for a seed, or over all (`seed` None); `n` counts pairs of
    iterations, or of held-out games.
    """

    arm: str
    seed: int | None
    measure: str
    n: int
    value: Interval


@dataclass(frozen=True)
class _Measure:
    """A paired measure: the column it reads, and what it makes of the sums of both runs."""

    name: str
    column: str
    of: Estimate


def _saved(gated: Floats, ungated: Floats) -> float:
    return float(1 - gated.sum() / ungated.sum()) if ungated.sum() else float("nan")


def _ratio(gated: Floats, ungated: Floats) -> float:
    return float(gated.mean() / ungated.mean()) if ungated.mean() else float("nan")


def _change(gated: Floats, ungated: Floats) -> float:
    return float(gated.mean() - ungated.mean())


MEASURES = (
    _Measure("wall-clock saved", "seconds_training", _saved),
    _Measure("tokens saved", "tokens_sampled", _saved),
    _Measure("gradient norm, ratio of means", "gradient_norm", _ratio),
    _Measure("zero-advantage share, change", "zero_advantage_share", _change),
    _Measure("training reward, change", "reward_mean", _change),
)
SUCCESS = "held-out success, change"


def pairs(logs: Sequence[Log]) -> list[Pair]:
    """Every gated run with the ungated one of its seed; none where a seed has no ungated run."""
    ungated = {log.seed: log for log in logs if log.ungated}
    return [Pair(log, ungated[log.seed]) for log in logs if not log.ungated and log.seed in ungated]


def differences(found: Sequence[Pair]) -> list[Difference]:
    """Every measure of every pair, and of each arm over its seeds; measures that the logs lack are left out."""
    rows = []
    for arm in dict.fromkeys(pair.gated.arm for pair in found):
        here = [pair for pair in found if pair.gated.arm == arm]
        for measure in MEASURES:
            values = [both for pair in here if (both := _values(pair, measure.column)) is not None]
            seeds = [pair.gated.seed for pair in here if _values(pair, measure.column) is not None]
            rows += _rows(arm, measure.name, measure.of, seeds, values, blocks=True)
        games = [(pair.gated.seed, won) for pair in here if (won := _games(pair)) is not None]
        rows += _rows(arm, SUCCESS, _change, [seed for seed, _ in games], [won for _, won in games], blocks=False)
    return rows


def _rows(
    arm: str, name: str, of: Estimate, seeds: Sequence[int], values: Sequence[tuple[Floats, Floats]], *, blocks: bool
) -> list[Difference]:
    rows = [
        Difference(arm, seed, name, len(both[0]), _interval(of, [both], blocks=blocks))
        for seed, both in zip(seeds, values, strict=True)
    ]
    if len(values) > 1:
        rows.append(Difference(arm, None, name, sum(len(v[0]) for v in values), _interval(of, values, blocks=blocks)))
    return rows


def _values(pair: Pair, column: str) -> tuple[Floats, Floats] | None:
    """Both runs' values in the iterations that both know."""
    left, right = (log.iterations.select("iteration", column) for log in (pair.gated, pair.ungated))
    both = left.join(right, on="iteration", suffix="_ungated").drop_nulls().sort("iteration")
    if both.height < 1:
        return None
    return tuple(both[name].cast(float).to_numpy() for name in (column, f"{column}_ungated"))  # type: ignore[return-value]


def _games(pair: Pair) -> tuple[Floats, Floats] | None:
    """Whether each held-out game was won by both policies, in the last evaluation that both have."""
    left, right = pair.gated.evaluations, pair.ungated.evaluations
    if left is None or right is None:
        return None
    common = sorted(set(left["iteration"]) & set(right["iteration"]))
    if not common:
        return None
    both = _won(left, common[-1]).join(_won(right, common[-1]), on="game", suffix="_ungated").sort("game")
    if not both.height:
        return None
    return both["won"].cast(float).to_numpy(), both["won_ungated"].cast(float).to_numpy()


def _won(evaluations: "pl.DataFrame", iteration: int) -> "pl.DataFrame":
    import polars as pl

    return (
        evaluations.filter(pl.col("iteration") == iteration)
        .select(pl.col("game_ids").alias("game"), pl.col("game_won").alias("won"))
        .explode("game", "won")
        .drop_nulls()
    )


def _interval(of: Estimate, values: Sequence[tuple[Floats, Floats]], *, blocks: bool) -> Interval:
    """The estimate over all pairs, each run's resampled by itself; bounds NaN with fewer than 5 pairs in a run."""
    whole = of(*_joined(values))
    if min(len(gated) for gated, _ in values) < 5:
        return Interval(whole, UNKNOWN.low, UNKNOWN.high)
    rng = np.random.default_rng(_SEED)
    estimates = np.empty(RESAMPLES)
    for number in range(RESAMPLES):
        drawn = [_drawn(rng, len(gated), blocks) for gated, _ in values]
        estimates[number] = of(*_joined([(g[at], u[at]) for (g, u), at in zip(values, drawn, strict=True)]))
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.nanpercentile(estimates, [tail, 100 - tail])
    return Interval(whole, float(low), float(high))


def _drawn(rng: np.random.Generator, n: int, blocks: bool) -> NDArray[np.int64]:
    """n places drawn with replacement: where neighbours depend, in blocks of about the cube root of n that wrap."""
    length = max(1, round(n ** (1 / 3))) if blocks else 1
    starts = rng.integers(n, size=-(-n // length))
    return ((starts[:, None] + np.arange(length)) % n).ravel()[:n]


def _joined(values: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    return np.concatenate([gated for gated, _ in values]), np.concatenate([ungated for _, ungated in values])
