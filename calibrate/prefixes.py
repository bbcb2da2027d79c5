"""What the first steps of a group look like: the input of every signal, live and in bulk.

`Prefix` is one live trajectory so far. `Deeds` and `Views` hold many groups at once, as arrays (N, G, T): what the
trajectories did, and what they saw and how sure they were. In them equal numbers are equal things *within a group*,
and every step after a trajectory's last is `END`.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from collect.trajectory import Step

END = 0  # the symbol of a step that a trajectory no longer took; others are numbered from 1

_MOST_TOKENS = 2**31 - 1  # what the tables' columns hold
_LEAST_LOGPROB = -1e100  # so low that sums of many are numbers still
_ROUNDING = 1e-3  # how far the sum of a step's log-probabilities in single precision may end up over 0

Symbols = NDArray[np.int32]
Floats = NDArray[np.float64]


def _are(of: Sequence[Any], *kinds: type) -> bool:
    """Whether all are of these kinds; asked of their types, which are few, as every decision asks."""
    return all(issubclass(kind, kinds) for kind in set(map(type, of)))


def _are_commands(of: Sequence[Any]) -> bool:
    """Collections of text: an iterator would be used up by the first decision, and empty for the next."""
    of_kind = _are(of, Collection) and not any(issubclass(kind, str) for kind in set(map(type, of)))
    return of_kind and all(issubclass(kind, str) for kind in set(map(type, chain.from_iterable(of))))


def _are_between(of: Sequence[Any], kind: type, lowest: float, highest: float) -> bool:
    """Whether all are numbers of a kind, no bools, in a range."""
    if not of:
        return True
    if not _are(of, kind) or bool in set(map(type, of)):
        return False
    try:
        numbers = list(map(float, of))  # numpy would round the range to a smaller type of its own
    except OverflowError:
        return False
    return all(map(math.isfinite, numbers)) and lowest <= min(numbers) and max(numbers) <= highest


# What each field of a prefix holds, a step: in words, and the check of it.
_HOLDS: Mapping[str, tuple[str, Callable[[Sequence[Any]], bool]]] = {
    "actions": ("text", lambda of: _are(of, str)),
    "observations": ("text", lambda of: _are(of, str)),
    "commands": ("a list or set of texts", _are_commands),
    "refused": ("True or False", lambda of: _are(of, bool, np.bool_)),
    "logprobs": ("a finite number of at most 0", lambda of: _are_between(of, Real, _LEAST_LOGPROB, _ROUNDING)),
    "tokens": (f"a whole number from 0 to {_MOST_TOKENS}", lambda of: _are_between(of, Integral, 0, _MOST_TOKENS)),
}


@dataclass(frozen=True, slots=True)
class Prefix:
    """One live trajectory so far, step by step. Only `actions` are needed by every signal; see `Signal.reads`.

    `observations` and `commands` are what the policy read when it chose each action and the distinct commands that the
    game admitted then; `refused` says whether the command sent was none of them; `logprobs` and `tokens` are the sum of
    the log-probabilities of the tokens sampled in each step, at most 0, and their number.
    """

    actions: Sequence[str]
    observations: Sequence[str] = ()
    commands: Sequence[Collection[str]] = ()
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
        first = _first(values, step)
        if first is None:
            return f"its {field} are of type {type(values).__name__}; give a list, one entry a step"
        # Compared within the first K steps: what was read last, before any action, may already be there.
        given, taken = min(step, len(values)), min(step, len(self.actions))
        if given != taken:
            return f"it has {given} {field} for {taken} actions; give Prefix objects with one entry a step"
        if not holds(first):
            return f"one of its {field} is not {what}; give {what} for each step"
        return self._uncounted(step) if field == "tokens" else None

    def _uncounted(self, step: int) -> str | None:
        """What is wrong with the numbers of tokens beside the log-probabilities: those of a trainer that counts none
        would make every group look certain.
        """
        tokens, logprobs = self.tokens[:step], self.logprobs[:step]
        if tokens and not any(tokens):
            return "its tokens are all 0; give the number of tokens sampled in each step"
        # A log may hold replies without a token: of these, and only these, nothing is the sum.
        if 0 in tokens and any(logprob and not count for logprob, count in zip(logprobs, tokens, strict=True)):
            return "a step of 0 tokens has a log-probability; give the number of tokens sampled in each step"
        return None


def _first(values: Any, step: int) -> Sequence[Any] | None:
    """The first K of a sequence that is no text; None where it is none, or one that cannot be sliced, as a deque."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        return None
    try:
        return values[:step]
    except TypeError:
        return None


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
