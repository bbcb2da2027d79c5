"""The kinds of gate, the simplest first."""

from enum import StrEnum
from typing import Literal

Kind = Literal["threshold", "either", "sequential", "learned"]
KINDS: tuple[Kind, ...] = ("threshold", "either", "sequential", "learned")


class GateKind(StrEnum):
    """What `--gate` takes: one kind, or `auto` for the best of them out of sample."""

    THRESHOLD = "threshold"
    EITHER = "either"
    SEQUENTIAL = "sequential"
    LEARNED = "learned"
    AUTO = "auto"
