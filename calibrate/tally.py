"""What cutting does to a sample: counts, precision, recall, savings and losses, with intervals by task."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from calibrate.convention import Convention
from calibrate.intervals import Interval, net_saving_interval, saving_interval, share
from calibrate.outcomes import advantage_l2_kept, break_even_precision, net_saving
from calibrate.sample import Bools, Sample

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Cuts:
    """What a policy of cutting does to each of N groups; arrays (N,).

    `candidates` are those that it could have taken, `flagged` those that it chose, `live` those of them that were still
    running, `taken` those that precision counts, as 0 and 1 (or, for a policy of chance, its chance). `saved` is what
    of the sample's cost is not spent on each, `steps_saved` the same in steps where known, `budget` the share of the
    horizon. `certain` says that the share of informative groups it drops is known beforehand: for a policy of chance,
    and for one that knows the outcomes.
    """

    candidates: Bools
    flagged: Bools
    live: Bools
    taken: Floats
    saved: NDArray[Any]
    steps_saved: NDArray[Any] | None
    budget: Floats
    certain: bool = False

    @classmethod
    def at(cls, sample: Sample, columns: Ints, candidates: Bools, convention: Convention) -> Self:
        """Flag each group at `steps[columns]` and never where that is -1; eligible ones among them are cut."""
        flagged = columns >= 0
        everywhere, steps = np.arange(sample.size), sample.step_cost
        live = sample.eligible[everywhere, columns] & flagged
        taken = live if convention is Convention.ELIGIBLE else flagged
        return cls(
            candidates=candidates,
            flagged=flagged,
            live=live,
            taken=taken.astype(np.float64),
            saved=np.where(live, sample.cost.after[everywhere, columns], 0),
            steps_saved=None if steps is None else np.where(live, steps.after[everywhere, columns], 0),
            budget=np.where(taken, 1 - sample.steps[columns] / sample.horizon, 0.0),
        )


@dataclass(frozen=True)
class Tally:
    """What cutting does to the groups that are counted.

    `flagged` groups were chosen, `cut` ones are flagged and eligible. Precision and recall are over the `taken` groups:
    those cut, or under the paper's convention those flagged. `population` counts the groups that could have been taken.
    `all_fail` and `all_succeed` are true positives. `saving` is the share of the groups' cost, `steps_saving` the share
    of their steps (None where not known), `budget_raw` and `budget_safe` the paper's budget forms. Counts are whole
    numbers, but for a policy of chance, whose counts are expected ones. Without an informative group the net saving is
    not known (NaN).
    """

    groups: int
    tasks: int
    zero_variance: int
    population: int
    population_zero_variance: int
    flagged: int
    cut: int
    taken: float
    true_positives: float
    all_fail: float
    all_succeed: float
    precision: Interval
    recall: Interval
    recall_of_all: Interval
    saving: Interval
    steps_saving: Interval | None
    net_saving: Interval
    budget_raw: float
    budget_safe: float
    advantage_l2_kept: float

    @property
    def false_positives(self) -> float:
        """Informative groups among those taken."""
        return self.taken - self.true_positives

    @property
    def break_even_precision(self) -> float:
        """Precision under which this costs more than it saves; NaN when nothing is taken."""
        if not self.taken:
            return float("nan")
        per_cut = self.saving.value * self.groups / self.taken
        return break_even_precision(per_cut, self.zero_variance / self.groups)


def tally(sample: Sample, cuts: Cuts, rows: Bools | None = None) -> Tally:
    """Count what `cuts` do to the groups of a sample, or to those in `rows` (N,) alone."""
    here = np.arange(sample.size) if rows is None else np.flatnonzero(rows)
    zero_variance, task = sample.zero_variance[here], sample.task[here]
    taken, candidates, outcomes = cuts.taken[here], cuts.candidates[here], sample.outcomes[here]
    hits = taken * zero_variance
    informative = ~zero_variance
    cost, saved = sample.cost.total[here], cuts.saved[here]
    kept, left = cost - saved, informative * (1 - taken)
    saving = saving_interval(kept, cost, task)
    net = float(net_saving(saving.value, (taken @ informative) / (informative.sum() or np.nan)))
    known = cuts.certain or not taken.any()
    budget = cuts.budget[here]
    # A policy of chance says in advance how often it cuts each group: its precision is known as well as the share of
    # zero-variance groups among all that it may cut, and not only among so many draws.
    weight = taken / (taken.max(initial=0) or 1)
    return Tally(
        groups=len(here),
        tasks=len(np.unique(task)),
        zero_variance=int(zero_variance.sum()),
        population=int(candidates.sum()),
        population_zero_variance=int((candidates & zero_variance).sum()),
        flagged=int(cuts.flagged[here].sum()),
        cut=int(cuts.live[here].sum()),
        taken=_count(taken),
        true_positives=_count(hits),
        all_fail=_count(hits[outcomes == "all_fail"]),
        all_succeed=_count(hits[outcomes == "all_succeed"]),
        precision=share(weight * zero_variance, weight, task),
        recall=share(hits * candidates, (candidates & zero_variance).astype(np.float64), task),
        recall_of_all=share(hits, zero_variance.astype(np.float64), task),
        saving=saving,
        steps_saving=_steps_saving(sample, cuts, here),
        net_saving=net_saving_interval(net, kept, cost, left, informative, task, drops_known=known),
        budget_raw=float(budget.sum() / len(here)) if len(here) else 0.0,
        budget_safe=float(budget @ zero_variance / len(here)) if len(here) else 0.0,
        advantage_l2_kept=advantage_l2_kept(sample.reward_variance[here], 1 - taken),
    )


def _steps_saving(sample: Sample, cuts: Cuts, here: Ints) -> Interval | None:
    if sample.step_cost is None or cuts.steps_saved is None:
        return None
    cost, saved = sample.step_cost.total[here], cuts.steps_saved[here]
    return saving_interval(cost - saved, cost, sample.task[here])


def _count(weights: Floats) -> float:
    """The sum, a whole number wherever the weights are 0 and 1."""
    total = float(weights.sum())
    return int(total) if total.is_integer() else total
