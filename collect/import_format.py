"""The formats of logs that can be imported; apart, so that the command line knows them without loading anything."""

from enum import StrEnum


class Format(StrEnum):
    """The formats of logs that can be imported."""

    SELECTIVE_ROLLOUT = "selective-rollout"
    VERL = "verl"
    ART = "art"
    LONG = "long"
