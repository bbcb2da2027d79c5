"""Choose the step K and the threshold of a gate: the best net saving at a target precision.

Nothing here is certified: the gate is chosen and measured on the same groups, which flatters it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrate.convention import Convention
from calibrate.curves import auroc, rank_correlation
from calibrate.gate import Evidence, Gate, versions
from calibrate.intervals import Interval, proportion, relative_saving
from calibrate.outcomes import (
    actual_saving,
    advantage_l2_kept,
    break_even_precision,
    budget_saving,
    net_saving,
)
from calibrate.sample import Sample
from collect.store import RunInfo

MIN_CUTS = 10

# How far above the largest observed score its threshold lies. Under half a step of the lattice j / (K · G(G-1)/2) on
# which scores lie for any group of up to 64 trajectories and K up to 64.
_ABOVE = 1e-6


@dataclass(frozen=True)
class Tally:
    """What one threshold at one step does to a sample.

    `flagged` groups score under the threshold, `cut` ones are flagged and eligible. Precision and recall are over the
    `taken` groups: those cut, or under the paper's convention those flagged. `population` counts the groups that could
    have been taken. `all_fail` and `all_succeed` are true positives. `saving` is the share of the sample's cost,
    `budget_raw` and `budget_safe` the paper's budget forms.
    """

    step: int
    threshold: float
    groups: int
    zero_variance: int
    eligible: int
    population: int
    population_zero_variance: int
    flagged: int
    cut: int
    taken: int
    true_positives: int
    all_fail: int
    all_succeed: int
    saving: Interval
    net_saving: Interval
    budget_raw: float
    budget_safe: float
    advantage_l2_kept: float

    @property
    def false_positives(self) -> int:
        """Informative groups among those taken."""
        return self.taken - self.true_positives

    @property
    def precision(self) -> Interval:
        """Share of zero-variance groups among those taken."""
        return proportion(self.true_positives, self.taken)

    @property
    def recall(self) -> Interval:
        """Share of the population's zero-variance groups that are taken."""
        return proportion(self.true_positives, self.population_zero_variance)

    @property
    def recall_of_all(self) -> Interval:
        """Share of all the sample's zero-variance groups that are taken."""
        return proportion(self.true_positives, self.zero_variance)

    @property
    def break_even_precision(self) -> float:
        """Precision under which this gate costs more than it saves; NaN when it takes nothing."""
        if not self.taken:
            return float("nan")
        per_cut = self.saving.value * self.groups / self.taken
        return break_even_precision(per_cut, self.zero_variance / self.groups)


@dataclass(frozen=True)
class StepFit:
    """One step K: how many groups are counted there, how well the signal ranks them, and its best threshold.

    `best` is None when no group is eligible. It has the best net saving of the thresholds that reach the target
    precision with enough cuts when `reaches`; else the best precision of those with enough cuts; else the best net
    saving of all.
    """

    step: int
    eligible: int
    eligible_zero_variance: int
    auroc: Interval | None
    rank_correlation: float | None
    best: Tally | None
    reaches: bool


@dataclass(frozen=True)
class Fit:
    """The best of every step, and the gate: the step that reaches the target with the best net saving, or None."""

    target_precision: float
    convention: Convention
    steps: tuple[StepFit, ...]
    chosen: Tally | None
    shortfall: str = ""


@dataclass(frozen=True, eq=False)
class Sweep:
    """Every threshold worth trying at one step, ascending: arrays (C,).

    A threshold lies halfway between two neighbouring observed scores, so that the strict comparison is not a matter of
    rounding; the last one lies just above the largest.
    """

    thresholds: NDArray[np.float64]
    taken: NDArray[np.int64]
    true_positives: NDArray[np.int64]
    net_saving: NDArray[np.float64]

    @property
    def precision(self) -> NDArray[np.float64]:
        """Share of zero-variance groups among those taken."""
        return np.asarray(self.true_positives / self.taken)


def fit(sample: Sample, target_precision: float, convention: Convention, columns: Sequence[int]) -> Fit:
    """Choose a gate among all thresholds at the steps of the given columns of the sample.

    A candidate needs a precision of at least the target, at least `MIN_CUTS` groups taken, an eligible group at its
    step, and an informative group left. The best net saving wins; ties go to the higher precision, then to fewer groups
    taken, the smaller step and the smaller threshold.
    """
    sweeps = [sweep(sample, column, convention) for column in columns]
    steps = tuple(
        _step_fit(sample, column, convention, target_precision, found)
        for column, found in zip(columns, sweeps, strict=True)
    )
    reaching = [step.best for step in steps if step.best is not None and step.reaches]
    if reaching:
        chosen = min(reaching, key=lambda t: (-t.net_saving.value, -t.precision.value, t.taken, t.step))
        return Fit(target_precision, convention, steps, chosen)
    return Fit(target_precision, convention, steps, None, _shortfall(steps, sweeps, target_precision))


def as_gate(chosen: Tally, found: Fit, sample: Sample, run: RunInfo | None) -> Gate:
    """The chosen threshold with its evidence, as gate.json holds it; `run` is what its rollouts came from, if any."""
    configuration = run.configuration if run else {}
    model, adapter, prompt = (_text(configuration.get(name)) for name in ("model", "adapter", "prompt"))
    precision = chosen.precision
    return Gate(
        signal=sample.signal,
        step=chosen.step,
        threshold=chosen.threshold,
        group_size=sample.group_size,
        horizon=sample.horizon,
        model=model,
        adapter=adapter,
        prompt=prompt,
        convention=found.convention,
        target_precision=found.target_precision,
        evidence=Evidence(
            groups=chosen.groups,
            zero_variance=chosen.zero_variance,
            eligible=chosen.eligible,
            eligible_exactly=sample.eligible_exactly,
            taken=chosen.taken,
            cut=chosen.cut,
            true_positives=chosen.true_positives,
            false_positives=chosen.false_positives,
            precision=precision.value,
            precision_low=precision.low,
            precision_high=precision.high,
            recall=_number(chosen.recall.value),
            recall_of_all=_number(chosen.recall_of_all.value),
            saving_unit=sample.cost.unit,
            saving=chosen.saving.value,
            saving_low=_number(chosen.saving.low),
            saving_high=_number(chosen.saving.high),
            net_saving=chosen.net_saving.value,
            net_saving_low=_number(chosen.net_saving.low),
            net_saving_high=_number(chosen.net_saving.high),
            break_even_precision=chosen.break_even_precision,
            advantage_l2_kept=chosen.advantage_l2_kept,
        ),
        data=sample.fingerprint(),
        versions=versions(),
    )


def sweep(sample: Sample, column: int, convention: Convention) -> Sweep:
    """All thresholds at one step; none when no group is eligible there."""
    counted = sample.counted(column, convention)
    if not sample.eligible[:, column].any():
        return Sweep(np.empty(0), np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
    scores = sample.scores[counted, column]
    order = np.argsort(scores, kind="stable")
    scores = scores[order]
    last = np.flatnonzero(np.append(np.diff(scores) > 0, True))
    taken = last + 1
    true_positives = np.cumsum(sample.zero_variance[counted][order], dtype=np.int64)[last]
    saved = np.cumsum(sample.cost.after[counted, column][order])[last]
    informative = sample.size - int(sample.zero_variance.sum())
    return Sweep(
        thresholds=_thresholds(scores[last]),
        taken=taken,
        true_positives=true_positives,
        net_saving=net_saving(saved / max(1, sample.cost.total.sum()), (taken - true_positives) / max(1, informative)),
    )


def tally(sample: Sample, column: int, threshold: float, convention: Convention) -> Tally:
    """Count what a gate does to the sample: flag the scores strictly under `threshold` at step `steps[column]`."""
    step = int(sample.steps[column])
    zero_variance = sample.zero_variance
    counted = sample.counted(column, convention)
    flagged = sample.scores[:, column] < threshold
    taken = flagged & counted
    true_positives = taken & zero_variance
    cost, informative = sample.cost.total, ~zero_variance
    saved = np.where(taken, sample.cost.after[:, column], 0)
    share = actual_saving(sample.cost.after[:, column], cost, taken)
    net = float(net_saving(share, (taken & informative).sum() / max(1, informative.sum())))
    # Without informative groups none can be dropped, and the net saving is the saving.
    kept, of = ([informative], [informative & ~taken]) if informative.any() else ([], [])
    return Tally(
        step=step,
        threshold=threshold,
        groups=sample.size,
        zero_variance=int(zero_variance.sum()),
        eligible=int(sample.eligible[:, column].sum()),
        population=int(counted.sum()),
        population_zero_variance=int((counted & zero_variance).sum()),
        flagged=int(flagged.sum()),
        cut=int((flagged & sample.eligible[:, column]).sum()),
        taken=int(taken.sum()),
        true_positives=int(true_positives.sum()),
        all_fail=int((sample.outcomes[taken] == "all_fail").sum()),
        all_succeed=int((sample.outcomes[taken] == "all_succeed").sum()),
        saving=relative_saving(share, [cost - saved], [cost]),
        net_saving=relative_saving(net, [cost - saved, *kept], [cost, *of]),
        budget_raw=budget_saving(int(taken.sum()), sample.size, step, sample.horizon),
        budget_safe=budget_saving(int(true_positives.sum()), sample.size, step, sample.horizon),
        advantage_l2_kept=advantage_l2_kept(sample.reward_variance, ~taken),
    )


def _thresholds(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """A threshold above each of the distinct ascending scores and not above the next."""
    following = np.append(scores[1:], scores[-1] + 2 * _ABOVE)
    middle = (scores + following) / 2
    # Neighbours one rounding apart have no number between them.
    return np.where(middle > scores, middle, following)


def _step_fit(sample: Sample, column: int, convention: Convention, target: float, found: Sweep) -> StepFit:
    eligible = sample.eligible[:, column]
    counted = sample.counted(column, convention)
    some = bool(eligible.any())
    best, reaches = _best(found, target) if some else (None, False)
    scores, informative = sample.scores[counted, column], ~sample.zero_variance[counted]
    return StepFit(
        step=int(sample.steps[column]),
        eligible=int(eligible.sum()),
        eligible_zero_variance=int((eligible & sample.zero_variance).sum()),
        auroc=auroc(scores, informative) if some else None,
        rank_correlation=rank_correlation(scores, sample.reward_variance[counted]) if some else None,
        best=None if best is None else tally(sample, column, float(found.thresholds[best]), convention),
        reaches=reaches,
    )


def _best(found: Sweep, target: float) -> tuple[int, bool]:
    """The place of the best threshold (see `StepFit`), and whether it reaches the target."""
    enough = found.taken >= MIN_CUTS
    reaching = enough & (found.precision >= target) & np.isfinite(found.net_saving)
    if reaching.any():
        first, second, places = -found.net_saving, -found.precision, reaching
    elif enough.any():
        first, second, places = -found.precision, -found.net_saving, enough
    else:
        first, second, places = -found.net_saving, -found.precision, np.ones(len(enough), np.bool_)
    # lexsort sorts by its last key first; equal in both, the fewest groups taken, which is the smallest threshold.
    order = np.lexsort((found.taken, second, first))
    return int(order[places[order]][0]), bool(reaching.any())


def _shortfall(steps: tuple[StepFit, ...], sweeps: list[Sweep], target: float) -> str:
    """Which is short, groups or precision, in one line."""
    best = [step.best for step in steps if step.best is not None]
    most = max((tally.population for tally in best), default=0)
    if most < MIN_CUTS:
        return f"too few groups: a gate needs {MIN_CUTS} cuts, and no step K has more than {most} groups to cut"
    enough = [tally for tally in best if tally.taken >= MIN_CUTS]
    nearest = max(enough, key=lambda t: (t.precision.value, t.net_saving.value, -t.step))
    if nearest.precision.value >= target:
        return "no informative group would be left: every threshold that reaches the target takes them all"
    fewer = max((int(s.taken[s.precision >= target].max(initial=0)) for s in sweeps if len(s.taken)), default=0)
    hint = f"; thresholds that reach the target cut at most {fewer}" if fewer else ""
    return (
        f"precision too low: of the thresholds with at least {MIN_CUTS} cuts the most precise has "
        f"{nearest.precision.value:.3f} ({nearest.true_positives} of {nearest.taken}, K = {nearest.step}), "
        f"under the target of {target:g}{hint}"
    )


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _number(value: float) -> float | None:
    """JSON has no NaN: what is not known is null."""
    return value if np.isfinite(value) else None
