"""Choose a gate: the rule of the asked kind with the best net saving at a target precision.

What is chosen here is measured on the groups that it was chosen on, which flatters it: `calibrate.folds` measures the
whole procedure on groups that it did not see, and `calibrate.certificate` guarantees.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from calibrate.convention import Convention
from calibrate.curves import Correlation, auroc, rank_correlation
from calibrate.intervals import Interval
from calibrate.kinds import Kind
from calibrate.ladder import MIN_CUTS, Change, Ladder, Start, climb, first
from calibrate.rules import Either, Rule, Sequential, Stage, Threshold
from calibrate.sample import Bools, Sample, Scores
from calibrate.signals import BY_NAME, TERMINATION_FRACTION
from calibrate.tally import Cuts, Tally, tally


@dataclass(frozen=True)
class Search:
    """Among which rules a gate is sought: one of `kind`, on one of `signals`, at the steps of `columns`.

    A rule may stand where its precision is at least `target_precision` on at least `MIN_CUTS` groups taken, and an
    informative group is left. The best net saving wins; ties go to the higher precision, then to fewer groups taken,
    then to the earlier signal and step.
    """

    target_precision: float
    convention: Convention
    columns: tuple[int, ...]
    signals: tuple[str, ...]
    kind: Kind = "threshold"


@dataclass(frozen=True)
class Found:
    """A rule and what it was chosen for, on the groups of the search."""

    rule: Rule
    net_saving: float
    precision: float
    taken: int


def find(sample: Sample, search: Search, rows: Bools | None = None) -> Found | None:
    """The rule that the search chooses on the groups in `rows` (N,), or on all; None where none may stand."""
    rows = np.ones(sample.size, np.bool_) if rows is None else rows
    if search.kind == "learned":
        from calibrate.learned import find_learned

        return find_learned(sample, search, rows)
    by_signal = {"threshold": _threshold, "either": _either, "sequential": _sequential}[search.kind]
    return better([by_signal(sample, search, signal, rows) for signal in search.signals])


def better(candidates: Sequence[Found | None]) -> Found | None:
    """The best of some, by the order of `Search`; the first of equals."""
    there = [found for found in candidates if found is not None]
    return min(there, key=lambda f: (-f.net_saving, -f.precision, f.taken)) if there else None


def ladder(sample: Sample, signal: str, column: int, convention: Convention, rows: Bools | None = None) -> Ladder:
    """Every threshold on a signal at one step, on the groups in `rows`; none when no group is eligible there."""
    rows = np.ones(sample.size, np.bool_) if rows is None else rows
    counted = _counted(sample, column, convention, rows)
    return climb_at(sample, column, counted, sample.likeness(signal, column)[counted], rows)


def climb_at(sample: Sample, column: int, counted: Bools, likeness: Scores, rows: Bools) -> Ladder:
    """The ladder over the groups that are `counted` (N,) at one step, of these scores (n,), low ones first."""
    return climb(likeness, _change(sample, column, counted), _start(sample, rows))


def columns_spread(columns: Sequence[int], count: int = 5) -> tuple[int, ...]:
    """About `count` of the columns, spread evenly over them: which, does not depend on any group."""
    places = np.linspace(0, len(columns) - 1, min(count + 2, len(columns))).round().astype(int)
    inner = places[1:-1] if len(places) > count else places
    return tuple(columns[place] for place in sorted(set(inner.tolist())))


def _threshold(sample: Sample, search: Search, signal: str, rows: Bools) -> Found | None:
    found = []
    for column in search.columns:
        rungs = ladder(sample, signal, column, search.convention, rows)
        if (best := rungs.best(search.target_precision)) is not None:
            found.append(found_at(_rule_at(sample, signal, column, rungs, best), rungs, best))
    return better(found)


def _either(sample: Sample, search: Search, signal: str, rows: Bools) -> Found | None:
    found = []
    for column in search.columns:
        counted = _counted(sample, column, search.convention, rows)
        change, start = _change(sample, column, counted), _start(sample, rows)
        scores = sample.likeness(signal, column)[counted]
        ended = sample.signals[TERMINATION_FRACTION.name][counted, column]
        for least in _shares(ended):
            over = ended >= least - 1e-6
            rungs = climb(np.where(over, -np.inf, scores), change, start)
            if (best := rungs.best(search.target_precision)) is not None:
                # Where only terminations flag, the threshold lies under all values: a rule of it alone cannot be.
                threshold = BY_NAME[signal].sign * float(rungs.thresholds[best])
                rule = Either(signal=signal, step=int(sample.steps[column]), threshold=threshold, ended=least)
                found.append(found_at(rule, rungs, best))
    return better(found)


def _shares(ended: np.ndarray) -> list[float]:
    """The shares of ended trajectories that occur, over 0; and 1, at which no running group is, for no such rule."""
    return sorted({round(float(value), 6) for value in np.unique(ended) if value > 0} | {1.0})


def _sequential(sample: Sample, search: Search, signal: str, rows: Bools) -> Found | None:
    """Grow from the best single stage, one stage at a time, while the net saving rises; at most three."""
    whole = _threshold(sample, search, signal, rows)
    if whole is None:
        return None
    assert isinstance(whole.rule, Threshold)
    rule = Sequential(signal=signal, stages=(Stage(step=whole.rule.step, threshold=whole.rule.threshold),))
    whole = replace(whole, rule=rule)
    while len(whole.rule.steps) < 3:
        grown = better([_with_stage(sample, search, whole.rule, column, rows) for column in search.columns])
        if grown is None or grown.net_saving <= whole.net_saving:
            break
        whole = grown
    return whole


def _with_stage(sample: Sample, search: Search, rule: Rule, column: int, rows: Bools) -> Found | None:
    """The rule with the best further stage at a step of its own."""
    step = int(sample.steps[column])
    assert isinstance(rule, Sequential)
    if step in rule.steps:
        return None
    cuts = Cuts.at(sample, rule.flags(sample), rows, search.convention)
    was = cuts.taken > 0
    at = rule.flags(sample)
    # A group flagged at an earlier step is out of reach; one flagged later is taken already, but would be earlier.
    counted = _counted(sample, column, search.convention, rows) & ~((at >= 0) & (at < column))
    added = _change(sample, column, counted)
    change = Change(added.taken - was[counted], added.true_positives * ~was[counted], added.saved - cuts.saved[counted])
    start = replace(
        _start(sample, rows),
        taken=int(was[rows].sum()),
        true_positives=int((was & sample.zero_variance)[rows].sum()),
        saved=int(cuts.saved[rows].sum()),
    )
    rungs = climb(sample.likeness(rule.signal, column)[counted], change, start)
    if (best := rungs.best(search.target_precision)) is None:
        return None
    threshold = BY_NAME[rule.signal].sign * float(rungs.thresholds[best])
    stages = sorted([*rule.stages, Stage(step=step, threshold=threshold)], key=lambda stage: stage.step)
    return found_at(Sequential(signal=rule.signal, stages=tuple(stages)), rungs, best)


def _counted(sample: Sample, column: int, convention: Convention, rows: Bools) -> Bools:
    """The groups that can be taken at a step: none where none is eligible."""
    if not (sample.eligible[:, column] & rows).any():
        return np.zeros(sample.size, np.bool_)
    return sample.counted(column, convention) & rows


def _change(sample: Sample, column: int, counted: Bools) -> Change:
    hits = sample.zero_variance[counted].astype(np.int64)
    # Of a group that is over nothing is saved, also where it counts.
    saved = np.where(sample.eligible[counted, column], sample.cost.after[counted, column], 0).astype(np.int64)
    return Change(np.ones(len(hits), np.int64), hits, saved)


def _start(sample: Sample, rows: Bools) -> Start:
    return Start(int(sample.cost.total[rows].sum()), int((~sample.zero_variance & rows).sum()))


def _rule_at(sample: Sample, signal: str, column: int, rungs: Ladder, place: int) -> Threshold:
    threshold = BY_NAME[signal].sign * float(rungs.thresholds[place])
    return Threshold(signal=signal, step=int(sample.steps[column]), threshold=threshold)


def found_at(rule: Rule, rungs: Ladder, place: int) -> Found:
    """A rule that stands at one rung of a ladder."""
    return Found(rule, float(rungs.net_saving[place]), float(rungs.precision[place]), int(rungs.taken[place]))


# The table of one signal, step by step


@dataclass(frozen=True)
class StepFit:
    """One step K: how many groups are counted there, how well the signal ranks them, and its best threshold.

    `best` is None when no group is eligible. It has the best net saving of the thresholds where a gate may stand when
    `reaches`; else the best precision of those with enough cuts; else the best net saving of all.
    """

    step: int
    eligible: int
    eligible_zero_variance: int
    auroc: Interval | None
    rank_correlation: Correlation | None
    best: Tally | None
    threshold: float
    reaches: bool


@dataclass(frozen=True)
class Fit:
    """The best threshold of every step of one signal; `shortfall` says what is short where none may stand."""

    search: Search
    signal: str
    steps: tuple[StepFit, ...]
    shortfall: str


def fit(sample: Sample, search: Search, signal: str) -> Fit:
    """The table of one signal: at each step of the search, its best threshold, or the nearest to one."""
    ladders = [ladder(sample, signal, column, search.convention) for column in search.columns]
    steps = tuple(
        _step_fit(sample, search, signal, column, rungs) for column, rungs in zip(search.columns, ladders, strict=True)
    )
    short = "" if any(step.reaches for step in steps) else _shortfall(steps, ladders, search)
    return Fit(search, signal, steps, short)


def apply(sample: Sample, rule: Rule, convention: Convention, rows: Bools | None = None) -> Tally:
    """What a rule does to the groups in `rows`, or to all: groups that could be cut at its first step are counted."""
    candidates = sample.counted(sample.column(rule.steps[0]), convention)
    return tally(sample, Cuts.at(sample, rule.flags(sample), candidates, convention), rows)


def _step_fit(sample: Sample, search: Search, signal: str, column: int, rungs: Ladder) -> StepFit:
    eligible = sample.eligible[:, column]
    counted = sample.counted(column, search.convention)
    place, reaches = _nearest(rungs, search.target_precision)
    best, threshold = None, float("nan")
    if place is not None:
        rule = _rule_at(sample, signal, column, rungs, place)
        best, threshold = apply(sample, rule, search.convention), rule.threshold
    likeness, informative = sample.likeness(signal, column)[counted], ~sample.zero_variance[counted]
    values, variance = sample.signals[signal][counted, column], sample.reward_variance[counted]
    some = bool(eligible.any())
    return StepFit(
        step=int(sample.steps[column]),
        eligible=int(eligible.sum()),
        eligible_zero_variance=int((eligible & sample.zero_variance).sum()),
        auroc=auroc(likeness, informative, sample.task[counted]) if some else None,
        rank_correlation=rank_correlation(values, variance) if some else None,
        best=best,
        threshold=threshold,
        reaches=reaches,
    )


def _nearest(rungs: Ladder, target: float) -> tuple[int | None, bool]:
    """The place of the best threshold (see `StepFit`), and whether a gate may stand there."""
    if (best := rungs.best(target)) is not None:
        return best, True
    enough = rungs.taken >= MIN_CUTS
    if enough.any():
        return first(enough, -rungs.precision, -rungs.net_saving, rungs.taken), False
    return first(rungs.taken > 0, -rungs.net_saving, -rungs.precision, rungs.taken), False


def _shortfall(steps: Sequence[StepFit], ladders: Sequence[Ladder], search: Search) -> str:
    """Which is short, groups or precision, in one line."""
    target, paper = search.target_precision, search.convention is Convention.PAPER
    cuts, cut = ("flagged groups", "flag") if paper else ("cuts", "cut")
    best = [(step, step.best) for step in steps if step.best is not None]
    most = max((counts.population for _, counts in best), default=0)
    if most < MIN_CUTS:
        return f"too few groups: a gate needs {MIN_CUTS} {cuts}, and no step K has more than {most} groups to {cut}"
    enough = [(step, counts) for step, counts in best if counts.taken >= MIN_CUTS]
    at, nearest = max(enough, key=lambda pair: (pair[1].precision.value, pair[1].net_saving.value, -pair[0].step))
    if nearest.precision.value >= target:
        return "no informative group would be left: every threshold that reaches the target takes them all"
    fewer = max((int(rungs.taken[rungs.precision >= target].max(initial=0)) for rungs in ladders), default=0)
    hint = f"; thresholds that reach the target {cut} at most {fewer}" if fewer else ""
    return (
        f"precision too low: of the thresholds with at least {MIN_CUTS} {cuts} the most precise has "
        f"{nearest.precision.value:.3f} ({nearest.true_positives:g} of {nearest.taken:g}, K = {at.step}), "
        f"under the target of {target:g}{hint}"
    )
