"""What the first steps of a group look like: the input of every signal, live and in bulk.

`Prefix` is one live trajectory so far. `Deeds` and `Views` hold many groups at once, as arrays (N, G, T): what the
trajectories did, and what they saw and how sure they were. In them equal numbers are equal things *within a group*,
and every step after a trajectory's last is `END`.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from collect.trajectory import Step

END = 0  # the symbol of a step that a trajectory no longer took; others are numbered from 1

Symbols = NDArray[np.int32]
Floats = NDArray[np.float64]


def _are(of: Sequence[Any], *kinds: type) -> bool:
    """Whether all are of these kinds; asked of their types, which are few, as every decision asks."""
    return all(issubclass(kind, kinds) for kind in set(map(type, of)))


def _are_sets(of: Sequence[Any]) -> bool:
    return _are(of, Iterable) and not any(issubclass(kind, str) for kind in set(map(type, of)))


# What each field of a prefix holds, a step: in words, and the check of it.
_HOLDS: Mapping[str, tuple[str, Callable[[Sequence[Any]], bool]]] = {
    "actions": ("text", lambda of: _are(of, str)),
    "observations": ("text", lambda of: _are(of, str)),
    "commands": ("a set of commands", _are_sets),
    "refused": ("True or False", lambda of: _are(of, bool, np.bool_)),
    "logprobs": ("a finite number", lambda of: _are(of, Real) and all(map(math.isfinite, of))),
    "tokens": ("a whole number of 0 or more", lambda of: _are(of, Integral) and min(of, default=0) >= 0),
}


@dataclass(frozen=True, slots=True)
class Prefix:
    """One live trajectory so far, step by step. Only `actions` are needed by every signal; see `Signal.reads`.

    `observations` and `commands` are what the policy read when it chose each action and the distinct commands that the
    game admitted then; `refused` says whether the command sent was none of them; `logprobs` and `tokens` are the sum of
    the log-probabilities of the tokens sampled in each step, and their number.
    """

    actions: Sequence[str]
    observations: Sequence[str] = ()
    commands: Sequence[Iterable[str]] = ()
    refused: Sequence[bool] = ()
    logprobs: Sequence[float] = ()
    tokens: Sequence[int] = ()

    @classmethod
    def of(cls, steps: Sequence[Step]) -> Self:
        """The prefix of a trajectory in the rollout loop's own steps."""
        return cls(
            actions=[step.action for step in steps],
            observations=[step.observation for step in steps],
            commands=[step.admissible_commands for step in steps],
            refused=[step.match == "none" for step in steps],
            logprobs=[step.reply_logprob for step in steps],
            tokens=[step.reply_tokens for step in steps],
        )

    def fault(self, field: str, step: int) -> str | None:
        """What is wrong with a field within the first `step` steps, in words; None where nothing is."""
        values, (what, holds) = getattr(self, field), _HOLDS[field]
        if isinstance(values, str) or not isinstance(values, Sequence):
            return f"its {field} are of type {type(values).__name__}; give a list, one entry a step"
        # Compared within the first K steps: what was read last, before any action, may already be there.
        given, taken = min(step, len(values)), min(step, len(self.actions))
        if given != taken:
            return f"it has {given} {field} for {taken} actions; give Prefix objects with one entry a step"
        return None if holds(values[:step]) else f"one of its {field} is not {what}; give {what} for each step"


@dataclass(frozen=True, eq=False)
class Deeds:
    """What n groups of G trajectories did in T steps: `actions` and their first words `verbs` (n, G, T)."""

    lengths: NDArray[np.int32]
    actions: Symbols
    verbs: Symbols

    def until(self, step: int) -> "Deeds":
        """Their first K steps; lengths stay."""
        return Deeds(self.lengths, self.actions[:, :, :step], self.verbs[:, :, :step])

    def only(self, members: NDArray[np.int64]) -> "Deeds":
        """Some trajectories of each group: their indices (n, g)."""
        return Deeds(*(_only(array, members) for array in (self.lengths, self.actions, self.verbs)))


@dataclass(frozen=True, eq=False)
class Views:
    """What n groups of G trajectories met in T steps, each array (n, G, T), 0 or `END` after a trajectory's last step.

    `observations` read when choosing each action, `commands` the sets of commands admitted then, `refused` whether the
    command sent was none of those, `logprobs` and `tokens` of each reply.
    """

    lengths: NDArray[np.int32]
    observations: Symbols
    commands: Symbols
    refused: NDArray[np.bool_]
    logprobs: Floats
    tokens: NDArray[np.int64]

    def until(self, step: int) -> "Views":
        """Their first K steps; lengths stay."""
        return Views(
            self.lengths,
            self.observations[:, :, :step],
            self.commands[:, :, :step],
            self.refused[:, :, :step],
            self.logprobs[:, :, :step],
            self.tokens[:, :, :step],
        )

    def only(self, members: NDArray[np.int64]) -> "Views":
        """Some trajectories of each group: their indices (n, g)."""
        return Views(
            lengths=_only(self.lengths, members),
            observations=_only(self.observations, members),
            commands=_only(self.commands, members),
            refused=_only(self.refused, members),
            logprobs=_only(self.logprobs, members),
            tokens=_only(self.tokens, members),
        )


def _only(array: NDArray[Any], members: NDArray[np.int64]) -> NDArray[Any]:
    return np.take_along_axis(array, members.reshape(*members.shape, *[1] * (array.ndim - 2)), axis=1)


def renumbered(values: NDArray[Any], taken: NDArray[np.bool_]) -> Symbols:
    """Number the distinct values of each group from 1, and `END` where nothing was taken. Both arrays are (n, G, T)."""
    flat = values.reshape(len(values), -1)
    order = np.argsort(flat, axis=1)
    ordered = np.take_along_axis(flat, order, axis=1)
    ranks = np.ones(flat.shape, np.int32)
    ranks[:, 1:] += np.cumsum(ordered[:, 1:] != ordered[:, :-1], axis=1, dtype=np.int32)
    numbers = np.empty_like(ranks)
    np.put_along_axis(numbers, order, ranks, axis=1)
    return np.where(taken, numbers.reshape(values.shape), np.int32(END))


def first_steps(things: Symbols) -> NDArray[np.int32]:
    """The step, from 0, at which each trajectory first has each thing; T where it never does, and for `END`.

    (n, G, T) -> (n · G, 1 + largest symbol).
    """
    count, size, steps = things.shape
    rows = np.arange(count * size)
    first = np.full((count * size, int(things.max(initial=END)) + 1), steps, np.int32)
    for step in reversed(range(steps)):  # backwards, so that the earliest step remains
        first[rows, things[:, :, step].ravel()] = step
    first[:, END] = steps
    return first


def is_first(things: Symbols, first: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Whether a trajectory has the thing of each step for the first time, given `first_steps`; never at `END`."""
    steps = things.shape[2]
    rows = np.arange(len(first))[:, None]
    return np.asarray((first[rows, things.reshape(-1, steps)] == np.arange(steps)).reshape(things.shape))
