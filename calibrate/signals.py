"""The signals: numbers that a gate can read off a group after K steps. This is the one place where they register.

To add one: write its sweep (all K = 1 ... T of many groups in one pass) and its live counterpart (one K of one group),
and append a `Signal` to `REGISTRY`. Its column in signals.parquet, its curves, its place in every fit and in the
learned gate, and the live gate's reading of it follow from that.

The first seven are those of "Selective Rollout: Mid-Trajectory Termination for Multi-Sample Agent RL"; the others are
this project's, and need nothing but what the game said.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from calibrate.agreement import (
    bigrams,
    bigrams_at,
    distinct_prefix_ratio,
    distinct_prefix_ratio_at,
    distinct_ratio,
    distinct_ratio_at,
    entropy,
    entropy_at,
    jaccard_distance,
    jaccard_distance_at,
)
from calibrate.edit_distance import prefix_edit_distance, prefix_edit_distance_at
from calibrate.experience import (
    mean_logprob,
    mean_logprob_at,
    reached,
    reached_at,
    refused_share,
    refused_share_at,
    repetition,
    repetition_at,
    termination_fraction,
)
from calibrate.prefixes import Floats, Prefix
from collect.schema import LABEL, TEXT, Column, Table

Alike = Literal["low", "high"]


@dataclass(frozen=True)
class Signal:
    """A signal: its name in every table, its meaning, its range, and its two implementations.

    `alike` says which values speak for a zero-variance group, decided beforehand and not by data: a gate flags values
    under its threshold where it is "low", over it where it is "high". `sweep` takes the `Deeds` or the `Views` of many
    groups (`source`) and gives (N, T); `at_step` takes the prefixes of one live group and K, and agrees with `sweep` up
    to rounding. `reads` names what of a `Prefix` it needs besides the actions.
    """

    name: str
    meaning: str
    alike: Alike
    lowest: float
    highest: float
    source: Literal["deeds", "views"]
    reads: tuple[str, ...]
    sweep: Callable[[Any], Floats]
    at_step: Callable[[Sequence[Prefix], int], float]

    @property
    def sign(self) -> int:
        """1, or -1 where high values speak for zero variance: `sign · value` is low in groups that look alike."""
        return 1 if self.alike == "low" else -1

    @property
    def range(self) -> str:
        """The range in words."""
        return f"at most {self.highest:g}" if np.isinf(self.lowest) else f"{self.lowest:g} to {self.highest:g}"


def verb(action: str) -> str:
    """The first word of an action; empty where it has none."""
    return action.split(maxsplit=1)[0] if action.strip() else ""


def _actions(prefixes: Sequence[Prefix]) -> list[Sequence[str]]:
    return [prefix.actions for prefix in prefixes]


def _observations(prefixes: Sequence[Prefix]) -> list[Sequence[str]]:
    return [prefix.observations for prefix in prefixes]


REGISTRY: tuple[Signal, ...] = (
    Signal(
        "prefix_edit_distance_mean",
        "mean over the group's pairs of Levenshtein(first K actions) / K, ended ones padded with one END symbol",
        "low", 0.0, 1.0, "deeds", (),
        lambda deeds: prefix_edit_distance(deeds.actions),
        lambda prefixes, step: prefix_edit_distance_at(_actions(prefixes), step),
    ),
    Signal(
        "action_bigram_jaccard_mean",
        "mean over pairs of 1 - Jaccard overlap of the sets of consecutive action pairs of the padded prefixes",
        "low", 0.0, 1.0, "deeds", (),
        lambda deeds: jaccard_distance(bigrams(deeds.actions)),
        lambda prefixes, step: jaccard_distance_at([bigrams_at(actions, step) for actions in _actions(prefixes)]),
    ),
    Signal(
        "unique_prefix_ratio",
        "distinct padded prefixes of K actions / G",
        "low", 0.0, 1.0, "deeds", (),
        lambda deeds: distinct_prefix_ratio(deeds.actions),
        lambda prefixes, step: distinct_prefix_ratio_at(_actions(prefixes), step),
    ),
    Signal(
        "unique_action_ratio",
        "distinct K-th actions (END where a trajectory has ended) / G",
        "low", 0.0, 1.0, "deeds", (),
        lambda deeds: distinct_ratio(deeds.actions),
        lambda prefixes, step: distinct_ratio_at(_actions(prefixes), step),
    ),
    Signal(
        "action_entropy",
        "Shannon entropy of the K-th actions over the G trajectories / log2 G",
        "low", 0.0, 1.0, "deeds", (),
        lambda deeds: entropy(deeds.actions),
        lambda prefixes, step: entropy_at(_actions(prefixes), step),
    ),
    Signal(
        "obs_unique_ratio",
        "distinct observations read when choosing the K-th action (END where a trajectory has ended) / G",
        "low", 0.0, 1.0, "views", ("observations",),
        lambda views: distinct_ratio(views.observations),
        lambda prefixes, step: distinct_ratio_at(_observations(prefixes), step),
    ),
    Signal(
        "termination_fraction",
        "share of trajectories with at most K - 1 actions",
        "high", 0.0, 1.0, "deeds", (),
        lambda deeds: termination_fraction(deeds.lengths, np.arange(1, deeds.actions.shape[2] + 1)),
        lambda prefixes, step: sum(len(actions) < step for actions in _actions(prefixes)) / len(prefixes),
    ),
    Signal(
        "verb_edit_distance_mean",
        "prefix_edit_distance_mean over the first words of the actions",
        "low", 0.0, 1.0, "deeds", (),
        lambda deeds: prefix_edit_distance(deeds.verbs),
        lambda prefixes, step: prefix_edit_distance_at(
            [[verb(action) for action in actions[:step]] for actions in _actions(prefixes)], step
        ),
    ),
    Signal(
        "action_set_jaccard_mean",
        "mean over pairs of 1 - Jaccard overlap of the sets of the first K actions (END is no action)",
        "low", 0.0, 1.0, "deeds", (),
        lambda deeds: jaccard_distance(deeds.actions),
        lambda prefixes, step: jaccard_distance_at([frozenset(actions[:step]) for actions in _actions(prefixes)]),
    ),
    Signal(
        "observations_reached",
        "progress: mean over trajectories of the distinct observations read in the first K steps / K",
        "low", 0.0, 1.0, "views", ("observations",),
        lambda views: reached(views.observations),
        lambda prefixes, step: reached_at(_observations(prefixes), step),
    ),
    Signal(
        "commands_reached",
        "progress: mean over trajectories of the distinct sets of admissible commands met in the first K steps / K",
        "low", 0.0, 1.0, "views", ("commands",),
        lambda views: reached(views.commands),
        lambda prefixes, step: reached_at(
            [[frozenset(commands) for commands in prefix.commands[:step]] for prefix in prefixes], step
        ),
    ),
    Signal(
        "repetition",
        "share of the group's first K steps that return to an observation which that trajectory had read before",
        "high", 0.0, 1.0, "views", ("observations",),
        repetition,
        repetition_at,
    ),
    Signal(
        "refused_share",
        "share of the commands sent in the group's first K steps that the game did not admit",
        "high", 0.0, 1.0, "views", ("refused",),
        refused_share,
        refused_share_at,
    ),
    Signal(
        "mean_logprob",
        "confidence: mean log-probability of the tokens sampled in the group's first K steps",
        "high", -np.inf, 0.0, "views", ("logprobs", "tokens"),
        mean_logprob,
        mean_logprob_at,
    ),
)  # fmt: skip

BY_NAME: Mapping[str, Signal] = {signal.name: signal for signal in REGISTRY}
PREFIX_EDIT_DISTANCE = REGISTRY[0]
TERMINATION_FRACTION = BY_NAME["termination_fraction"]


def _column(signal: Signal) -> Column:
    meaning = f"{signal.meaning}; {signal.range}"
    if signal.reads:
        return Column(signal.name, pa.float64(), f"{meaning}; null where imported without what it reads", True)
    return Column(signal.name, pa.float64(), meaning)


SIGNALS = Table(
    "signals",
    "One row a group and step K = 1 to horizon - 1: what `sr calibrate` computed. One file, signals.parquet.",
    ("group_id", "step"),
    (
        Column("group_id", TEXT, "the group"),
        Column("game_id", TEXT, "the game: the task, which several groups may share"),
        Column("task_type", LABEL, "one of ALFWorld's six task types; null where imported without it", True),
        Column("group_size", pa.int32(), "G, the number of trajectories"),
        Column("horizon", pa.int32(), "the most steps a trajectory may take"),
        Column("step", pa.int32(), "K: the signals describe the first K steps"),
        Column("eligible", pa.bool_(), "whether some trajectory is longer than K; only such a group can be cut at K"),
        Column(
            "outcome",
            LABEL,
            "mixed if the final rewards vary; else all_fail (all 0), all_succeed (all 1) or uniform (another reward)",
        ),
        Column("reward_variance", pa.float64(), "population variance of the G final rewards"),
        Column("reward_tolerance", pa.float64(), "rewards of a group that differ by no more than this count as equal"),
        *(_column(signal) for signal in REGISTRY),
        Column(
            "no_draw",
            LABEL,
            "why the groups are no draw of tasks that one policy rolled out, and guarantee nothing; null if they are",
            True,
        ),
    ),
)
