"""The part of the page about a run's rollouts, or about a table of signals."""

import polars as pl

from calibrate.intervals import Interval, share
from calibrate.sample import Sample
from reports import calibration_tables as tables
from reports import cutting_figures, signal_figures
from reports.drawing import Figure
from reports.focus import Focus
from reports.page import Tile
from reports.tables import Sheet


def drawn_from(sample: Sample, focus: Focus) -> tuple[list[Figure], list[Sheet]]:
    """The figures about a sample, and the tables that no figure shows."""
    unit = "step budget" if sample.cost.unit == "budget" else sample.cost.unit
    curves, sweep = tables.curves(sample, focus), tables.sweep(sample, focus)
    by_step = tables.by_signal_and_step(sample)
    running = sample.eligible[:, sample.column(focus.step)]
    rate = float(sample.zero_variance[running].mean()) if running.any() else float("nan")
    made = [
        signal_figures.composition(tables.composition(sample)),
        signal_figures.distribution(tables.distribution(sample, focus), focus),
    ]
    if by_step.rows.filter(pl.col("signal") == focus.signal)["auroc"].count():
        made.append(signal_figures.auroc_by_step(by_step, focus))
    if curves.rows.height:
        made += [signal_figures.roc(curves, focus), signal_figures.precision_recall(curves, focus, rate)]
    made += [signal_figures.auroc_map(by_step), signal_figures.correlation_map(by_step)]
    if sweep.rows.height:
        made += [
            cutting_figures.sweep_precision(sweep, focus),
            cutting_figures.sweep_counts(sweep, focus),
            cutting_figures.sweep_savings(sweep, focus, unit),
        ]
    if focus.rule is not None:
        made += [
            cutting_figures.trade_off(tables.trade_off(sample, focus), focus, unit),
            cutting_figures.in_and_out(tables.in_and_out(sample, focus)),
            cutting_figures.policies(tables.policies(sample, focus), unit),
        ]
    return made, [tables.per_step(focus)]


def tiles(sample: Sample, focus: Focus) -> list[Tile]:
    """What a reader wants to know first."""
    everyone = share(sample.zero_variance, sample.zero_variance | True, sample.task)
    found = [
        Tile(
            "groups", f"{sample.size:,}", f"{_size(sample)}, horizon {sample.horizon}, {len(sample.task_names):,} tasks"
        ),
        Tile("zero-variance", percent(everyone.value), f"{bounds(everyone)} of {sample.size:,} groups"),
    ]
    (here,) = (step for step in focus.per_step.steps if step.step == focus.step)
    if here.auroc is not None:
        found.append(
            Tile(
                f"AUROC at K = {focus.step}",
                f"{here.auroc.value:.2f}",
                f"{bounds(here.auroc, '.2f')} of {here.eligible} eligible groups",
            )
        )
    if focus.gate is None:
        return found
    own = focus.gate.evidence
    found.append(
        Tile(
            "gate, in sample",
            f"{own.precision or 0:.2f}",
            f"precision [{own.precision_low:.2f}, {own.precision_high:.2f}] of {own.taken} cuts",
        )
    )
    if (out := focus.gate.out_of_sample) is not None:
        told = "n/a" if out.precision is None else f"{out.precision:.2f}"
        found += [
            Tile(
                "gate, out of sample",
                told,
                f"precision [{out.precision_low:.2f}, {out.precision_high:.2f}] of {out.taken} cuts",
            ),
            Tile(
                "net saving, out of sample",
                "n/a" if out.net_saving is None else percent(out.net_saving),
                _net(out.net_saving_low, out.net_saving_high, out.groups),
            ),
        ]
    return found


def lead(focus: Focus) -> list[str]:
    """What rule the section shows, in words."""
    if focus.rule is None:
        return ["No group of these can be cut at any step."]
    return [f"Shown here: cut a group when {focus.rule}. {focus.told}"]


def warnings(sample: Sample, focus: Focus) -> list[str]:
    """What to bear in mind."""
    told = [*sample.notes]
    if focus.gate is None:
        told.append("No gate was fitted on these groups: the rule shown was chosen on them and flatters itself.")
    elif not focus.gate.certified:
        told.append("The gate is not certified: believe its figures out of sample, not those in sample.")
    return told


def percent(value: float) -> str:
    """A share in percent."""
    return f"{100 * value:.1f} %"


def bounds(interval: Interval, form: str = "") -> str:
    """The bounds of an interval, in percent unless a format is given."""
    if interval.low != interval.low:
        return "[n/a]"
    return (
        f"[{interval.low:{form}}, {interval.high:{form}}]"
        if form
        else f"[{100 * interval.low:.0f}, {100 * interval.high:.0f}] %"
    )


def _net(low: float | None, high: float | None, groups: int) -> str:
    told = "n/a" if low is None or high is None else f"{100 * low:.1f}, {100 * high:.1f}"
    return f"[{told}] % of the cost per informative group, {groups} groups"


def _size(sample: Sample) -> str:
    return f"G = {sample.group_size}" if sample.group_size is not None else "group size not known"
