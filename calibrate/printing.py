"""The lines and tables that `sr calibrate` prints."""

import math
from collections.abc import Sequence

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from calibrate.calibration import Judged
from calibrate.certificate import Attempt
from calibrate.console import Console
from calibrate.convention import Convention
from calibrate.curve_table import ALL, Cell
from calibrate.curves import Areas
from calibrate.fit import Fit, Search, StepFit, apply
from calibrate.folds import OutOfSample
from calibrate.intervals import Interval, share
from calibrate.kinds import GateKind
from calibrate.ladder import MIN_CUTS
from calibrate.rules import Rule, Threshold
from calibrate.sample import Sample
from calibrate.signals import BY_NAME
from calibrate.tally import Tally

_NOT_KNOWN = "n/a"
_STEPS_SHOWN = 10
_SAVED = {
    "tokens": "tokens saved",
    "steps": "steps saved",
    "budget": "tokens saved n/a (a table of signals does not say); of the step budget saved",
}


def console() -> Console:
    """Standard output, for what is below."""
    return Console()


def head(sample: Sample, convention: Convention) -> list[str]:
    """What is calibrated on: how many groups, their composition, what was left out, and what is counted."""
    size = f"G = {sample.group_size}" if sample.group_size is not None else "group size not known"
    kinds = ["all_fail", "mixed", "all_succeed"] + ["uniform"] * bool((sample.outcomes == "uniform").any())
    composition = " / ".join(f"{(sample.outcomes == kind).sum()} {kind.replace('_', '-')}" for kind in kinds)
    rate = share(sample.zero_variance, np.ones(sample.size), sample.task)
    tasks = f" of {len(sample.task_names)} tasks" if len(sample.task_names) < sample.size else ""
    what = {
        Convention.ELIGIBLE: "cut groups: flagged, and some trajectory longer than K",
        Convention.PAPER: "flagged groups, whether or not there was anything left to cut (the paper's convention)",
    }[convention]
    return [
        f"groups: {sample.size}{tasks} ({size}, horizon {sample.horizon}): {composition}; "
        f"zero-variance {interval(rate, 3)}",
        *sample.notes,
        f"counted: {what}",
    ]


def per_step(fit: Fit, chosen: Rule | None, sample: Sample) -> Table:
    """One row a step K: how well the signal ranks there, and its best threshold."""
    eligible = "eligible" if sample.eligible_exactly else "eligible\n(approx.)"
    drawn = table(
        "K",
        eligible,
        "zero-\nvar.",
        "AUROC",
        "rho",
        "thres-\nhold",
        *_counted_headers(fit.search.convention, sample),
        "target",
    )
    for step in fit.steps:
        rho = _NOT_KNOWN if step.rank_correlation is None else f"{step.rank_correlation.rho:.3f}"
        known = [str(step.step), str(step.eligible), str(step.eligible_zero_variance), interval(step.auroc, 3), rho]
        if step.best is None:
            drawn.add_row(*known, *[_NOT_KNOWN] * (len(drawn.columns) - len(known)))
        else:
            drawn.add_row(
                *known,
                f"{step.threshold:.4g}",
                *_counted(step.best, fit.search.convention, sample),
                _mark(step, chosen),
            )
    return drawn


def per_threshold(tallies: Sequence[tuple[Threshold, Tally]], convention: Convention, sample: Sample) -> Table:
    """One row a step and given threshold: what such a gate does to the sample."""
    drawn = table("K", "thres-\nhold", *_counted_headers(convention, sample), "budget\nsafe %", "budget\nraw %")
    for rule, tally in tallies:
        budget = (f"{100 * tally.budget_safe:.1f}", f"{100 * tally.budget_raw:.1f}")
        drawn.add_row(str(rule.step), f"{rule.threshold:g}", *_counted(tally, convention, sample), *budget)
    return drawn


def heat_map(cells: Sequence[Cell], signal: str) -> Table:
    """AUROC of every signal at up to ten steps, and of `signal` within each task type; `*` where 0.5 is outside."""
    steps = sorted({cell.step for cell in cells})
    places = np.linspace(0, len(steps) - 1, min(_STEPS_SHOWN, len(steps))).round().astype(int)
    shown = [steps[place] for place in places]
    found = {(cell.signal, cell.task_type, cell.step): cell for cell in cells}
    drawn = table("AUROC at K =", *map(str, shown))
    drawn.columns[0].justify = "left"
    types = sorted({cell.task_type for cell in cells} - {ALL})
    rows = [(name, name, ALL) for name in dict.fromkeys(cell.signal for cell in cells)]
    if len(types) > 1:
        rows += [(f"  {signal}, {task_type}", signal, task_type) for task_type in types]
    for title, name, task_type in rows:
        drawn.add_row(title, *(_heat(found[name, task_type, step].areas) for step in shown))
    return drawn


def _heat(areas: Areas | None) -> Text:
    if areas is None:
        return Text(_NOT_KNOWN)
    low, high = areas.roc.low, areas.roc.high
    mark = "*" if low > 0.5 or high < 0.5 else " "
    strength = min(1.0, 2 * abs(areas.roc.value - 0.5))
    tint = int(255 * (1 - strength))
    colour = f"on rgb({tint},255,{tint})" if areas.roc.value >= 0.5 else f"on rgb(255,{tint},{tint})"
    return Text(f"{areas.roc.value:.2f}{mark}", style=f"black {colour}")


def legend(fit: Fit) -> list[str]:
    """What the per-step table means."""
    verb = _verb(fit.search.convention)
    enough = f"with at least {MIN_CUTS} {verb}"
    side = {"low": "under", "high": "over"}[BY_NAME[fit.signal].alike]
    return [
        f"{fit.signal}: a group is flagged at K when it is {side} the threshold. AUROC: an informative group lies "
        "further from that side than a zero-variance one, among those counted [95 %, bootstrap by task]; rho: "
        "Spearman, signal and reward variance; precision, recall [95 %, exact, by task]; savings [95 %, by "
        "task]; how: docs/calibration.md.",
        f"threshold: the best net saving at precision >= {fit.search.target_precision:g} {enough}; where none reaches "
        f"it (target: no), the best precision {enough}, else the best net saving.",
    ]


def gates(judged: Sequence[Judged], chosen: Judged | None, choice: OutOfSample | None, sample: Sample) -> Table:
    """Two rows a kind of gate: in sample, and the whole procedure out of sample; and where the kind was chosen, one row
    for that `choice` out of sample.
    """
    convention = judged[0].search.convention
    drawn = table("gate", "", *_counted_headers(convention, sample), "L2\nkept", "")
    for column in drawn.columns[:2]:
        column.justify = "left"
    for one in judged:
        name = one.search.kind
        rows: list[tuple[str, Tally | None]] = [("in sample", one.in_sample)]
        if one.out_of_sample is not None:
            rows.append((_in_folds(one.out_of_sample), one.out_of_sample.tally))
        for title, counts in rows:
            mark = "GATE" if one is chosen and title == "in sample" else ""
            if counts is None:
                drawn.add_row(name, title, "none", *[""] * (len(drawn.columns) - 4), mark)
            else:
                kept = f"{counts.advantage_l2_kept:.3f}"
                drawn.add_row(name, title, *_counted(counts, convention, sample), kept, mark)
    if choice is not None:
        kept = f"{choice.tally.advantage_l2_kept:.3f}"
        drawn.add_row("auto", _in_folds(choice), *_counted(choice.tally, convention, sample), kept, "")
    return drawn


def _in_folds(out: OutOfSample) -> str:
    return f"out of sample ({out.found} of {len(out.rules)} folds)"


def legend_of_gates(judged: Sequence[Judged]) -> list[str]:
    """What the table of gates means."""
    lines = [
        "in sample: chosen and measured on the same groups, which flatters. out of sample: everything that is chosen "
        "was chosen anew on the other folds by task (in how many of them a gate was found), and measured on the groups "
        "left out: expect this of other groups."
    ]
    if len(judged) > 1:
        lines.append(
            "GATE: the simplest kind within one standard error of the best net saving out of sample, among those that "
            "cut anything there, and of these among those that reach the target, if some do. auto: that choice made "
            "anew in the folds too, so nothing flatters it."
        )
    if any(one.out_of_sample is None for one in judged):
        lines.append("out of sample: n/a, the groups are of fewer than two tasks")
    return lines


def no_gate(table: Fit, kind: GateKind, *, several: bool) -> list[str]:
    """Why there is none; `table` is of the signal shown, of `several` or not."""
    if not table.shortfall:
        return [f"no gate: none of the kind {kind.value} reaches the target"]
    if kind is not GateKind.THRESHOLD:
        which = "any kind" if kind is GateKind.AUTO else f"the kind {kind.value}"
        return [f"no gate of {which}; of single thresholds on {table.signal}: {table.shortfall}"]
    return [f"no gate: {f'on no signal; on {table.signal}: ' if several else ''}{table.shortfall}"]


def verdict(chosen: Judged, out: OutOfSample | None, sample: Sample, *, written: bool = True) -> list[str]:
    """The gate and its evidence; `out` is the procedure that chose it, out of sample. It is not `written` where only a
    certified one may be.
    """
    counts, convention = chosen.in_sample, chosen.search.convention
    assert counts is not None
    verb = _verb(convention)
    others = counts.true_positives - counts.all_fail - counts.all_succeed
    kinds = f"{counts.all_fail:g} all-fail, {counts.all_succeed:g} all-succeed" + (
        f", {others:g} uniform" if others else ""
    )
    pays = counts.net_saving.value > 0
    worth = "this gate is above it" if pays else "this gate is not above it and costs more than it saves"
    return [
        f"gate: {chosen.rule}" if written else f"without a certificate it would be: {chosen.rule}",
        f"  {verb} {counts.taken:g} of {counts.population}: {counts.true_positives:g} zero-variance ({kinds}), "
        f"{counts.false_positives:g} informative",
        f"  precision {interval(counts.precision, 3)} of {counts.taken:g}; "
        f"recall {interval(counts.recall, 3)} of {counts.population_zero_variance}, "
        f"{interval(counts.recall_of_all, 3)} of all {counts.zero_variance} zero-variance groups",
        f"  {_SAVED[sample.cost.unit]} {percent(counts.saving)}; "
        f"net saving {percent(counts.net_saving)} of the cost per informative group",
        f"  advantage L2 kept {counts.advantage_l2_kept:.4f}",
        f"  break-even precision {counts.break_even_precision:.3f}: " + worth,
        *_optimism(chosen, counts, out),
        "  not certified: chosen and measured on the same groups, which flatters it",
    ]


def certificate(attempt: Attempt, search: Search, confidence: float, sample: Sample) -> list[str]:
    """The certified gate and what its certificate says, or what is short of one."""
    claim = f"precision >= {search.target_precision:g} with confidence {confidence:g}"
    found = attempt.certificate
    if attempt.rule is None or found is None:
        return ["", f"no certified gate ({claim}). Short of {attempt.shortfall}"]
    counts = apply(sample, attempt.rule, search.convention)
    how = (
        f"Holm over {found.tests} candidates" if found.tests > 1 else "one gate, chosen on the other half of the tasks"
    )
    return [
        "",
        f"certified gate: {attempt.rule}",
        f"  {claim}, for new tasks of the same policy, games and settings, each counting once",
        f"  {found.true_positives} of {found.cuts} cuts among {found.tasks} tasks, one group each, were zero-variance: "
        f"exact binomial p = {found.p_value:.2g}, at most {found.level:.2g} ({how})",
        f"  on all groups here: {counts.true_positives:g} of {counts.taken:g} cuts zero-variance; "
        f"{_SAVED[sample.cost.unit]} {percent(counts.saving)}; net saving {percent(counts.net_saving)}",
        *(["  warning: on these groups it costs more than it saves"] if counts.net_saving.value <= 0 else []),
    ]


def _optimism(chosen: Judged, counts: Tally, procedure: OutOfSample | None) -> list[str]:
    """How much of the precision in sample was luck of the choice."""
    if procedure is None:
        return []
    out = procedure.tally
    if not out.taken:
        return ["  out of sample: no group was cut, so nothing is known of its precision on other groups"]
    target = chosen.search.target_precision
    lines = [
        f"  out of sample: precision {interval(out.precision, 3)} of {out.taken:g}, net saving "
        f"{percent(out.net_saving)}; optimism of the choice: {counts.precision.value - out.precision.value:+.3f} in "
        f"precision, {100 * (counts.net_saving.value - out.net_saving.value):+.1f} points in net saving"
    ]
    if out.precision.value < target:
        lines.append(f"  warning: out of sample the precision is under the target of {target:g}")
    if out.net_saving.value <= 0:
        lines.append("  warning: out of sample it costs more than it saves")
    return lines


def table(*headers: str) -> Table:
    """An empty table with these headers, right-aligned."""
    made = Table(box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False, collapse_padding=True)
    for header in headers:
        made.add_column(header, justify="right")
    return made


def _counted_headers(convention: Convention, sample: Sample) -> list[str]:
    recall = ["recall", "recall\nof all"] if convention is Convention.ELIGIBLE else ["recall"]
    net = "net saving\n(budget)" if sample.cost.unit == "budget" else "net\nsaving"
    saved = "steps\nsaved" if sample.cost.unit == "steps" else "tokens\nsaved"
    return ["flagged", "cut", "TP", "FP", "precision", *recall, saved, net]


def _counted(tally: Tally, convention: Convention, sample: Sample) -> list[str]:
    recalls = [tally.recall, tally.recall_of_all] if convention is Convention.ELIGIBLE else [tally.recall]
    return [
        str(tally.flagged),
        str(tally.cut),
        f"{tally.true_positives:g}",
        f"{tally.false_positives:g}",
        interval(tally.precision, 3),
        *(interval(recall, 2) for recall in recalls),
        _NOT_KNOWN if sample.cost.unit == "budget" else percent(tally.saving),
        percent(tally.net_saving),
    ]


def _mark(step: StepFit, chosen: Rule | None) -> str:
    if not step.reaches:
        return "no"
    here = isinstance(chosen, Threshold) and (chosen.step, chosen.threshold) == (step.step, step.threshold)
    return "GATE" if here else "yes"


def _verb(convention: Convention) -> str:
    return "cuts" if convention is Convention.ELIGIBLE else "flags"


def interval(found: Interval | None, digits: int) -> str:
    """An estimate with its bounds."""
    if found is None or math.isnan(found.value):
        return _NOT_KNOWN
    bounds = _NOT_KNOWN if math.isnan(found.low) else f"{found.low:.2f},{found.high:.2f}"
    return f"{found.value:.{digits}f} [{bounds}]"


def percent(found: Interval) -> str:
    """A share in percent with its bounds."""
    if math.isnan(found.value):
        return _NOT_KNOWN
    bounds = _NOT_KNOWN if math.isnan(found.low) else f"{100 * found.low:.1f},{100 * found.high:.1f}"
    return f"{100 * found.value:.1f}% [{bounds}]"
