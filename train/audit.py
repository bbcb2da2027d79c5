"""The gate's precision and recall while it cuts, measured on flagged groups that are let run to their ends.

Whether a flagged group is let run is decided by a coin of its own after the gate has decided, so the groups that run
are a fair sample of those flagged. The first ones always run, so that a bad gate is found early. Each group counts with
the probability with which it was let run.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from scipy.special import betainc, betaln

from calibrate.intervals import Interval, proportion
from collect.trajectory import Decision, Group
from train.composition import coin, is_flat, was_cut

ALWAYS = 20  # so many flagged groups at least are let run before the coin decides
ALARM = (
    20.0  # an e-value of 1/δ: where the gate is as precise as it should be, an alarm has a chance of at most δ = 5 %
)


@dataclass(frozen=True, slots=True)
class Tally:
    """What was seen of a gate since the audit began; groups count where there was something left to cut.

    `flagged` groups, of which `ran` to their ends and `flat` of those were zero-variance; of these three, `sampled`,
    `sampled_ran` and `sampled_flat` were flagged while the coin decided (the others ran for sure). `passed_flat` counts
    the zero-variance groups that the gate did not flag.
    """

    flagged: int = 0
    ran: int = 0
    flat: int = 0
    sampled: int = 0
    sampled_ran: int = 0
    sampled_flat: int = 0
    passed_flat: int = 0

    def precision(self) -> Interval:
        """Share of zero-variance groups among the flagged, with its exact (Clopper-Pearson) 95 % interval."""
        return proportion(self.flat, self.ran)

    def recall(self) -> Interval:
        """Share of the zero-variance groups that could be cut which the gate flagged, with a 95 % interval.

        Groups that ran for sure have weight 1. Those that the coin let run stand for all that it was tossed for: the
        weights 1/ε, scaled to their known number. The interval is that of their precision, carried through; it is about
        the groups of this run. NaN where nothing is known.
        """
        hits, rate = self.flat - self.sampled_flat, proportion(self.sampled_flat, self.sampled_ran)
        unknown = self.sampled - self.sampled_ran

        def share(of_unknown: float) -> float:
            found = hits + self.sampled_flat + (unknown * of_unknown if unknown else 0.0)
            every = found + self.passed_flat
            return found / every if every else float("nan")

        return Interval(share(rate.value), share(rate.low), share(rate.high))

    def e_value(self, target: float) -> float:
        """Evidence against "the precision is at least `target`", valid whenever one looks; see `e_value`."""
        return e_value(self.flat, self.ran, target)

    def as_json(self) -> dict[str, int]:
        """The counts, to be given to the constructor again."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Audit:
    """How flagged groups are audited in an iteration: for sure, or each with `probability`.

    Which of the two holds is settled before the iteration, so that it does not depend on which group comes first.
    """

    seed: int
    probability: float
    certain: bool

    def review(self, group: str, decision: Decision) -> Decision:
        """Let the group run that the gate would cut, if it is its turn; the decision that holds."""
        if not decision.enforced:
            return decision
        if not self.certain and coin(self.seed, "audit", group) >= self.probability:
            return decision
        return replace(decision, enforced=False, audited=True)


def audit_of(tally: Tally, seed: int, probability: float) -> Audit | None:
    """The audit of the next iteration; None with probability 0, by which nothing is audited."""
    return Audit(seed, probability, certain=tally.ran < ALWAYS) if probability > 0 else None


def counted(tally: Tally, groups: Iterable[Group], first_step: int, certain: bool) -> Tally:
    """The tally with an iteration's groups.

    `first_step` is the first at which the gate decides; `certain` says that every flagged group ran, by no coin.
    """
    added = dict.fromkeys(asdict(tally), 0)
    for group in groups:
        if group.decision is None:
            continue
        seen: dict[str, Any] = {}
        if flagged_in_time(group):
            ran, flat = not was_cut(group), is_flat(group)
            seen = {"flagged": 1, "ran": ran, "flat": flat}
            if not certain:
                seen |= {"sampled": 1, "sampled_ran": ran, "sampled_flat": flat}
        elif is_flat(group) and _ran_past(group, first_step):
            seen = {"passed_flat": 1}
        for name, count in seen.items():
            added[name] += int(count)
    return Tally(**{name: count + added[name] for name, count in asdict(tally).items()})


def flagged_in_time(group: Group) -> bool:
    """Whether the gate flagged the group while there was something to cut."""
    decision = group.decision
    if decision is None or not decision.flagged:
        return False
    return decision.enforced or decision.audited or _ran_past(group, decision.step)


def _ran_past(group: Group, step: int) -> bool:
    return any(len(trajectory.steps) > step for trajectory in group.trajectories)


def e_value(successes: int, trials: int, target: float) -> float:
    """Evidence against a success rate of at least p = `target`, from x successes in m trials.

    B(x + 1, m - x + 1) · I_p(x + 1, m - x + 1) / (p · p^x (1 - p)^(m - x)), I the regularised incomplete beta function:
    the likelihood of a rate drawn uniformly from [0, p], over that of p. While the true rate is at least p, the chance
    that it ever reaches 1/δ is at most δ, however often one looks (Ville's inequality). 1 without a trial.
    """
    failures = trials - successes
    if target == 1:
        return float("inf") if failures else 1 / (successes + 1)
    with np.errstate(divide="ignore"):
        log = (
            betaln(successes + 1, failures + 1)
            + np.log(betainc(successes + 1, failures + 1, target))
            - (successes + 1) * np.log(target)
            - failures * np.log1p(-target)
        )
        return float(np.exp(min(log, 700.0)))
