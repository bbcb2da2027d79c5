"""The gate in a training run: where it comes from, what it does in an iteration, and what becomes of it when it drifts.

Its state is settled between iterations and never within one, so that no decision depends on which group came first.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from calibrate.gate import Gate, decide, load_for, make_gate
from calibrate.ladder import MIN_CUTS
from calibrate.outcomes import REWARD_TOLERANCE
from calibrate.rules import Learned, Rule, Threshold
from calibrate.signals import BY_NAME
from collect.errors import InputError
from collect.options import RUNS
from collect.store import read_run, scan
from collect.trajectory import Decision, Group, Step
from collect.watch import Shadow, Watcher
from train.audit import ALARM, Audit, Tally, audit_of, counted
from train.settings import Settings

Stage = Literal["off", "warmup", "shadow", "on"]
GATE_FILE = "gate.json"

_RULE: TypeAdapter[Rule] = TypeAdapter(Rule)


@dataclass(frozen=True)
class Gating:
    """The gate for the next iteration, and what was seen of it; `rule` is None while there is none.

    `target` is the precision that it should have. The audit counts groups from iteration `since` on.
    """

    stage: Stage
    target: float
    rule: Rule | None = None
    tally: Tally = field(default_factory=Tally)
    since: int = 1

    @property
    def acts(self) -> bool:
        """Whether it decides on groups."""
        return self.stage in ("shadow", "on")

    @property
    def alarm(self) -> bool:
        """Whether the audit says that the precision is under the target."""
        return self.tally.ran > 0 and self.tally.e_value(self.target) >= ALARM

    def audit(self, settings: Settings) -> Audit | None:
        """The audit of the next iteration; None where the gate cuts nothing or nothing is audited."""
        return audit_of(self.tally, settings.seed, settings.audit) if self.stage == "on" else None

    def as_json(self) -> dict[str, Any]:
        """As JSON values; `from_json` takes them back."""
        rule = None if self.rule is None else self.rule.model_dump(mode="json")
        return {
            "stage": self.stage,
            "target": self.target,
            "rule": rule,
            "tally": self.tally.as_json(),
            "since": self.since,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Gating":
        """What `as_json` gave."""
        rule = None if values["rule"] is None else _RULE.validate_python(values["rule"])
        return cls(values["stage"], values["target"], rule, Tally(**values["tally"]), values["since"])


@dataclass
class TimedWatcher:
    """A rule as the rollout loop takes it; `seconds` counts the time that its decisions took."""

    rule: Rule
    seconds: float = field(default=0.0, init=False)

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps K at which it decides."""
        return self.rule.steps

    def decide(self, prefixes: Sequence[Sequence[Step]], *, eligible: bool, step: int) -> Decision:
        """What the rule decides on a group."""
        begun = time.perf_counter()
        decision = decide(self.rule, prefixes, eligible=eligible, step=step)
        self.seconds += time.perf_counter() - begun
        return decision


def watcher_of(gating: Gating, timed: TimedWatcher | None) -> Watcher | None:
    """The rule as it acts: looking only, in shadow."""
    if timed is None:
        return None
    return Shadow(timed) if gating.stage == "shadow" else timed


# Where it comes from


def find_gate(settings: Settings, configuration: Mapping[str, Any]) -> tuple[Settings, tuple[str, ...]]:
    """The settings with the gate that `--threshold auto` takes: that of the frozen run, else the latest in `runs/`, of
    those that can decide on its groups; and lines that say so. A gate that was given, or is not wanted, stays as it is.
    """
    if (settings.arm == "off" and not settings.arms) or settings.threshold != "auto" or settings.gate is not None:
        return settings, ()
    found = sorted(RUNS.glob(f"*/{GATE_FILE}"), key=lambda path: (path.stat().st_mtime_ns, str(path)))
    if settings.from_run is not None and (own := Path(settings.from_run, GATE_FILE)).is_file():
        found.append(own)
    lines: list[str] = []
    for path in reversed(found):
        try:
            load_for(path, configuration)
        except InputError as error:
            lines = lines or [f"gate: the latest will not do ({error})"]
            continue
        return settings.model_copy(update={"gate": str(path)}), (*lines, f"gate: {path}")
    return settings, tuple(lines)


def begin(settings: Settings, configuration: Mapping[str, Any]) -> tuple[Gating, Gate | None, tuple[str, ...]]:
    """The gating of the first iteration, the gate it was read from if it was, and what there is to say of it.

    Raises:
        InputError: the gate cannot be read, or cannot decide on these groups.
    """
    if settings.arm == "off":
        return Gating("off", settings.target_precision), None, ()
    if settings.threshold != "auto":
        return _at_threshold(settings, configuration)
    if settings.gate is None and settings.from_run is not None:
        gate, lines = calibrated(Path(settings.from_run), settings)
        if gate is None:
            return Gating("off", settings.target_precision), None, lines
        return Gating(settings.arm, gate.target_precision, gate.rule), gate, lines
    if settings.gate is None:
        warmup = Gating("warmup", settings.target_precision)
        return warmup, None, (f"gate: none yet; calibrated on the first {settings.warmup_iterations} iterations",)
    gate, doubts = load_for(Path(settings.gate), configuration)
    return Gating(settings.arm, gate.target_precision, gate.rule), gate, (*doubts, f"gate: {gate.rule}")


def check_gate(settings: Settings, configuration: Mapping[str, Any]) -> None:
    """Raise the InputError with which `begin` would refuse the gate, in any of the arms; for before a run is begun."""
    for mode in settings.arms or (settings.gate_mode,):
        one = settings.model_copy(update={"arms": None, "gate_mode": mode})
        if one.threshold != "auto" or one.gate is not None:  # else there is none yet, and it will be made to fit
            begin(one, configuration)


def _at_threshold(settings: Settings, configuration: Mapping[str, Any]) -> tuple[Gating, Gate | None, tuple[str, ...]]:
    """A threshold that was given, with the signal and step of the gate, or those of the options."""
    threshold = float(settings.threshold)
    signal, step = settings.signal, settings.at_step
    doubts: tuple[str, ...] = ()
    if settings.gate is not None:
        gate, doubts = load_for(Path(settings.gate), configuration)
        if not isinstance(gate.rule, Threshold):
            raise InputError(f"--threshold {threshold:g}: {settings.gate} has several; give auto, or another gate")
        signal, step = gate.rule.signal, gate.rule.step
    # A third of the horizon, as in the paper, which cuts at 10 of 30.
    step = step or max(1, settings.horizon // 3)
    if step >= settings.horizon:
        raise InputError(f"--threshold {threshold:g}: there is no step K under --max-steps {settings.horizon}")
    known = BY_NAME[signal]
    if not known.lowest <= threshold <= known.highest:
        raise InputError(f"--threshold {threshold:g}: {signal} lies in {known.range}")
    rule = Threshold(signal=signal, step=step, threshold=threshold)
    return Gating(settings.arm, settings.target_precision, rule), None, (*doubts, f"gate: {rule}")


# What becomes of it


@dataclass(frozen=True)
class Change:
    """After an iteration: the `gating` of the next one; that of this one, with what was `seen` of it; the gate, if one
    was fitted now; and lines to say.
    """

    gating: Gating
    seen: Gating
    gate: Gate | None = None
    lines: tuple[str, ...] = ()


def after_iteration(gating: Gating, groups: Sequence[Group], iteration: int, settings: Settings, run: Path) -> Change:
    """What becomes of the gate after an iteration of these groups, which must be committed to the run."""
    if gating.stage == "warmup":
        if iteration < settings.warmup_iterations:
            return Change(gating, gating)
        gate, lines = calibrated(run, settings)
        if gate is None:
            return Change(replace(gating, stage="off"), gating, None, lines)
        return Change(Gating(settings.gate_mode, gating.target, gate.rule, since=iteration + 1), gating, gate, lines)
    if not gating.acts:
        return Change(gating, gating)
    assert gating.rule is not None
    audit = gating.audit(settings)
    certain = gating.stage == "shadow" or (audit is not None and audit.certain)
    seen = replace(gating, tally=counted(gating.tally, groups, gating.rule.steps[0], certain))
    if not seen.alarm or settings.on_drift == "off":
        return Change(seen, seen)
    measured = f"precision {_percent(seen.tally)} is under its target of {seen.target:g}"
    if settings.on_drift == "warn" or gating.stage == "shadow":
        return Change(seen, seen, lines=() if gating.alarm else (f"gate: drift: {measured}",))
    rule = tightened(gating.rule, _evidence(run, gating.since), gating.target)
    if rule is None:
        looks = Gating("shadow", gating.target, gating.rule, since=iteration + 1)
        line = f"gate: drift: {measured}; no stricter threshold reaches it, so nothing is cut any more"
        return Change(looks, seen, lines=(line,))
    stricter = Gating("on", gating.target, rule, since=iteration + 1)
    line = f"gate: drift: {measured}; tightened to {rule}; a certificate of the old one no longer holds"
    return Change(stricter, seen, lines=(line,))


def calibrated(run: Path, settings: Settings) -> tuple[Gate | None, tuple[str, ...]]:
    """The gate that `sr calibrate` would fit on the run's groups so far, or None; and its lines on which, or why."""
    from calibrate.calibration import choose, judge
    from calibrate.convention import Convention
    from calibrate.fit import Search, fit
    from calibrate.kinds import GateKind
    from calibrate.printing import verdict
    from calibrate.rollouts import read_rollouts

    try:
        sample = read_rollouts(run, REWARD_TOLERANCE)
    except InputError as error:
        return None, (f"no gate: {error}; the run goes on ungated",)
    columns = tuple(range(len(sample.steps))) if settings.at_step is None else (sample.column(settings.at_step),)
    search = Search(settings.target_precision, Convention.ELIGIBLE, columns, (settings.signal,))
    chosen = choose(judge(sample, search, GateKind.THRESHOLD))
    if chosen is None or chosen.rule is None or chosen.in_sample is None:
        return None, (f"no gate: {fit(sample, search, settings.signal).shortfall}; the run goes on ungated",)
    gate = make_gate(
        chosen.rule,
        sample,
        read_run(run),
        convention=Convention.ELIGIBLE,
        target_precision=settings.target_precision,
        evidence=chosen.in_sample,
        out_of_sample=chosen.out_of_sample.tally if chosen.out_of_sample else None,
        certificate=None,
    )
    return gate, tuple(verdict(chosen, chosen.out_of_sample, sample))


def tightened(rule: Rule, evidence: Sequence[tuple[float, bool]], target: float) -> Rule | None:
    """The rule with the loosest stricter threshold whose precision on the evidence reaches the target, if there is one.

    `evidence` is of the flagged groups that ran to their ends: score, and whether the group was zero-variance. As when
    fitting, at least `MIN_CUTS` of them must be flagged. Only rules of one threshold can be tightened.
    """
    if not isinstance(rule, Threshold | Learned):
        return None
    sign = BY_NAME[rule.signal].sign if isinstance(rule, Threshold) else 1
    ordered = sorted((sign * score, flat) for score, flat in evidence)
    hits = 0
    best = None
    for count, ((score, flat), (next_score, _)) in enumerate(pairwise(ordered), start=1):
        hits += flat
        if count >= MIN_CUTS and score < next_score and hits / count >= target:
            best = sign * (score + next_score) / 2
    return None if best is None else rule.model_copy(update={"threshold": best})


def _evidence(run: Path, since: int) -> list[tuple[float, bool]]:
    """Score and outcome of the flagged groups that ran to their ends, from iteration `since` on."""
    import polars as pl

    rewards = pl.col("rewards").list
    rows = (
        scan(run, "groups")
        .filter(pl.col("gate_audited").fill_null(value=False) & (pl.col("policy_version") >= since - 1))
        .select("group_id", "gate_score", (rewards.max() - rewards.min() <= REWARD_TOLERANCE).alias("flat"))
        .sort("group_id")
        .collect()
    )
    return list(zip(rows["gate_score"].to_list(), rows["flat"].to_list(), strict=True))


def _percent(tally: Tally) -> str:
    found = tally.precision()
    return f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}] of {tally.ran} audited"
