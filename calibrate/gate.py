"""The gate: a rule, the evidence for it, and how it decides on live groups.

gate.json is a gate written out. It can be read without any of this project; `load` reads it back and checks it.

    gate = load(Path("gate.json"))
    decision = gate.decide([["look", "go to desk 1"], ["look", "go to shelf 2"]], eligible=True)
    if decision.enforced:
        ...  # stop the group here
"""

import json
import math
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from itertools import pairwise
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from calibrate.convention import Convention
from calibrate.intervals import Interval
from calibrate.outcomes import REWARD_TOLERANCE
from calibrate.prefixes import Prefix
from calibrate.rules import MOST_STEPS, Rule
from calibrate.signals import BY_NAME
from collect.errors import InputError
from collect.files import replacing
from collect.printable import printable_line
from collect.trajectory import Decision, Step

if TYPE_CHECKING:
    from calibrate.sample import Sample
    from calibrate.tally import Tally
    from collect.store import RunInfo

FORMAT_VERSION = 2

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0, le=2**53)]  # as far as doubles hold every whole number
AnyPrefix = Prefix | Sequence[Step] | Sequence[str]

_STRICT = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
_ROUNDING = 1e-9  # how far numbers that say the same may differ
_RELATIVE = 1e-6  # and how far in relation to each other, where they may be tiny


class Evidence(BaseModel):
    """What a gate did to some groups. Bounds are 95 % intervals whose unit is the task.

    `taken` groups are those that precision counts: cut ones, or flagged ones under the paper's convention. `population`
    is the number of groups that could have been taken; `recall` is of the zero-variance groups among them,
    `recall_of_all` of all. `saving` is a share of the sampled tokens, of the steps taken or of the step budget, as
    `saving_unit` says. A number is null where the groups cannot give it; `net_saving` also where it is minus infinity,
    as every informative group is dropped.
    """

    model_config = _STRICT

    groups: Count
    tasks: Count
    zero_variance: Count
    population: Count
    taken: Count
    cut: Count
    true_positives: Count
    false_positives: Count
    precision: Share | None
    precision_low: Share
    precision_high: Share
    recall: Share | None
    recall_of_all: Share | None
    saving_unit: Literal["tokens", "steps", "budget"]
    saving: Share
    saving_low: float | None
    saving_high: float | None
    net_saving: float | None
    net_saving_low: float | None
    net_saving_high: float | None
    break_even_precision: float | None
    advantage_l2_kept: Share

    @model_validator(mode="after")
    def _adds_up(self) -> "Evidence":
        for name in ("tasks", "zero_variance", "population", "taken", "cut"):
            _in_order(self, name, "groups")
        if self.groups and not self.tasks:
            raise ValueError("there are groups, and no tasks")
        _in_order(self, "true_positives", "zero_variance")
        _in_order(self, "cut", "taken")
        _in_order(self, "taken", "population")
        if self.true_positives + self.false_positives != self.taken:
            raise ValueError("true_positives and false_positives do not add up to taken")
        if self.taken == 0 and self.precision is not None:
            raise ValueError("precision is a number, and nothing is taken")
        if self.taken and not _same(self.precision, self.true_positives / self.taken):
            raise ValueError("precision is not true_positives / taken")
        for name in ("precision", "saving", "net_saving"):
            low, value, high = (getattr(self, part) for part in (f"{name}_low", name, f"{name}_high"))
            known = [number for number in (low, value, high) if number is not None]
            if any(a > b + _ROUNDING for a, b in pairwise(known)):
                raise ValueError(f"{name} lies outside {name}_low to {name}_high")
        self._check_recall()
        return self

    def _check_recall(self) -> None:
        of_all = self.true_positives / self.zero_variance if self.zero_variance else None
        if self.recall_of_all != of_all and (of_all is None or not _same(self.recall_of_all, of_all)):
            raise ValueError("recall_of_all is not true_positives / zero_variance")
        if bool(self.recall) != bool(self.true_positives):
            raise ValueError("recall and true_positives are not 0 together")
        if self.recall is not None and self.recall + _ROUNDING < (of_all or 0):
            raise ValueError("recall, of some of the zero-variance groups, is under recall_of_all")

    @classmethod
    def of(cls, counts: "Tally", sample: "Sample") -> "Evidence":
        """The tally of a sample, as gate.json holds it."""
        return cls(
            groups=counts.groups,
            tasks=counts.tasks,
            zero_variance=counts.zero_variance,
            population=counts.population,
            taken=int(counts.taken),
            cut=counts.cut,
            true_positives=int(counts.true_positives),
            false_positives=int(counts.false_positives),
            **_bounds("precision", counts.precision),
            recall=_number(counts.recall.value),
            recall_of_all=_number(counts.recall_of_all.value),
            saving_unit=sample.cost.unit,
            **_bounds("saving", counts.saving),
            **_bounds("net_saving", counts.net_saving),
            break_even_precision=_number(counts.break_even_precision),
            advantage_l2_kept=counts.advantage_l2_kept,
        )


class Certificate(BaseModel):
    """The guarantee: with probability `confidence` over the calibration tasks, no gate of a true precision under
    `precision` is certified, for new groups of the same policy, games and settings.

    It rests on an exact binomial test: of `cuts` groups, one a task, `true_positives` were zero-variance; the p-value,
    P(X >= true_positives) for X ~ Binomial(cuts, precision), is at most `level`, which allows for the `tests` that were
    made: Holm's procedure divides 1 - confidence by 1 to `tests`.
    """

    model_config = _STRICT

    confidence: Annotated[float, Field(gt=0, lt=1)]
    precision: Annotated[float, Field(gt=0, lt=1)]
    tasks: Count
    cuts: Count
    true_positives: Count
    p_value: Share
    level: Share
    tests: Annotated[Count, Field(ge=1)]

    @model_validator(mode="after")
    def _adds_up(self) -> "Certificate":
        _in_order(self, "true_positives", "cuts")
        _in_order(self, "cuts", "tasks")
        _in_order(self, "p_value", "level")
        alpha = 1 - self.confidence
        if not alpha / self.tests * (1 - _RELATIVE) <= self.level <= alpha * (1 + _RELATIVE):
            raise ValueError("level is not 1 - confidence divided by one of 1 to tests")
        if not math.isclose(self.p_value, self._tail(), rel_tol=_RELATIVE):
            raise ValueError("p_value is not that of the binomial test")
        return self

    def _tail(self) -> float:
        from scipy.stats import binom  # slow to import, and most gates are not certified

        return float(binom.sf(self.true_positives - 1, self.cuts, self.precision))


class Gate(BaseModel):
    """A rule, and what it was fitted on.

    `group_size`, `horizon`, `model`, `adapter`, `prompt`, `temperature` and `top_p` say what rollouts those were (null
    where a table of signals did not say), `data` is the SHA-256 of what the fit read, and `groups` that of which groups
    those were. Rewards that differ by no more than `reward_tolerance` counted as equal; it is null where a table said
    the outcomes itself. `evidence` is the gate on the groups that it was chosen on, `out_of_sample` the whole procedure
    on groups that it did not see. Without a `certificate` nothing guarantees the precision on other groups.
    """

    model_config = _STRICT

    format_version: Literal[2] = 2
    rule: Rule
    group_size: Annotated[int, Field(ge=2, le=MOST_STEPS)] | None
    horizon: Annotated[int, Field(ge=2, le=MOST_STEPS)]
    model: str | None
    adapter: str | None
    prompt: str | None
    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    reward_tolerance: Annotated[float, Field(ge=0)] | None = REWARD_TOLERANCE
    convention: Convention
    target_precision: Annotated[float, Field(gt=0, le=1)]
    certified: bool = False
    certificate: Certificate | None = None
    evidence: Evidence
    out_of_sample: Evidence | None = None
    data: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    groups: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    versions: dict[str, str]

    @model_validator(mode="after")
    def _as_certified(self) -> "Gate":
        if self.certified != (self.certificate is not None):
            raise ValueError("certified says one thing and certificate another")
        if self.certificate is not None and not _same(self.certificate.precision, self.target_precision):
            raise ValueError("the certificate is for another precision than target_precision")
        if self.certificate is not None and self.convention is Convention.PAPER:
            raise ValueError("a certificate is of groups that are cut, and the paper's convention counts flagged ones")
        if self.certificate is not None and self.certificate.tasks > self.evidence.tasks:
            raise ValueError("the certificate is of more tasks than the evidence")
        return self

    @model_validator(mode="after")
    def _as_counted(self) -> "Gate":
        for name, evidence in (("evidence", self.evidence), ("out_of_sample", self.out_of_sample)):
            if self.convention is Convention.ELIGIBLE and evidence is not None and evidence.cut != evidence.taken:
                raise ValueError(f"{name} takes other groups than it cuts, and the convention is eligible")
        return self

    @model_validator(mode="after")
    def _before_the_horizon(self) -> "Gate":
        if self.steps[-1] >= self.horizon:
            raise ValueError(f"its step {self.steps[-1]} is not under the horizon of {self.horizon}")
        return self

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps K at which a group is to be decided, ascending; it is cut at the first that says so."""
        return self.rule.steps

    @property
    def step(self) -> int:
        """The first of `steps`, and for most gates the only one."""
        return self.rule.steps[0]

    def fitted_on(self, sample: "Sample") -> bool:
        """Whether these are the very groups that it was fitted on, at whatever steps; so measured on them it is
        flattered.
        """
        return self.data == sample.fingerprint() if self.groups is None else self.groups == sample.groups_fingerprint()

    def differences(self, configuration: Mapping[str, object]) -> list[str]:
        """In what rollouts of this configuration (as in a run.json) are of another kind than those that it was fitted
        on, as far as both are known; such as "fitted on rollouts with model A, not B".
        """
        same = ("group_size", "horizon", "model", "prompt", "temperature", "top_p")
        pairs = [(name, getattr(self, name), configuration.get(name)) for name in same]
        if self.model is not None and "adapter" in configuration:  # where the model is known, so is that there was none
            pairs.append(("adapter", self.adapter or "none", configuration["adapter"] or "none"))
        known = [(name, _shown(fitted), _shown(here)) for name, fitted, here in pairs if None not in (fitted, here)]
        return [f"fitted on rollouts with {name} {fitted}, not {now}" for name, fitted, now in known if fitted != now]

    def decide(self, prefixes: Sequence[AnyPrefix], *, eligible: bool, step: int | None = None) -> Decision:
        """Decide on one live group from its trajectories so far, at the gate's step K, or at `step`, one of `steps`.

        A prefix is a `Prefix`, the steps of the rollout loop, or, for a gate that reads nothing else, the actions sent
        to the game. Only the first K steps count, and a trajectory that ended earlier has fewer. `eligible` says
        whether at least one trajectory is still running after K steps: only then is there something to cut. The
        decision is enforced when the group is flagged and eligible.

        Raises:
            InputError: the group has another size than the gate was fitted on, the gate reads what the prefixes lack,
                it has no such step, it is asked before a trajectory has taken it, or an argument is of another kind.
        """
        step = self.step if step is None else step
        return decide(self.rule, prefixes, eligible=eligible, step=step, group_size=self.group_size)


def decide(
    rule: Rule, prefixes: Sequence[AnyPrefix], *, eligible: bool, step: int, group_size: int | None = None
) -> Decision:
    """What a rule decides on one live group; `Gate.decide` says what the arguments are and what is raised."""
    if not isinstance(step, Integral) or isinstance(step, bool) or step not in rule.steps:
        told = printable_line(str(step))
        raise InputError(f"the gate decides at K = {', '.join(map(str, rule.steps))}, not {told}; give one of these")
    if not isinstance(eligible, bool | np.bool_):
        raise InputError(
            f"eligible is of type {type(eligible).__name__}; give one bool: whether at least one trajectory still runs"
        )
    step = int(step)
    read = _read(prefixes, group_size)
    for field in ("actions", *dict.fromkeys(field for name in rule.signals for field in BY_NAME[name].reads)):
        for place, prefix in enumerate(read):
            if fault := prefix.fault(field, step):
                raise InputError(f"the gate reads {field}, and prefixes[{place}] will not do: {fault}")
    if eligible and all(len(prefix.actions) < step for prefix in read):
        raise InputError(
            f"eligible says that a trajectory still runs, and none has taken {step} steps; ask the gate when each has "
            "taken them or ended"
        )
    values = {name: BY_NAME[name].at_step(read, step) for name in rule.signals}
    score, threshold, flagged = rule.judge(values, step)
    return Decision(step, float(score), threshold, bool(flagged), enforced=bool(flagged) and bool(eligible))


def versions() -> dict[str, str]:
    """Versions of what computes and compares signals."""
    packages = ("selective-rollout", "numpy", "rapidfuzz")
    return {"python": platform.python_version(), **{package: version(package) for package in packages}}


def make_gate(
    rule: Rule,
    sample: "Sample",
    run: "RunInfo | None",
    *,
    convention: Convention,
    target_precision: float,
    evidence: "Tally",
    out_of_sample: "Tally | None",
    certificate: Certificate | None,
    reward_tolerance: float | None = REWARD_TOLERANCE,
) -> Gate:
    """A rule with its evidence, as gate.json holds it; `run` is what its rollouts came from, if any.

    `reward_tolerance` is the one that the sample's outcomes were decided with; None where they came decided.
    """
    configuration = run.configuration if run else {}
    model, adapter, prompt = (_text(configuration.get(name)) for name in ("model", "adapter", "prompt"))
    return Gate(
        rule=rule,
        group_size=sample.group_size,
        horizon=sample.horizon,
        model=model,
        adapter=adapter,
        prompt=prompt,
        temperature=_real(configuration.get("temperature")),
        top_p=_real(configuration.get("top_p")),
        reward_tolerance=reward_tolerance,
        convention=convention,
        target_precision=target_precision,
        certified=certificate is not None,
        certificate=certificate,
        evidence=Evidence.of(evidence, sample),
        out_of_sample=None if out_of_sample is None else Evidence.of(out_of_sample, sample),
        data=sample.fingerprint(),
        groups=sample.groups_fingerprint(),
        versions=versions(),
    )


def save(gate: Gate, path: Path) -> None:
    """Write gate.json, whole or not at all; InputError when the place cannot be written to."""
    try:
        with replacing(path) as temporary:
            temporary.write_text(gate.model_dump_json(indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); make room or take another folder") from error


def load(path: Path) -> Gate:
    """Read gate.json back; InputError when it is absent, damaged, contradicts itself or is of a newer version."""
    told, text = _format_and_text(path)
    if isinstance(told, bool) or not isinstance(told, int | float):
        raise InputError(f"{path}: not a valid gate (no format_version that is a number); fit it again")
    if told > FORMAT_VERSION:
        raise InputError(f"{path}: made by a newer version of selective-rollout; upgrade to read it")
    try:
        return Gate.model_validate_json(text, strict=True)  # strict: "10" and true are no numbers
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        # Names of fields come from the file.
        why = printable_line(f"{where}: {first['msg'].removeprefix('Value error, ')}")
        newer = "upgrade if a newer version of selective-rollout wrote it, else " * (first["type"] == "extra_forbidden")
        raise InputError(f"{path}: not a valid gate ({why}); {newer}fit it again") from error


def load_for(path: Path, configuration: Mapping[str, object]) -> tuple[Gate, tuple[str, ...]]:
    """The gate in a file, for rollouts of this configuration (as in a run.json), and what speaks against it there.

    Raises InputError where it cannot decide on them: groups of another size, or no step K below the horizon.
    """
    gate = load(path)
    size, horizon = configuration["group_size"], configuration["horizon"]
    if gate.group_size not in (None, size):
        raise InputError(f"{path}: fitted on groups of {gate.group_size}, not {size}; fit a gate on groups of {size}")
    if isinstance(horizon, int) and gate.step >= horizon:
        raise InputError(f"{path}: decides at K = {gate.step}, and the horizon is {horizon}; nothing would be cut")
    return gate, tuple(
        f"{path}: {difference}: what it promises may not hold" for difference in gate.differences(configuration)
    )


def _format_and_text(path: Path) -> tuple[object, str]:
    """What format a file says that it has, and its JSON, in today's format where it was in the first."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors put a byte order mark first
        content = json.loads(text)
        told = content.get("format_version") if isinstance(content, dict) else None
        return told, json.dumps(_of_version_1(content)) if type(told) is int and told == 1 else text
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file; give a gate.json that sr calibrate wrote") from error
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read as a gate; give a gate.json that sr calibrate wrote") from error


def _of_version_1(content: dict[str, Any]) -> dict[str, Any]:
    """A gate of the first format, which had one threshold and no tasks, in today's."""
    content = {**content, "format_version": 2}
    content.pop("certified", None)
    rule = {name: content.pop(name) for name in ("kind", "signal", "step", "threshold") if name in content}
    evidence = content.get("evidence")
    if isinstance(evidence, dict):
        evidence = {k: v for k, v in evidence.items() if k not in ("eligible", "eligible_exactly")}
        of = content["evidence"]
        population = of.get("eligible") if content.get("convention") == "eligible" else of.get("groups")
        content["evidence"] = {**evidence, "tasks": of.get("groups"), "population": population}
    return {**content, "rule": rule}


def _read(prefixes: Sequence[AnyPrefix], group_size: int | None) -> list[Prefix]:
    """The trajectories of a group, of this size if it is known; InputError where they are not that."""
    if isinstance(prefixes, str) or not isinstance(prefixes, Sequence):
        raise InputError(
            f"prefixes are of type {type(prefixes).__name__}; give a list with the actions of each trajectory so far"
        )
    if group_size not in (None, len(prefixes)):
        raise InputError(
            f"the gate was fitted on groups of {group_size} and got {len(prefixes)} prefixes; "
            f"fit one for this group size"
        )
    if len(prefixes) < 2:
        raise InputError(f"a group has at least 2 trajectories, not {len(prefixes)}; give a prefix for each")
    return [_prefix(prefix, place) for place, prefix in enumerate(prefixes)]


def _prefix(prefix: AnyPrefix, place: int) -> Prefix:
    if isinstance(prefix, Prefix):
        return prefix
    if isinstance(prefix, str) or not isinstance(prefix, Sequence):
        raise InputError(
            f"prefixes[{place}] is of type {type(prefix).__name__}; give the list of the actions of that trajectory"
        )
    if set(map(type, prefix)) == {Step}:
        return Prefix.of(prefix)  # type: ignore[arg-type]
    return Prefix(prefix)  # type: ignore[arg-type]


def _in_order(of: BaseModel, less: str, more: str) -> None:
    """ValueError where one number of a model is over another that bounds it."""
    if getattr(of, less) > getattr(of, more):
        raise ValueError(f"{less} is over {more}")


def _same(one: float | None, other: float) -> bool:
    return one is not None and abs(one - other) <= _ROUNDING


def _bounds(name: str, interval: Interval) -> dict[str, Any]:
    return {
        name: _number(interval.value),
        f"{name}_low": _number(interval.low),
        f"{name}_high": _number(interval.high),
    }


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, Real) else str(value)


def _real(value: object) -> float | None:
    """A number of a configuration; None where it does not say one."""
    return float(value) if isinstance(value, Real) and not isinstance(value, bool) else None


def _number(value: float) -> float | None:
    """JSON has neither NaN nor infinity: what is not known is null."""
    return value if abs(value) < float("inf") else None
