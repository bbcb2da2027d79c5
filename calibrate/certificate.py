"""The certificate: a gate whose precision is guaranteed, or what is short of one.

The guarantee. With probability at least c over the calibration tasks, no gate is certified whose true precision on new
groups (of new tasks, with the same policy, games and settings) is under p. What it rests on:

- The candidates are fixed before the data are looked at: about 20 thresholds on one signal at five steps.
- Each is tested on the groups that it cuts, one a task, with the exact binomial test of the hypothesis that its true
  precision is under p; Holm's procedure (1979) keeps the chance that any true hypothesis is rejected at 1 - c. So among
  the rejected any choice is free, and the best net saving is taken.
- A gate beyond that grid (another signal chosen by the data, stages, learned weights) is chosen on one half of the
  tasks, and that one gate is tested on the other half.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import binom

from calibrate.calibration import choose, judge
from calibrate.fit import Search, apply, columns_spread, ladder
from calibrate.folds import deal
from calibrate.gate import Certificate
from calibrate.intervals import proportion
from calibrate.kinds import GateKind
from calibrate.ladder import MIN_CUTS
from calibrate.rules import Rule, Threshold
from calibrate.sample import Bools, Sample
from calibrate.signals import BY_NAME
from calibrate.tally import Tally

_THRESHOLDS = 20
_POWER = 0.8
_MOST_CUTS = 20_000  # as far as is looked for how many cuts would do


@dataclass(frozen=True)
class Cell:
    """A candidate and its test: of `cuts` groups, one a task, `true_positives` were zero-variance.

    `level` is what Holm's procedure holds `p_value` against; the candidate is certified when it and all with smaller
    p-values are at most theirs.
    """

    rule: Rule
    cuts: int
    true_positives: int
    p_value: float
    level: float
    certified: bool


@dataclass(frozen=True)
class Attempt:
    """What came of it: the certified rule of the best net saving with its certificate, or None and what is short."""

    rule: Rule | None
    certificate: Certificate | None
    shortfall: str
    cells: tuple[Cell, ...]


def certify(sample: Sample, search: Search, kind: GateKind, confidence: float) -> Attempt:
    """Try to certify a gate at `search.target_precision` and a confidence in (0, 1), on eligible groups.

    With one signal and one threshold the candidates are the grid; else one gate is chosen on half of the tasks and
    tested on the other half. The test counts one group a task. Where tasks have several, and those with more are cut
    more wrongly, a gate that passes it may miss the target on all groups together: such a one is not taken.
    """
    one_each = one_a_task(sample)
    if kind is GateKind.THRESHOLD and len(search.signals) == 1:
        rules: Sequence[Rule] = grid(sample, search.signals[0], search.columns)
        tested = one_each
    else:
        half = deal(sample, np.ones(sample.size, np.bool_), 2)
        chosen = choose(judge(sample, search, kind, half == 0))
        if chosen is None or chosen.rule is None:
            return Attempt(None, None, _unchosen(sample, search, kind, half == 0), ())
        rules, tested = [chosen.rule], one_each & (half == 1)
    cells = run_tests(sample, rules, tested, search.target_precision, confidence)
    certified = [cell for cell in cells if cell.certified]
    if not certified:
        return Attempt(None, None, _shortfall(sample, search, cells, tested, confidence), cells)
    counts = [apply(sample, cell.rule, search.convention) for cell in certified]
    precise = [one.precision.value >= search.target_precision for one in counts]
    if not any(precise):
        return Attempt(None, None, _imprecise_on_all(counts, search.target_precision), cells)
    worth = [one.net_saving.value if enough else -np.inf for one, enough in zip(counts, precise, strict=True)]
    best = certified[int(np.argmax(worth))]
    if not np.isfinite(max(worth)):
        return Attempt(None, None, "informative groups: every gate that could be certified takes them all", cells)
    certificate = Certificate(
        confidence=confidence,
        precision=search.target_precision,
        tasks=int(tested.sum()),
        cuts=best.cuts,
        true_positives=best.true_positives,
        p_value=best.p_value,
        level=best.level,
        tests=len(cells),
    )
    return Attempt(best.rule, certificate, "", cells)


def grid(sample: Sample, signal: str, columns: Sequence[int]) -> list[Threshold]:
    """The candidates: which, depends on the signal's range, the group size and the steps, and on no group.

    Twenty thresholds a step over the signal's range, closer where more groups look alike: at the fractions (i/20)² of
    it from that end, each moved up to halfway between two values of the lattice j / (K · G(G-1)/2).
    """
    rules = []
    for column in columns_spread(columns):
        step, size = int(sample.steps[column]), sample.group_size or 8
        lattice = step * size * (size - 1) // 2
        fractions = {(int((i / _THRESHOLDS) ** 2 * lattice) + 0.5) / lattice for i in range(_THRESHOLDS)}
        rules += [Threshold(signal=signal, step=step, threshold=_at(signal, f)) for f in sorted(fractions)]
    return rules


def run_tests(
    sample: Sample, rules: Sequence[Rule], rows: Bools, precision: float, confidence: float
) -> tuple[Cell, ...]:
    """Test each candidate on the groups in `rows` (N,), of distinct tasks, with Holm's procedure over them all."""
    counts = [_cut(sample, rule, rows) for rule in rules]
    cuts, hits = (np.array([count[side] for count in counts], np.int64) for side in (0, 1))
    p_values = np.where(cuts > 0, binom.sf(hits - 1, cuts, precision), 1.0)
    levels = np.empty(len(rules))
    order = np.argsort(p_values, kind="stable")
    levels[order] = (1 - confidence) / np.arange(len(rules), 0, -1)
    certified = np.zeros(len(rules), np.bool_)
    certified[order] = np.logical_and.accumulate(p_values[order] <= levels[order])
    return tuple(
        Cell(rule, int(n), int(x), float(p), float(level), bool(yes))
        for rule, n, x, p, level, yes in zip(rules, cuts, hits, p_values, levels, certified, strict=True)
    )


def one_a_task(sample: Sample) -> Bools:
    """One group of each task, drawn by a hash of the groups' ids: which, depends on no order. (N,)."""
    draw = [hashlib.sha256(group.encode()).digest() for group in sample.group_ids]
    first: dict[int, int] = {}
    for place in sorted(range(sample.size), key=draw.__getitem__):
        first.setdefault(int(sample.task[place]), place)
    chosen = np.zeros(sample.size, np.bool_)
    chosen[list(first.values())] = True
    return chosen


def cuts_needed(rate: float, precision: float, level: float) -> int | None:
    """The fewest cuts at which the test rejects with a chance of 80 %, when the true precision is `rate`; None when not
    even `_MOST_CUTS` would do.
    """
    if rate <= precision:
        return None
    cuts = np.arange(1, _MOST_CUTS + 1)
    enough = binom.sf(_least_hits(precision, level) - 1, cuts, rate) >= _POWER
    # The power rises in a saw-tooth: from there on it must not fall below again.
    lasting = np.flatnonzero(~enough)
    place = int(lasting[-1]) + 1 if len(lasting) else 0
    return int(cuts[place]) if place < len(cuts) else None


@lru_cache(maxsize=4)
def _least_hits(precision: float, level: float) -> NDArray[np.float64]:
    """The hits from which on the test rejects, at each number of cuts up to `_MOST_CUTS`."""
    return np.asarray(binom.isf(level, np.arange(1, _MOST_CUTS + 1), precision) + 1)


def _roughly_needed(cell: Cell, precision: float, level: float) -> float:
    """`cuts_needed` at the observed rate by the normal approximation, to rank candidates by."""
    rate = min(cell.true_positives / cell.cuts, 1 - 1e-6)
    spread = ndtri(1 - level) * sqrt(precision * (1 - precision)) + ndtri(_POWER) * sqrt(rate * (1 - rate))
    return float((spread / (rate - precision)) ** 2)


def _cut(sample: Sample, rule: Rule, rows: Bools) -> tuple[int, int]:
    at = rule.flags(sample)
    cut = (at >= 0) & sample.eligible[np.arange(sample.size), at] & rows
    return int(cut.sum()), int((cut & sample.zero_variance).sum())


def _at(signal: str, fraction: float) -> float:
    """The value at a fraction of the signal's range from the end where groups look alike."""
    known = BY_NAME[signal]
    if np.isinf(known.lowest):  # a mean of log-probabilities: at a fraction of the range of its exponential
        return known.highest + float(np.log1p(-min(fraction, 1 - 1e-9)))
    width = fraction * (known.highest - known.lowest)
    return known.lowest + width if known.alike == "low" else known.highest - width


def _shortfall(sample: Sample, search: Search, cells: Sequence[Cell], tested: Bools, confidence: float) -> str:
    """Which is short, precision or groups, and about how many groups would do at the observed rates."""
    target, tasks = search.target_precision, int(tested.sum())
    most = max(cells, key=lambda cell: (cell.cuts, cell.true_positives))
    if not most.cuts:
        return f"groups: of {tasks} tasks no candidate cuts any"
    enough = [cell for cell in cells if cell.cuts >= MIN_CUTS] or [most]
    level = (1 - confidence) / len(cells)
    over = [cell for cell in enough if cell.true_positives > target * cell.cuts]
    nearest = min(over, key=lambda cell: _roughly_needed(cell, target, level) / cell.cuts, default=None)
    cuts = None if nearest is None else cuts_needed(nearest.true_positives / nearest.cuts, target, level)
    if nearest is None or cuts is None:
        best = max(enough, key=lambda cell: (cell.true_positives / cell.cuts, cell.cuts))
        who = f"the most precise of the candidates ({best.rule}) with at least {MIN_CUTS} cuts"
        if best.cuts < MIN_CUTS:
            who = f"of {tasks} tasks no candidate cuts {MIN_CUTS} or more, and the one that cuts most ({best.rule})"
        return _too_imprecise(who, best.true_positives, best.cuts, target)
    # A gate that was chosen on half of the tasks is tested on the other half.
    needed = int(np.ceil(cuts * len(sample.task_names) / nearest.cuts))
    whole = "" if tasks == len(sample.task_names) else ", half of them to choose on,"
    return (
        f"groups: {nearest.rule} cut {nearest.cuts} of {tasks} tasks, {nearest.true_positives} of them zero-variance "
        f"({nearest.true_positives / nearest.cuts:.3f}); if those are its true rates, about {cuts} cuts, from about "
        f"{needed} tasks{whole} would certify it with a chance of {100 * _POWER:.0f} %"
    )


def _unchosen(sample: Sample, search: Search, kind: GateKind, rows: Bools) -> str:
    """What is short where no gate can be chosen on the tasks of the groups in `rows`, half of all."""
    target = search.target_precision
    half = f"on the half of the tasks that a gate is chosen on ({int(rows.sum())} groups)"
    ladders = [
        ladder(sample, signal, column, search.convention, rows)
        for signal in search.signals
        for column in search.columns
    ]
    rungs = [
        (float(hits / taken), int(taken), int(hits))
        for one in ladders
        for taken, hits in zip(one.taken, one.true_positives, strict=True)
    ]
    enough = [rung for rung in rungs if rung[1] >= MIN_CUTS]
    if not enough:
        most = max((taken for _, taken, _ in rungs), default=0)
        return f"groups: {half} no step K has {MIN_CUTS} groups to cut (at most {most})"
    rate, taken, hits = max(enough)
    if rate >= target:
        return f"informative groups: {half} every threshold that reaches the target takes them all"
    fewer = max((taken for rate, taken, _ in rungs if rate >= target), default=0)
    if 0 < fewer < MIN_CUTS:
        needed = int(np.ceil(MIN_CUTS / fewer * len(sample.task_names)))
        hint = (
            f"; thresholds that reach {target:g} cut at most {fewer} there: if that is their true share, one could be "
            f"chosen from about {needed} tasks"
        )
    else:
        hint = ""
    which = (
        "threshold" if kind is GateKind.THRESHOLD else f"single threshold (of the kind {kind.value} none reaches it)"
    )
    return _too_imprecise(f"the most precise {which} {half} with at least {MIN_CUTS} cuts", hits, taken, target) + hint


def _imprecise_on_all(counts: Sequence[Tally], target: float) -> str:
    """What is short where all gates that pass the test miss the target on all groups together."""
    best = max(counts, key=lambda one: one.precision.value)
    return (
        f"precision: {len(counts)} candidates pass with one group a task, but on all groups together the most precise "
        f"has {best.true_positives:g} of {best.taken:g}, {best.precision.value:.3f}, under {target:g}: games visited "
        "more often are cut more wrongly"
    )


def _too_imprecise(best: str, hits: int, cuts: int, target: float) -> str:
    """Precision is short for certain only where even the upper bound of the best is under the target."""
    known = proportion(hits, cuts)
    sure = "precision" if known.high < target else "precision or groups, which cannot be told yet"
    return (
        f"{sure}: {best} has {hits} of {cuts}, {known.value:.3f} "
        f"[{known.low:.2f},{known.high:.2f}]; {_MOST_CUTS:,} cuts at that rate would not certify {target:g}"
    )
