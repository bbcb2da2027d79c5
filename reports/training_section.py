"""The part of the page about training runs."""

from collections.abc import Sequence

from reports import training_figures as figures
from reports import training_tables as tables
from reports.drawing import Figure
from reports.page import Section, Tile
from reports.pairs import Difference, differences, pairs
from reports.tables import Sheet
from reports.training_log import Log


def drawn_from(logs: Sequence[Log]) -> tuple[Section, list[Figure], list[Sheet]]:
    """The section, its figures, and its tables that no figure shows; the logs come in order."""
    found = differences(pairs(logs))
    iterations, evaluations = tables.iterations(logs), tables.evaluations(logs)
    rows = iterations.rows
    made = [figures.paired(tables.paired(found))] if found else []
    if evaluations is not None:
        made.append(figures.success(evaluations))
    made.append(figures.wall_clock(iterations))
    if rows["tokens_so_far"].count():
        made.append(figures.tokens(iterations))
    for name, figure in (
        ("gradient_norm", figures.gradient_norm),
        ("zero_advantage_share", figures.zero_advantage),
        ("reward_mean", figures.reward),
        ("gate_precision", figures.live_precision),
    ):
        if rows[name].count():
            made.append(figure(iterations))
    made += [figures.phases(tables.phases(logs)), figures.cuts(iterations)]
    section = Section(
        name="training",
        title="Training",
        lead=[f"Runs: {'; '.join(f'{log.name} ({log.iterations.height} iterations)' for log in logs)}."],
        warnings=_warnings(logs),
        tiles=_tiles(logs, found),
    )
    return section, made, [tables.arms(logs)]


def _warnings(logs: Sequence[Log]) -> list[str]:
    told = []
    restored = {log.name: int(log.iterations["groups_restored"].sum() or 0) for log in logs}
    if any(restored.values()):
        names = "; ".join(f"{name} ({count} groups)" for name, count in restored.items() if count)
        told.append(f"Interrupted and resumed, so that part of the rollouts' time is not counted: {names}.")
    if len(logs) < 2:
        return told
    matched = pairs(logs)
    if not matched:
        return [*told, "No gated run has an ungated one of the same seed beside it, so nothing is compared in pairs."]
    alone = [log.name for log in logs if not log.ungated and all(log is not pair.gated for pair in matched)]
    if alone:
        told.append(f"Without an ungated run of the same seed, and in no pair: {'; '.join(alone)}.")
    return told


def _tiles(logs: Sequence[Log], found: Sequence[Difference]) -> list[Tile]:
    made = []
    for log in (log for log in logs if not log.ungated):
        cut, groups = int(log.iterations["groups_cut"].sum()), int(log.iterations["groups"].sum())
        made.append(Tile(f"cut: {log.name}", f"{cut:,}", f"of {groups:,} groups ({100 * cut / max(1, groups):.1f} %)"))
    for one in found:
        if one.measure not in ("wall-clock saved", "gradient norm, ratio of means"):
            continue
        saved = one.measure == "wall-clock saved"
        name = f"{'wall-clock saved' if saved else 'gradient norm, ratio'}: {one.arm}, " + (
            "all seeds" if one.seed is None else f"seed {one.seed}"
        )
        low, value, high = (
            number * (100 if saved else 1) for number in (one.value.low, one.value.value, one.value.high)
        )
        form = ".1f" if saved else ".2f"
        told = "[n/a]" if low != low else f"[{low:{form}}, {high:{form}}]"
        made.append(Tile(name, f"{value:.2f}{' %' * saved}", f"{told}, {one.n} pairs of iterations"))
    return made
