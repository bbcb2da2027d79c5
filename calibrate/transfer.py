"""How a gate transfers to smaller groups: the same rule on sub-sampled trajectories, with labels recomputed."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from calibrate.convention import Convention
from calibrate.fit import apply
from calibrate.rollouts import read_rollouts
from calibrate.rules import Rule
from calibrate.sample import Cost, Sample
from calibrate.tally import Tally


def transfer(run: Path, rule: Rule, group_size: int, reward_tolerance: float) -> list[tuple[int, Tally]]:
    """What the rule does at group size G/2, G/4, … down to 2, on the groups of a run dealt into smaller ones.

    The threshold stays; scores, outcomes and costs are those of the smaller groups. Each group gives as many as its
    trajectories are enough for, none of them in two; the intervals count what comes from one task as such.
    """
    rows, size = [], group_size
    while (size := size // 2) >= 2:
        parts = [_part(run, rule, reward_tolerance, size, part) for part in range(group_size // size)]
        rows.append((size, apply(_pooled(parts), rule, Convention.ELIGIBLE)))
    return rows


def _part(run: Path, rule: Rule, reward_tolerance: float, size: int, part: int) -> Sample:
    """One smaller group of each group, with only the signals that the rule reads in memory."""
    sample = read_rollouts(run, reward_tolerance, keep=size, part=part)
    return replace(sample, signals={name: np.array(sample.signals[name]) for name in rule.signals})


def _pooled(parts: Sequence[Sample]) -> Sample:
    """The groups of several samples that differ in nothing else."""
    costs, steps = [part.cost for part in parts], [part.step_cost for part in parts if part.step_cost is not None]
    return replace(
        parts[0],
        group_ids=pl.concat([part.group_ids for part in parts]),
        tasks=pl.concat([part.tasks for part in parts]),
        task_types=None,
        outcomes=np.concatenate([part.outcomes for part in parts]),
        reward_variance=np.concatenate([part.reward_variance for part in parts]),
        signals={name: np.concatenate([part.signals[name] for part in parts]) for name in parts[0].signals},
        eligible=np.concatenate([part.eligible for part in parts]),
        cost=_summed_up(costs),
        step_cost=_summed_up(steps) if steps else None,
    )


def _summed_up(costs: Sequence[Cost]) -> Cost:
    after, total = (np.concatenate(arrays) for arrays in zip(*((c.after, c.total) for c in costs), strict=True))
    return Cost(costs[0].unit, after, total)
