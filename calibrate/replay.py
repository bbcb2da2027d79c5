"""What each policy of cutting would have done on groups that were rolled out to their ends."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from calibrate.convention import Convention
from calibrate.outcomes import advantage_l2_kept
from calibrate.rules import Rule
from calibrate.sample import Bools, Sample
from calibrate.tally import Cuts, Tally, tally


@dataclass(frozen=True, eq=False)
class Replayed:
    """One policy: what it did (None where the log cannot tell, for the reason in `unknown`) and how many of the
    training items, which are trajectories, never reach the trainer.
    """

    policy: str
    tally: Tally | None
    items_dropped: float
    unknown: str = ""


def replay(sample: Sample, rules: Mapping[str, Rule]) -> list[Replayed]:
    """Every policy on the groups of a sample, the gates by their names; real cuts of eligible groups are counted.

    The policies without a gate of their own (random cuts, the oracle) cut at the steps of the first rule, random ones
    as often as it does. The post-filter (as in DAPO) rolls everything out and drops zero-variance groups from the
    batch. The skip by history (as in GRESO) leaves out the visit to a game after one that was zero-variance, and then
    looks at the game again.
    """
    base = next(iter(rules.values()))
    everyone, nobody = np.ones(sample.size, np.bool_), np.full(sample.size, -1)
    none = Cuts.at(sample, nobody, everyone, Convention.ELIGIBLE)
    oracle = _oracle(sample, sample.column(base.steps[0]))
    policies: list[tuple[str, Cuts, bool]] = [
        ("none", none, False),
        ("random at the same rate", _random(sample, base), False),
        (f"oracle at K = {base.steps[0]}", oracle, False),
        ("post-filter", none, True),
    ]
    rows = [_row(sample, name, cuts, filtered) for name, cuts, filtered in policies]
    rows.append(_by_history(sample))
    for name, rule in rules.items():
        cuts = _gated(sample, rule)
        rows += [_row(sample, name, cuts, False), _row(sample, f"{name} + post-filter", cuts, True)]
    return rows


def _row(sample: Sample, policy: str, cuts: Cuts, filtered: bool) -> Replayed:
    counts = tally(sample, cuts)
    dropped = np.maximum(cuts.taken, sample.zero_variance) if filtered else cuts.taken
    if filtered:
        counts = replace(counts, advantage_l2_kept=advantage_l2_kept(sample.reward_variance, 1 - dropped))
    return Replayed(policy, counts, float(dropped.sum() * (sample.group_size or np.nan)))


def _gated(sample: Sample, rule: Rule) -> Cuts:
    candidates = sample.counted(sample.column(rule.steps[0]), Convention.ELIGIBLE)
    return Cuts.at(sample, rule.flags(sample), candidates, Convention.ELIGIBLE)


def _oracle(sample: Sample, column: int) -> Cuts:
    candidates = sample.eligible[:, column]
    at = np.where(sample.zero_variance & candidates, column, -1)
    return replace(Cuts.at(sample, at, candidates, Convention.ELIGIBLE), certain=True)


def _random(sample: Sample, rule: Rule) -> Cuts:
    """Cut any eligible group, at each step of the rule with the chance that makes as many cuts: what to expect."""
    flags = rule.flags(sample)
    taken, budget = np.zeros(sample.size), np.zeros(sample.size)
    saved, steps_saved = np.zeros(sample.size), np.zeros(sample.size)
    for step in rule.steps:
        column = sample.column(step)
        eligible = sample.eligible[:, column]
        chance = ((flags == column) & eligible).sum() / max(1, eligible.sum()) * eligible
        taken += chance
        saved += chance * sample.cost.after[:, column]
        budget += chance * (1 - step / sample.horizon)
        if sample.step_cost is not None:
            steps_saved += chance * sample.step_cost.after[:, column]
    candidates = sample.eligible[:, sample.column(rule.steps[0])]
    return Cuts(
        candidates=candidates,
        flagged=taken > 0,
        live=taken > 0,
        taken=np.minimum(taken, 1.0),
        saved=saved,
        steps_saved=None if sample.step_cost is None else steps_saved,
        budget=budget,
        certain=True,
    )


def _by_history(sample: Sample) -> Replayed:
    name = "pre-rollout skip by history"
    if len(sample.task_names) == sample.size:
        return Replayed(name, None, np.nan, "every game was visited once, so there is no history")
    skipped = _skipped(sample)
    steps = sample.step_cost
    cuts = Cuts(
        candidates=_revisited(sample),
        flagged=skipped,
        live=skipped,
        taken=skipped.astype(np.float64),
        saved=np.where(skipped, sample.cost.total, 0),
        steps_saved=None if steps is None else np.where(skipped, steps.total, 0),
        budget=skipped.astype(np.float64),
    )
    return _row(sample, name, cuts, False)


def _visits(sample: Sample) -> NDArray[np.int64]:
    """The number of each group's visit to its game: what follows the last # of its id, else 0. (N,)."""
    told = sample.group_ids.str.extract(r"#(\d+)$", 1).cast(int, strict=False)
    return told.fill_null(0).to_numpy().astype(np.int64)


def _skipped(sample: Sample) -> Bools:
    skipped = np.zeros(sample.size, np.bool_)
    last: dict[int, bool] = {}
    for place in np.lexsort((_visits(sample), sample.task)).tolist():
        task = int(sample.task[place])
        skipped[place] = last.get(task, False)
        last[task] = bool(sample.zero_variance[place]) and not skipped[place]
    return skipped


def _revisited(sample: Sample) -> Bools:
    order = np.lexsort((_visits(sample), sample.task))
    revisited = np.zeros(sample.size, np.bool_)
    revisited[order[1:]] = np.diff(sample.task[order]) == 0
    return revisited
