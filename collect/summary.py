"""What a run of rollouts amounts to: success, and how its groups ended."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from collect.store import scan

if TYPE_CHECKING:
    import polars as pl

TOLERANCE = 1e-8  # rewards of a group that differ by no more count as equal


@dataclass(frozen=True, slots=True)
class Summary:
    """Counts over the groups of one task type, or of all; `rates` holds each group's success rate, 0 to 1."""

    task_type: str
    all_fail: int
    mixed: int
    all_succeed: int
    trajectories: int
    rates: tuple[float, ...]

    @property
    def groups(self) -> int:
        """How many groups there are."""
        return len(self.rates)

    def success(self) -> tuple[float, float, float]:
        """Mean success rate with a 95 % interval, all 0 to 1.

        The trajectories of a group play one game and are no independent draws. The interval is Clopper and Pearson's
        with each group counted as a single draw, which is the widest that their dependence can make it.
        """
        from scipy.stats import beta

        won, n = sum(self.rates), self.groups
        low = float(beta.ppf(0.025, won, n - won + 1)) if won > 0 else 0.0
        high = float(beta.ppf(0.975, won + 1, n - won)) if won < n else 1.0
        return won / n, low, high

    def zero_variance(self) -> tuple[float, float, float]:
        """Share of groups whose rewards are all equal, with its exact (Clopper-Pearson) 95 % interval, all 0 to 1."""
        from scipy.stats import binomtest

        equal = self.groups - self.mixed
        interval = binomtest(equal, self.groups).proportion_ci(0.95, method="exact")
        return equal / self.groups, float(interval.low), float(interval.high)


def summarise(run: Path) -> list[Summary]:
    """One summary a task type, in alphabetical order, then one over all groups ("all"); none without a group.

    Groups that a gate cut are left out: how they would have ended is not known.
    """
    import polars as pl

    won = scan(run, "trajectories").group_by("group_id").agg(pl.col("won").mean().alias("rate"))
    reward = pl.col("rewards").list
    outcome = (
        pl.when(reward.max() - reward.min() > TOLERANCE)
        .then(pl.lit("mixed"))
        .when(pl.col("rate") > 0)
        .then(pl.lit("all_succeed"))
        .otherwise(pl.lit("all_fail"))
    )
    frame = (
        scan(run, "groups")
        .filter(~pl.col("gate_enforced").fill_null(value=False))
        .join(won, on="group_id")
        .select("task_type", "group_size", "rate", outcome.alias("outcome"))
        .sort("task_type")
        .collect()
    )
    if frame.is_empty():
        return []
    parts = [(str(task_type), part) for (task_type,), part in frame.group_by("task_type", maintain_order=True)]
    return [_summary(name, part) for name, part in [*parts, ("all", frame)]]


def count_cut(run: Path) -> int:
    """How many groups of the run a gate cut."""
    import polars as pl

    return int(scan(run, "groups").select(pl.col("gate_enforced").fill_null(value=False).sum()).collect().item())


def _summary(task_type: str, frame: "pl.DataFrame") -> Summary:
    counts = dict(frame["outcome"].value_counts().iter_rows())
    return Summary(
        task_type,
        counts.get("all_fail", 0),
        counts.get("mixed", 0),
        counts.get("all_succeed", 0),
        int(frame["group_size"].sum()),
        tuple(frame["rate"].to_list()),
    )
