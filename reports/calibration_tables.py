"""The tables of a run's rollouts: who its groups are, how well signals tell them apart, and what cutting would do.

Every number comes from `calibrate`; nothing is defined here.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrate.bands import Band, bands
from calibrate.calibration import Judged, judge
from calibrate.convention import Convention
from calibrate.curve_table import Cell, cells
from calibrate.fit import apply, ladder
from calibrate.intervals import share
from calibrate.kinds import GateKind
from calibrate.ladder import MIN_CUTS
from calibrate.replay import Replayed, replay
from calibrate.rules import Threshold
from calibrate.sample import Bools, Sample
from calibrate.signals import BY_NAME
from calibrate.tally import Tally
from reports.focus import Focus
from reports.tables import Row, Sheet, bounds, sheet

OUTCOMES = ("all_fail", "mixed", "all_succeed", "uniform")
ALL = "all"
_RUNGS = 60  # thresholds shown of a sweep
_RUNGS_OF_MANY = 30  # and of each step, where all steps are shown
_BINS = 24


def composition(sample: Sample) -> Sheet:
    """How groups end, by task type and in all."""
    parts: list[tuple[str, Bools]] = [(ALL, np.ones(sample.size, np.bool_))]
    if sample.task_types is not None:
        types = sample.task_types.fill_null("")
        parts += [(name, (types == name).to_numpy()) for name in types.unique().sort() if name]
    rows = []
    for name, here in parts:
        rate = share(sample.zero_variance[here], np.ones(int(here.sum())), sample.task[here])
        counts = {kind: int((sample.outcomes[here] == kind).sum()) for kind in OUTCOMES}
        rows.append({"task_type": name, "groups": int(here.sum()), **counts, **bounds("zero_variance", rate)})
    note = "One row a task type. zero_variance: share of groups that teach nothing [95 %, Clopper-Pearson, by task]."
    return sheet("composition", "How groups end", note, rows)


def distribution(sample: Sample, focus: Focus) -> Sheet:
    """The signal at the step of the focus, by outcome, in bins: eligible groups and those that were over already."""
    column = sample.column(focus.step)
    values = sample.signals[focus.signal][:, column].astype(np.float64)
    edges = _edges(values, focus.threshold)
    rows = []
    for outcome in OUTCOMES:
        of = sample.outcomes == outcome
        if not of.any():
            continue
        for name, state in (("running", sample.eligible[:, column]), ("over", ~sample.eligible[:, column])):
            counts, _ = np.histogram(values[of & state], edges)
            rows += [
                {"outcome": outcome, "state": name, "from": float(a), "to": float(b), "groups": int(n)}
                for a, b, n in zip(edges, edges[1:], counts, strict=False)
            ]
    note = (
        f"One row an outcome and bin of {focus.signal} at K = {focus.step}. running: some trajectory is longer than K, "
        "so the group can be cut; over: nothing is left to cut."
    )
    return sheet("signal_by_outcome", f"{focus.signal} at K = {focus.step}, by outcome", note, rows)


def _edges(values: NDArray[np.float64], threshold: float | None) -> NDArray[np.float64]:
    """The edges of about `_BINS` bins of one width; the threshold is one of them, so that no bin lies on both sides."""
    low, high = min(0.0, float(values.min())) if values.min() >= 0 else float(values.min()), float(values.max())
    width = (high - low) / _BINS or 1.0
    start = low if threshold is None else threshold - np.ceil((threshold - low) / width) * width
    return np.asarray(start + width * np.arange(int(np.floor((high - start) / width)) + 2))


def curves(sample: Sample, focus: Focus) -> Sheet:
    """ROC and precision-recall curve at the step of the focus, on both conventions, with their bands."""
    column, rows = sample.column(focus.step), []
    for convention in Convention:
        counted = sample.counted(column, convention)
        found = bands(
            sample.likeness(focus.signal, column)[counted], ~sample.zero_variance[counted], sample.task[counted]
        )
        for name, band in (("roc", found.roc), ("precision_recall", found.precision_recall)) if found else ():
            rows += [{"curve": name, "convention": convention.value, **point} for point in _points(band)]
    note = (
        f"{focus.signal} at K = {focus.step}. roc: y is the share of zero-variance groups under a threshold, x that of "
        "informative ones; precision_recall: y is the precision at recall x [pointwise 95 %, bootstrap by task]."
    )
    return sheet("curves", "ROC and precision-recall", note, rows)


def _points(band: Band) -> list[Row]:
    points = zip(band.x, band.value, band.low, band.high, strict=True)
    return [dict(zip(("x", "y", "y_low", "y_high"), map(float, point), strict=True)) for point in points]


def by_signal_and_step(sample: Sample) -> Sheet:
    """AUROC and rank correlation of every signal at every step, on both conventions."""
    whole = replace(sample, task_types=None)
    columns = range(len(sample.steps))
    rows = [
        {"convention": convention.value, **_cell(cell)}
        for convention in Convention
        for cell in cells(whole, convention, columns)
    ]
    note = (
        "One row a convention, signal and step K. auroc: an informative group lies further from the end that speaks "
        "for zero variance than a zero-variance one [95 %, bootstrap by task]; rho: Spearman's correlation with the "
        "reward variance. eligible: groups still running at K; paper: all groups."
    )
    return sheet("signals_by_step", "AUROC and rank correlation, signal by step", note, rows)


def _cell(cell: Cell) -> Row:
    return {
        "signal": cell.signal,
        "step": cell.step,
        "groups": cell.groups,
        "zero_variance": cell.zero_variance,
        **bounds("auroc", cell.areas.roc if cell.areas else None),
        **bounds("average_precision", cell.areas.precision_recall if cell.areas else None),
        "rho": cell.correlation.rho if cell.correlation else None,
        "p_value": cell.correlation.p if cell.correlation else None,
    }


def per_step(focus: Focus) -> Sheet:
    """The best threshold of each step, as `sr calibrate` prints it."""
    rows = []
    for step in focus.per_step.steps:
        if step.best is not None:
            reached = {"step": step.step, "threshold": step.threshold, "reaches_target": step.reaches}
            rows.append({**reached, **_counts(step.best)})
    note = (
        f"One row a step K: the best threshold on {focus.signal} at precision >= {focus.search.target_precision:g} "
        f"with at least {MIN_CUTS} cuts; where none reaches it, the most precise. Chosen and measured on the same "
        "groups."
    )
    return sheet("best_per_step", "The best threshold of each step", note, rows)


def sweep(sample: Sample, focus: Focus) -> Sheet:
    """What each threshold at the step of the focus does, on both conventions."""
    column = sample.column(focus.step)
    rows = [
        {"convention": convention.value, "threshold": rule.threshold, **_counts(apply(sample, rule, convention))}
        for convention in Convention
        for rule in _rules(sample, focus.signal, column, convention, _RUNGS)
    ]
    note = (
        f"One row a convention and threshold on {focus.signal} at K = {focus.step}. taken: groups that precision "
        "counts, cut ones (eligible) or flagged ones (paper) [95 %, Clopper-Pearson or delta method, by task]."
    )
    return sheet("threshold_sweep", f"Every threshold at K = {focus.step}", note, rows)


def trade_off(sample: Sample, focus: Focus) -> Sheet:
    """Precision and savings of many thresholds at every step, and of the gate, random cuts and the oracle."""
    rows: list[dict[str, Any]] = []
    for column in range(len(sample.steps)):
        rules = _rules(sample, focus.signal, column, Convention.ELIGIBLE, _RUNGS_OF_MANY)
        if isinstance(focus.rule, Threshold) and focus.step == sample.steps[column]:
            rules.append(focus.rule)  # else the front might run below it
        for rule in rules:
            counts = apply(sample, rule, Convention.ELIGIBLE)
            if counts.taken >= MIN_CUTS:
                point = {"policy": "threshold", "step": rule.step, "threshold": rule.threshold}
                rows.append({**point, **_counts(counts)})
    if focus.rule is not None:
        for name, counts in _landmarks(sample, focus):
            threshold = focus.threshold if name == "gate" else None
            rows.append({"policy": name, "step": focus.step, "threshold": threshold, **_counts(counts)})
    front = _front([(row["precision"], row["saving"]) for row in rows if row["policy"] == "threshold"])
    for row in rows:
        row["on_front"] = row["policy"] == "threshold" and (row["precision"], row["saving"]) in front
    note = (
        f"One row a threshold on {focus.signal} with at least {MIN_CUTS} cuts, and the landmarks: the rule shown "
        "here (gate), random cuts as often as its (expected), and the oracle that cuts exactly the zero-variance "
        "groups at its step. on_front: no other threshold is more precise and saves as much. All chosen on these "
        "groups."
    )
    return sheet("trade_off", "Savings against precision", note, rows)


def _landmarks(sample: Sample, focus: Focus) -> list[tuple[str, Tally]]:
    assert focus.rule is not None
    names = {
        "random at the same rate": "random",
        f"oracle at K = {focus.rule.steps[0]}": "oracle",
        focus.label: "gate",
    }
    found = {row.policy: row.tally for row in replay(sample, {focus.label: focus.rule})}
    return [(name, counts) for told, name in names.items() if (counts := found[told]) is not None]


def _front(points: list[tuple[float, float]]) -> set[tuple[float, float]]:
    """The points that no other beats in one and equals or beats in the other."""
    front, most = set(), -np.inf
    for precision, saving in sorted(set(points), key=lambda point: (-point[0], -point[1])):
        if saving > most:
            front.add((precision, saving))
            most = saving
    return front


def in_and_out(sample: Sample, focus: Focus) -> Sheet:
    """Every kind of gate in sample and out of sample."""
    rows = [row for one in judge(sample, focus.search, GateKind.AUTO) for row in _judged(one)]
    note = (
        f"One row a kind of gate and judgement, at a target precision of {focus.search.target_precision:g}. in sample: "
        "chosen and measured on the same groups, which flatters; out of sample: chosen anew in folds by task and "
        "measured on the groups left out, which is what to expect of other groups. folds: in how many a gate was found."
    )
    return sheet("in_and_out_of_sample", "In sample and out of sample", note, rows)


def _judged(one: Judged) -> list[Row]:
    kind = one.search.kind
    found = dict.fromkeys(_COUNTS) if one.in_sample is None else _counts(one.in_sample)
    rows: list[Row] = [
        {"gate": kind, "judged": "in sample", "rule": str(one.rule or "no gate"), "folds": None, **found}
    ]
    if one.out_of_sample is not None:
        out = one.out_of_sample
        folds = f"{out.found} of {len(out.rules)}"
        rows.append({"gate": kind, "judged": "out of sample", "rule": None, "folds": folds, **_counts(out.tally)})
    return rows


def policies(sample: Sample, focus: Focus) -> Sheet:
    """What each policy of cutting would have done."""
    assert focus.rule is not None
    rows = [_policy(one) for one in replay(sample, {focus.label: focus.rule})]
    note = (
        "One row a policy (an arm) on the same groups: what it would have cut, saved and lost. "
        f"{focus.label}: {focus.rule}. items_dropped: trajectories that never reach the trainer. net_saving: fall in "
        "the cost of an informative group [95 %, by task]."
    )
    return sheet("policies", "What each policy would have done", note, rows)


def _policy(one: Replayed) -> Row:
    if one.tally is None:
        return {"policy": one.policy, "items_dropped": None, **dict.fromkeys(_COUNTS), "unknown": one.unknown}
    return {"policy": one.policy, "items_dropped": one.items_dropped, **_counts(one.tally), "unknown": None}


def _rules(sample: Sample, signal: str, column: int, convention: Convention, most: int) -> list[Threshold]:
    """The thresholds of a step, at most so many of them, evenly chosen."""
    thresholds = ladder(sample, signal, column, convention).thresholds
    places = np.unique(np.linspace(0, len(thresholds) - 1, min(most, len(thresholds))).round().astype(int))
    sign, step = BY_NAME[signal].sign, int(sample.steps[column])
    return [Threshold(signal=signal, step=step, threshold=sign * float(thresholds[place])) for place in places]


_COUNTS: Sequence[str] = (
    *("groups", "flagged", "cut", "taken", "true_positives", "false_positives"),
    *("precision", "precision_low", "precision_high", "recall", "recall_low", "recall_high"),
    *("recall_of_all", "recall_of_all_low", "recall_of_all_high", "saving", "saving_low", "saving_high"),
    *("steps_saving", "steps_saving_low", "steps_saving_high", "net_saving", "net_saving_low", "net_saving_high"),
    *("budget_safe", "budget_raw", "advantage_l2_kept"),
)


def _counts(counts: Tally) -> Row:
    row = {
        "groups": counts.groups,
        "flagged": counts.flagged,
        "cut": counts.cut,
        "taken": float(counts.taken),
        "true_positives": float(counts.true_positives),
        "false_positives": float(counts.false_positives),
        **bounds("precision", counts.precision),
        **bounds("recall", counts.recall),
        **bounds("recall_of_all", counts.recall_of_all),
        **bounds("saving", counts.saving),
        **bounds("steps_saving", counts.steps_saving),
        **bounds("net_saving", counts.net_saving),
        "budget_safe": counts.budget_safe,
        "budget_raw": counts.budget_raw,
        "advantage_l2_kept": counts.advantage_l2_kept,
    }
    assert tuple(row) == _COUNTS
    return row
