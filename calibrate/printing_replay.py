"""The tables that `sr replay` prints, and a gate in words, as `sr gate show` prints it."""

from collections.abc import Sequence

from rich.table import Table

from calibrate.convention import Convention
from calibrate.gate import Evidence, Gate
from calibrate.intervals import Interval
from calibrate.outcomes import REWARD_TOLERANCE
from calibrate.printing import interval, percent, table
from calibrate.replay import Replayed
from calibrate.rules import Learned
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
    steps = ", ".join(map(str, gate.steps)) + (" step" if gate.steps == (1,) else " steps")
    lines = [
        f"rule: cut a group when {gate.rule}",
        f"ask it when every trajectory of the group has taken {steps} or has ended; it cuts only what still runs",
        *(f"  {name}: {BY_NAME[name].meaning}" for name in gate.rule.signals),
        *(_weights(gate.rule) if isinstance(gate.rule, Learned) else []),
        f"fitted on: groups of {size}, horizon {gate.horizon}; policy: {policy}; convention {gate.convention.value}"
        + _sampling(gate),
        f"target precision {gate.target_precision:g}",
        *_evidence("in sample (flattering)", gate.evidence, gate.convention),
        *_evidence("out of sample (of the procedure, in folds by task)", gate.out_of_sample, gate.convention),
    ]
    if gate.certificate is None:
        lines.append("not certified: nothing guarantees its precision on other groups")
    else:
        held = gate.certificate
        lines.append(
            f"certified: precision >= {held.precision:g} with confidence {held.confidence:g} for new tasks of the same "
            f"policy, games and settings, each counting once ({held.true_positives} of {held.cuts} cuts, one a task, "
            f"were zero-variance; "
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


def _weights(rule: Learned) -> list[str]:
    """The number that a learned rule holds against its threshold, and what it is made of."""
    return [
        "the number is the estimated chance that the group is informative, 1 / (1 + exp(-x)), where x is "
        f"{rule.intercept:.4g} plus the sum of weight * (signal - mean) / scale:",
        *(f"  {t.signal}: mean {t.mean:.4g}, scale {t.scale:.4g}, weight {t.weight:+.4g}" for t in rule.terms),
    ]


def _sampling(gate: Gate) -> str:
    """How its rollouts were sampled and their rewards compared, as far as there is something to say."""
    parts = [
        ("temperature", gate.temperature),
        ("top-p", gate.top_p),
        ("reward tolerance", None if gate.reward_tolerance == REWARD_TOLERANCE else gate.reward_tolerance),
    ]
    return "".join(f"; {name} {value:g}" for name, value in parts if value is not None)


def _evidence(title: str, evidence: Evidence | None, convention: Convention) -> list[str]:
    if evidence is None:
        return []
    precision = _interval(evidence.precision, evidence.precision_low, evidence.precision_high)
    net = _interval(evidence.net_saving, evidence.net_saving_low, evidence.net_saving_high)
    taken = f"{evidence.taken} cut"
    if convention is Convention.PAPER:
        over = evidence.taken - evidence.cut
        taken = f"{evidence.taken} flagged ({evidence.cut} of them cut{', the others were over' if over else ''})"
    lines = [
        f"{title}: of {evidence.groups} groups of {evidence.tasks} tasks {taken}, {evidence.true_positives} "
        f"zero-variance; precision {interval(precision, 3)}; net saving "
        f"{'n/a' if evidence.net_saving is None else percent(net)}"
    ]
    if evidence.net_saving is None or evidence.net_saving <= 0:
        lines.append(
            f"warning: {title.split(' (')[0]} the net saving is not above 0: the gate costs what it saves or more"
        )
    return lines


def _interval(value: float | None, low: float | None, high: float | None) -> Interval:
    """As gate.json holds it, with NaN for what is not known."""
    return Interval(*(float("nan") if number is None else number for number in (value, low, high)))
