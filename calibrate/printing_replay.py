"""The tables that `sr replay` prints, and a gate in words, as `sr gate show` prints it."""

from collections.abc import Sequence

from rich.table import Table

from calibrate.gate import Evidence, Gate
from calibrate.intervals import Interval
from calibrate.printing import interval, percent, table
from calibrate.replay import Replayed
from calibrate.sample import Sample
from calibrate.signals import BY_NAME
from calibrate.tally import Tally

_NONE = "-"
_SAVED = {
    "tokens": "steps and tokens saved: of those really spent.",
    "steps": "steps saved: of those really taken; the net saving counts them, as the rollouts do not say their tokens.",
    "budget": "steps and tokens saved: n/a from a table of signals; the net saving counts the step budget.",
}


def policies(rows: Sequence[Replayed], sample: Sample) -> Table:
    """One row a policy of cutting."""
    counts = ("cut", "TP", "FP", "precision", "recall")
    savings = ("steps\nsaved", "tokens\nsaved", "budget\nsafe %", "budget\nraw %")
    losses = ("items\ndropped", "informative\nlost", "L2\nkept", "net saving")
    shown = table("policy", *counts, *savings, *losses)
    shown.columns[0].justify = "left"
    for row in rows:
        if row.tally is None:
            shown.add_row(row.policy, *["n/a"] * (len(shown.columns) - 1))
        else:
            shown.add_row(row.policy, *_cells(row, row.tally, sample))
    return shown


def notes(rows: Sequence[Replayed], sample: Sample) -> list[str]:
    """What the table of policies means, and why a row is n/a."""
    return [
        f"{_SAVED[sample.cost.unit]} budget: the paper's count of steps. items dropped: trajectories that never reach "
        f"the trainer, of {sample.size * (sample.group_size or 0) or 'an unknown number'}. net saving: fall in the "
        "cost of an informative group. random: what to expect. Intervals 95 %, by task.",
        *(f"{row.policy}: n/a, {row.unknown}" for row in rows if row.unknown),
    ]


def sizes(rows: Sequence[tuple[int, Tally]]) -> Table:
    """One row a group size: the same gate on smaller groups."""
    shown = table("G", "groups", "zero-\nvar.", "cut", "TP", "FP", "precision", "recall", "net saving")
    for size, counts in rows:
        shown.add_row(
            str(size),
            str(counts.groups),
            str(counts.zero_variance),
            f"{counts.taken:g}",
            f"{counts.true_positives:g}",
            f"{counts.false_positives:g}",
            interval(counts.precision, 3),
            interval(counts.recall, 2),
            percent(counts.net_saving),
        )
    return shown


def describe(gate: Gate) -> list[str]:
    """A gate for a human: what it does, what it was fitted on, and what stands behind it."""
    size = "any size (not known)" if gate.group_size is None else f"{gate.group_size} trajectories"
    policy = ", ".join(f"{name} {value}" for name, value in _policy(gate) if value is not None) or "not known"
    steps = ", ".join(map(str, gate.steps))
    lines = [
        f"rule: cut a group when {gate.rule}",
        f"ask it when every trajectory of the group has taken {steps} steps or has ended; it cuts only what still runs",
        *(f"  {name}: {BY_NAME[name].meaning}" for name in gate.rule.signals),
        f"fitted on: groups of {size}, horizon {gate.horizon}; policy: {policy}; convention {gate.convention.value}",
        f"target precision {gate.target_precision:g}",
        *_evidence("in sample (flattering)", gate.evidence),
    ]
    lines += _evidence("out of sample (of the procedure, in folds by task)", gate.out_of_sample)
    if gate.certificate is None:
        lines.append("not certified: nothing guarantees its precision on other groups")
    else:
        held = gate.certificate
        lines.append(
            f"certified: precision >= {held.precision:g} with confidence {held.confidence:g} for new tasks of the same "
            f"policy, games and settings ({held.true_positives} of {held.cuts} cuts, one a task, were zero-variance; "
            f"p = {held.p_value:.2g}, at most {held.level:.2g})"
        )
    return [*lines, f"data: {gate.data[:16]}…; " + ", ".join(f"{name} {v}" for name, v in gate.versions.items())]


def _cells(row: Replayed, counts: Tally, sample: Sample) -> list[str]:
    some, tokens = counts.taken > 0, sample.cost.unit == "tokens"
    informative = counts.groups - counts.zero_variance
    lost = f"{counts.false_positives:.3g} of {informative}"
    return [
        f"{counts.taken:.4g}",
        f"{counts.true_positives:.4g}",
        f"{counts.false_positives:.4g}",
        interval(counts.precision, 3) if some else _NONE,
        interval(counts.recall, 2),
        "n/a" if counts.steps_saving is None else percent(counts.steps_saving),
        percent(counts.saving) if tokens else "n/a",
        f"{100 * counts.budget_safe:.1f}",
        f"{100 * counts.budget_raw:.1f}",
        "n/a" if row.items_dropped != row.items_dropped else f"{row.items_dropped:.4g}",
        lost,
        f"{counts.advantage_l2_kept:.4f}",
        percent(counts.net_saving),
    ]


def _policy(gate: Gate) -> tuple[tuple[str, str | None], ...]:
    return ("model", gate.model), ("adapter", gate.adapter), ("prompt", gate.prompt)


def _evidence(title: str, evidence: Evidence | None) -> list[str]:
    if evidence is None:
        return []
    unknown = float("nan")
    precision = Interval(
        unknown if evidence.precision is None else evidence.precision, evidence.precision_low, evidence.precision_high
    )
    net = Interval(
        unknown if evidence.net_saving is None else evidence.net_saving,
        unknown if evidence.net_saving_low is None else evidence.net_saving_low,
        unknown if evidence.net_saving_high is None else evidence.net_saving_high,
    )
    return [
        f"{title}: of {evidence.groups} groups of {evidence.tasks} tasks {evidence.taken} cut, "
        f"{evidence.true_positives} zero-variance; precision {interval(precision, 3)}; net saving {percent(net)}"
    ]
