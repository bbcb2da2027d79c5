"""What `sr replay --gated` prints: two arms of one experiment, side by side."""

from rich.table import Table

from calibrate.matched import RESAMPLES, Matched
from calibrate.printing import interval, percent, table


def head(found: Matched) -> list[str]:
    """How many groups are compared, and how many of the gate's cuts were right."""
    right = sum(cut.right for cut in found.cuts)
    return [
        f"matched: {found.groups} groups of {found.tasks} tasks"
        + (f"; {found.alone} groups of one run alone are left out" if found.alone else ""),
        f"the gate cut {len(found.cuts)}: {right} were zero-variance in the ungated run, precision "
        f"{interval(found.precision, 3)} of {len(found.cuts)}",
    ]


def cuts(found: Matched) -> Table:
    """One row a cut."""
    drawn = table("group", "K", "score", "threshold", "ungated", "cut was", "steps\nsaved", "tokens\nsaved")
    drawn.columns[0].justify = "left"
    for cut in found.cuts:
        drawn.add_row(
            cut.group_id,
            str(cut.step),
            f"{cut.score:.4g}",
            f"{cut.threshold:.4g}",
            cut.outcome.replace("_", "-"),
            "right" if cut.right else "wrong",
            str(cut.steps_saved),
            "n/a" if cut.tokens_saved is None else str(cut.tokens_saved),
        )
    return drawn


def totals(found: Matched) -> Table:
    """One row a cost."""
    drawn = table("all matched groups", "ungated", "gated", "saved")
    drawn.columns[0].justify = "left"
    for total in found.totals:
        drawn.add_row(total.name, f"{total.ungated:,.0f}", f"{total.gated:,.0f}", percent(total.saved))
    return drawn


def notes(found: Matched) -> list[str]:
    """What the tables mean."""
    lines = [
        "steps and tokens saved by a cut: those of the group in the ungated run less those in the gated one. saved: "
        f"over all matched groups, cut or not [95 %, bootstrap by task in pairs, {RESAMPLES:,} resamples]; groups that "
        "were not cut differ a little between the runs, as the engine's last bits do."
    ]
    tokens = [cut.tokens_saved for cut in found.cuts if cut.tokens_saved is not None]
    whole = next((total for total in found.totals if total.name == "tokens"), None)
    if tokens and whole is not None:
        lines.append(
            f"of the {whole.ungated - whole.gated:,.0f} tokens saved the cuts themselves account for {sum(tokens):,}"
        )
    if any(total.name == "seconds" for total in found.totals):
        lines.append(
            "seconds: time in which any group was being rolled out; it compares only where both runs had the same "
            "machine to themselves."
        )
    return lines
