"""The rule that a report shows a run by: its gate, or, where none was fitted, the nearest to one."""

from dataclasses import dataclass
from pathlib import Path

from calibrate.convention import Convention
from calibrate.fit import Fit, Search, fit
from calibrate.gate import Gate, load
from calibrate.ladder import MIN_CUTS
from calibrate.rules import Rule, Sequential, Threshold
from calibrate.sample import Sample
from calibrate.signals import PREFIX_EDIT_DISTANCE

TARGET_PRECISION = 0.9  # where no gate says another
_GATE_FILE = "gate.json"


@dataclass(frozen=True, eq=False)
class Focus:
    """What is looked at: a signal at one step and a threshold there (None where no group can be cut at any step).

    `rule` is what would be done to each group. `gate` is the run's own; where it has none, the rule is only the best
    single threshold. `origin` names it, `told` says in a sentence where it comes from. `per_step` is the table of the
    signal's best threshold at each step; `eligible` counts the groups that can be cut at the step, and `all_eligible`
    says whether those are all.
    """

    signal: str
    step: int
    threshold: float | None
    rule: Rule | None
    gate: Gate | None
    search: Search
    per_step: Fit
    origin: str
    told: str
    eligible: int
    all_eligible: bool

    @property
    def label(self) -> str:
        """What the rule is called beside other policies."""
        return "rule shown" if self.gate is None else "gate"


def find_gate(run: Path) -> Gate | None:
    """The gate.json of a run, if there is one."""
    return load(run / _GATE_FILE) if (run / _GATE_FILE).exists() else None


def focus(sample: Sample, gate: Gate | None) -> Focus:
    """What to show of a sample: the gate if it can be asked about these groups, else the best single threshold."""
    if gate is not None and not _can_be_asked(gate, sample):
        gate = None
    signal = PREFIX_EDIT_DISTANCE.name
    if gate is not None and gate.rule.kind != "learned":
        signal = gate.rule.signals[0]
    search = Search(
        gate.target_precision if gate else TARGET_PRECISION,
        Convention.ELIGIBLE,
        tuple(range(len(sample.steps))),
        (signal,),
    )
    per_step = fit(sample, search, signal)
    rule, step, origin, told = _shown(sample, gate, per_step)
    threshold = thresholds(rule).get(step)
    running = sample.eligible[:, sample.column(step)]
    return Focus(
        signal, step, threshold, rule, gate, search, per_step, origin, told, int(running.sum()), bool(running.all())
    )


def _can_be_asked(gate: Gate, sample: Sample) -> bool:
    """Whether these groups have the gate's steps, and the signals that it reads, which an imported run may lack."""
    return set(gate.steps) <= set(sample.steps.tolist()) and set(gate.rule.signals) <= sample.signals.keys()


def thresholds(rule: Rule | None) -> dict[int, float]:
    """The thresholds of a rule on the signal that is drawn, by step; none for a learned one, which draws no line."""
    match rule:
        case Sequential():
            return {stage.step: stage.threshold for stage in rule.stages}
        case None:
            return {}
    return {} if rule.kind == "learned" else {rule.step: rule.threshold}


def _shown(sample: Sample, gate: Gate | None, per_step: Fit) -> tuple[Rule | None, int, str, str]:
    """The rule, its step, its name, and where it comes from."""
    if gate is not None:
        where = "these very groups" if gate.fitted_on(sample) else "other groups than these"
        return gate.rule, gate.step, "the gate", f"It is the gate of the run, fitted on {where}."
    best, target = _nearest(per_step), per_step.search.target_precision
    if best is None:
        return None, int(sample.steps[0]), "no rule", ""
    if per_step.shortfall:
        told = f"No threshold reaches a precision of {target:g} with at least {MIN_CUTS} cuts; it is the most precise."
        return best, best.step, "the most precise threshold", told
    told = f"No gate was fitted; it is the best threshold of a precision of at least {target:g}."
    return best, best.step, "the best threshold", told


def _nearest(table: Fit) -> Threshold | None:
    """The best threshold where one reaches the target; else the most precise with enough cuts, as `Fit` tells of it."""
    there = [(step, step.best) for step in table.steps if step.best is not None and step.best.taken > 0]
    if not there:
        return None
    reaching = [pair for pair in there if pair[0].reaches]
    enough = [pair for pair in there if pair[1].taken >= MIN_CUTS]
    if reaching:
        step, _ = max(reaching, key=lambda pair: (pair[1].net_saving.value, pair[1].precision.value, -pair[0].step))
    else:
        step, _ = max(
            enough or there, key=lambda pair: (pair[1].precision.value, pair[1].net_saving.value, -pair[0].step)
        )
    return Threshold(signal=table.signal, step=step.step, threshold=step.threshold)
