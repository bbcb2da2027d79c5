"""A calibration: every kind of gate that was asked for, in sample and out of sample, and the one that is chosen."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from calibrate.fit import Search, apply, find
from calibrate.folds import FOLDS, OutOfSample, judged_in_folds, out_of_sample
from calibrate.intervals import NORMAL_QUANTILE, Interval
from calibrate.kinds import KINDS, GateKind
from calibrate.rules import Rule
from calibrate.sample import Bools, Sample
from calibrate.signals import TERMINATION_FRACTION
from calibrate.tally import Tally


@dataclass(frozen=True, eq=False)
class Judged:
    """One kind of gate: the rule found on all groups (None where none may stand) and its tally there, and the procedure
    out of sample (None with fewer than two tasks).
    """

    search: Search
    rule: Rule | None
    in_sample: Tally | None
    out_of_sample: OutOfSample | None

    @property
    def expected(self) -> Interval:
        """The net saving out of sample: what the kinds are compared by."""
        assert self.out_of_sample is not None
        return self.out_of_sample.tally.net_saving

    @property
    def cuts(self) -> bool:
        """Whether the procedure takes any group out of sample."""
        assert self.out_of_sample is not None
        return self.out_of_sample.tally.taken > 0

    @property
    def reaches(self) -> bool:
        """Whether the precision out of sample reaches the target."""
        assert self.out_of_sample is not None
        return self.out_of_sample.tally.precision.value >= self.search.target_precision


def judge(
    sample: Sample, search: Search, kind: GateKind, rows: Bools | None = None, tick: Callable[[], None] = lambda: None
) -> list[Judged]:
    """Judge the kind that is asked for, or all of them, the simplest first, on the groups in `rows` (N,) or on all.

    `search.kind` does not matter. The learned gate reads every signal that the sample holds, whatever `search.signals`;
    the OR-rule is left out where terminations are not known. `tick` is called before each fit, of which there are at
    most `fits(kind)`, the fits of `choice_out_of_sample` included.
    """
    kinds = KINDS if kind is GateKind.AUTO else [k for k in KINDS if k == kind.value]
    asked = [k for k in kinds if k != "either" or _terminations(sample)]
    return [_judge(sample, replace(search, kind=k), rows, tick) for k in asked]


def fits(kind: GateKind) -> int:
    """How many fits it takes to judge a kind: one on all groups and one a fold. For all kinds, and their choice in
    folds of its own, those of four kinds as often as there are folds and once more.
    """
    return FOLDS + 1 if kind is not GateKind.AUTO else len(KINDS) * (FOLDS + 1) ** 2


def choose(judged: list[Judged]) -> Judged | None:
    """The simplest kind whose net saving out of sample is within one standard error of the best; None where none has a
    rule. With fewer than two tasks, the simplest.

    Where some take a group out of sample at all, it is chosen among those alone; and where the precision of some of
    these reaches the target there, among those.
    """
    there = [one for one in judged if one.rule is not None]
    known = [one for one in there if one.out_of_sample is not None]
    if not known:
        return there[0] if there else None
    known = [one for one in known if one.cuts] or known  # one that cuts nothing has a net saving of 0, and is no gate
    known = [one for one in known if one.reaches] or known
    best = max(known, key=lambda one: one.expected.value)
    error = (best.expected.high - best.expected.low) / (2 * NORMAL_QUANTILE)
    least = best.expected.value - (error if error > 0 else 0.0)
    return next(one for one in known if one.expected.value >= least)


def choice_out_of_sample(sample: Sample, search: Search, tick: Callable[[], None] = lambda: None) -> OutOfSample | None:
    """The choice among all kinds, judged as the kinds are: in each fold, all are judged anew on the other folds and one
    is chosen there. None with fewer than two tasks.
    """

    def chosen(rows: Bools) -> Rule | None:
        best = choose(judge(sample, search, GateKind.AUTO, rows, tick))
        return None if best is None else best.rule

    return judged_in_folds(sample, search, chosen)


def _judge(sample: Sample, search: Search, rows: Bools | None, tick: Callable[[], None]) -> Judged:
    tick()
    if search.kind == "learned":
        search = replace(search, signals=tuple(sample.signals))
    found = find(sample, search, rows)
    return Judged(
        search=search,
        rule=None if found is None else found.rule,
        in_sample=None if found is None else apply(sample, found.rule, search.convention, rows),
        out_of_sample=out_of_sample(sample, search, rows, tick=tick),
    )


def _terminations(sample: Sample) -> bool:
    return TERMINATION_FRACTION.name in sample.signals
