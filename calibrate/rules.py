"""The rules by which a gate flags a group: each is a few numbers, and the same code reads them live and in bulk."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from calibrate.signals import BY_NAME, TERMINATION_FRACTION

if TYPE_CHECKING:
    from calibrate.sample import Sample

MOST_STEPS = 2**31 - 1  # what the tables' columns hold
_BEYOND = 1e-6  # how far a threshold may lie outside its signal's range: one that takes all lies just above the largest

_LARGEST = 1e100  # of a learned rule's coefficients: the sum of what they give overflows with none of them


def _coefficient(value: float) -> float:
    if abs(value) > _LARGEST:
        raise ValueError(f"{value:g} is beyond {_LARGEST:g}, with which scores overflow")
    return value


def _scale(value: float) -> float:
    if value < 1 / _LARGEST:
        raise ValueError(f"{value:g} is under {1 / _LARGEST:g}, with which scores overflow")
    return value


Step = Annotated[int, Field(ge=1, le=MOST_STEPS)]
Coefficient = Annotated[float, AfterValidator(_coefficient)]
Scale = Annotated[float, AfterValidator(_scale)]
Values = Mapping[str, Any]  # the value of each signal that is read: numbers of one group, or arrays of many


class _Rule(BaseModel):
    """What all rules share. A rule reads `signals` at `steps`, ascending, and `judge` flags.

    `judge` takes the signals' values at one of the steps, of one group or as arrays of many, and gives the score, the
    threshold it was held against, and whether the group is flagged.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @property
    def steps(self) -> tuple[int, ...]:
        raise NotImplementedError

    @property
    def signals(self) -> tuple[str, ...]:
        raise NotImplementedError

    def judge(self, values: Values, step: int) -> tuple[Any, float, Any]:
        raise NotImplementedError

    def flags(self, sample: "Sample") -> NDArray[np.int64]:
        """The column of the first step at which each group of a sample is flagged; -1 where it never is. (N,)."""
        at = np.full(sample.size, -1)
        for step in reversed(self.steps):
            column = sample.column(step)
            # In double precision, as thresholds are: numpy would else round them to that of a table's signals.
            values = {name: sample.signals[name][:, column].astype(np.float64) for name in self.signals}
            _, _, flagged = self.judge(values, step)
            at[flagged] = column
        return at


class _OneSignal(_Rule):
    signal: str

    @field_validator("signal")
    @classmethod
    def _known(cls, signal: str) -> str:
        return known(signal)

    def _under(self, value: Any, threshold: float) -> Any:
        return value < threshold if BY_NAME[self.signal].alike == "low" else value > threshold


class Threshold(_OneSignal):
    """Flag a group at `step` whose signal is strictly under `threshold`: over it, where high values mean alike."""

    kind: Literal["threshold"] = "threshold"
    step: Step
    threshold: float

    @model_validator(mode="after")
    def _within(self) -> "Threshold":
        _check_range(self.signal, self.threshold)
        return self

    @property
    def steps(self) -> tuple[int, ...]:
        """The step at which it is asked."""
        return (self.step,)

    @property
    def signals(self) -> tuple[str, ...]:
        """What it reads."""
        return (self.signal,)

    def judge(self, values: Values, step: int) -> tuple[Any, float, Any]:
        """See `_Rule`."""
        return values[self.signal], self.threshold, self._under(values[self.signal], self.threshold)

    def __str__(self) -> str:
        return f"{condition(self.signal, self.threshold)} at K = {self.step}"


class Either(_OneSignal):
    """The paper's OR-rule: flag at `step` under `threshold`, or when a share of at least `ended` has ended."""

    kind: Literal["either"] = "either"
    step: Step
    threshold: float
    ended: Annotated[float, Field(gt=0, le=1)]

    @model_validator(mode="after")
    def _within(self) -> "Either":
        # Where only terminations flag, it lies beyond all values, on the side from which it flags none.
        if not self._flags_none():
            _check_range(self.signal, self.threshold)
        return self

    def _flags_none(self) -> bool:
        signal = BY_NAME[self.signal]
        return self.threshold <= signal.lowest if signal.alike == "low" else self.threshold >= signal.highest

    @property
    def steps(self) -> tuple[int, ...]:
        """The step at which it is asked."""
        return (self.step,)

    @property
    def signals(self) -> tuple[str, ...]:
        """What it reads."""
        return (self.signal, TERMINATION_FRACTION.name)

    def judge(self, values: Values, step: int) -> tuple[Any, float, Any]:
        """See `_Rule`."""
        ended = values[TERMINATION_FRACTION.name] >= self.ended - 1e-6  # a table may hold shares in single precision
        return values[self.signal], self.threshold, self._under(values[self.signal], self.threshold) | ended

    def __str__(self) -> str:
        return (
            f"{condition(self.signal, self.threshold)} or {TERMINATION_FRACTION.name} >= {self.ended:g} "
            f"at K = {self.step}"
        )


class Stage(BaseModel):
    """One step of a sequential rule and its threshold there."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    step: Step
    threshold: float


class Sequential(_OneSignal):
    """Flag at the first stage whose threshold the signal passes; the stages are in ascending order of their steps."""

    kind: Literal["sequential"] = "sequential"
    stages: Annotated[tuple[Stage, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _ascending(self) -> "Sequential":
        if any(a.step >= b.step for a, b in zip(self.stages, self.stages[1:], strict=False)):
            raise ValueError("the steps of the stages must ascend")
        return self

    @model_validator(mode="after")
    def _within(self) -> "Sequential":
        for stage in self.stages:
            _check_range(self.signal, stage.threshold)
        return self

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps at which it is asked."""
        return tuple(stage.step for stage in self.stages)

    @property
    def signals(self) -> tuple[str, ...]:
        """What it reads."""
        return (self.signal,)

    def judge(self, values: Values, step: int) -> tuple[Any, float, Any]:
        """See `_Rule`."""
        (threshold,) = (stage.threshold for stage in self.stages if stage.step == step)
        return values[self.signal], threshold, self._under(values[self.signal], threshold)

    def __str__(self) -> str:
        return ", or ".join(f"{condition(self.signal, stage.threshold)} at K = {stage.step}" for stage in self.stages)


class Term(BaseModel):
    """One signal of a learned rule: it adds weight · (value - mean) / scale."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    signal: str
    mean: Coefficient
    scale: Scale
    weight: Coefficient

    @field_validator("signal")
    @classmethod
    def _known(cls, signal: str) -> str:
        return known(signal)


class Learned(_Rule):
    """Flag at `step` when the logistic estimate of the chance that the group is informative is under `threshold`."""

    kind: Literal["learned"] = "learned"
    step: Step
    threshold: Annotated[float, Field(ge=0, le=1)]
    intercept: Coefficient
    terms: tuple[Term, ...]

    @model_validator(mode="after")
    def _each_once(self) -> "Learned":
        if len(set(self.signals)) < len(self.terms):
            raise ValueError("a signal has two terms")
        return self

    @property
    def steps(self) -> tuple[int, ...]:
        """The step at which it is asked."""
        return (self.step,)

    @property
    def signals(self) -> tuple[str, ...]:
        """What it reads."""
        return tuple(term.signal for term in self.terms)

    def score(self, values: Values) -> Any:
        """The estimate: 1 / (1 + exp(-(intercept + the terms' sum))), in [0, 1]."""
        with np.errstate(over="ignore"):  # a table's log-probabilities have no lower bound: infinity is clipped
            total = self.intercept + sum(
                term.weight * (values[term.signal] - term.mean) / term.scale for term in self.terms
            )
        return 1 / (1 + np.exp(-np.clip(total, -50, 50)))

    def judge(self, values: Values, step: int) -> tuple[Any, float, Any]:
        """See `_Rule`."""
        score = self.score(values)
        return score, self.threshold, score < self.threshold

    def __str__(self) -> str:
        return f"logistic of {len(self.terms)} signals < {self.threshold:.4g} at K = {self.step}"


Rule = Annotated[Threshold | Either | Sequential | Learned, Field(discriminator="kind")]


def known(signal: str) -> str:
    """The name, if a signal is registered under it; else ValueError."""
    if signal not in BY_NAME:
        raise ValueError(f"unknown signal {signal!r}")
    return signal


def _check_range(signal: str, threshold: float) -> None:
    """ValueError where a threshold lies outside the signal's range, and so would flag all groups or none."""
    if not BY_NAME[signal].lowest - _BEYOND <= threshold <= BY_NAME[signal].highest + _BEYOND:
        raise ValueError(f"the threshold {threshold:g} is outside the range of {signal}, {BY_NAME[signal].range}")


def condition(signal: str, threshold: float) -> str:
    """The condition under which a signal flags, in words."""
    return f"{signal} {'<' if BY_NAME[signal].alike == 'low' else '>'} {threshold:.6g}"
