"""Samples made by hand, for tests that need groups but no rollouts."""

from typing import Any

import numpy as np
import polars as pl

from calibrate.convention import Convention
from calibrate.fit import Search
from calibrate.sample import Cost, Sample

SIGNAL = "prefix_edit_distance_mean"


def make_sample(
    scores: list[list[float]],
    outcomes: list[str],
    eligible: list[list[bool]] | None = None,
    after: list[list[int]] | None = None,
    total: list[int] | None = None,
    tasks: list[str] | None = None,
    signals: dict[str, list[list[float]]] | None = None,
) -> Sample:
    """A sample at K = 1 ... S; without costs, each group costs 10 and saves 6 when cut."""
    shape = np.array(scores).shape
    return Sample(
        group_size=4,
        horizon=30,
        steps=np.arange(1, shape[1] + 1),
        group_ids=pl.Series([f"g{g:03}" for g in range(shape[0])]),
        tasks=pl.Series([f"g{g:03}" for g in range(shape[0])] if tasks is None else tasks),
        task_types=None,
        outcomes=np.array(outcomes),
        reward_variance=np.where(np.array(outcomes) == "mixed", 0.1875, 0.0),
        signals={SIGNAL: np.array(scores)} | {name: np.array(values) for name, values in (signals or {}).items()},
        eligible=np.ones(shape, bool) if eligible is None else np.array(eligible),
        eligible_exactly=True,
        cost=Cost(
            "tokens",
            np.full(shape, 6) if after is None else np.array(after),
            np.full(shape[0], 10) if total is None else np.array(total),
        ),
    )


def search_of(sample: Sample, target: float, convention: Convention = Convention.ELIGIBLE, **more: Any) -> Search:
    columns = tuple(range(len(sample.steps)))
    return Search(target, convention, columns, **({"signals": (SIGNAL,)} | more))
