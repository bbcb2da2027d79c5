"""What the trajectories of a group met in the game: how far they got, what came back, what was refused, how sure.

Each measure comes twice: for many groups at every K = 1 ... T in one pass, and `..._at` one K for one live group.
"""

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from calibrate.prefixes import END, Floats, Prefix, Symbols, Views, first_steps, is_first


def termination_fraction(lengths: NDArray[np.int32], steps: NDArray[np.int64]) -> Floats:
    """Share of a group's trajectories with at most K - 1 actions (one of exactly K is not counted). -> (N, S)."""
    return np.asarray((lengths[:, :, None] < steps).mean(axis=1))


def eligible(lengths: NDArray[np.int32], steps: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether some trajectory is longer than K, so that cutting at K saves something. (N, G), (S,) -> (N, S)."""
    return np.asarray(lengths.max(axis=1)[:, None] > steps)


def reached(things: Symbols) -> Floats:
    """Mean over trajectories of the distinct things met in the first K steps / K. (N, G, T) -> (N, T), in [0, 1]."""
    return np.asarray(
        is_first(things, first_steps(things)).cumsum(axis=2).mean(axis=1) / np.arange(1, things.shape[2] + 1)
    )


def reached_at(things: Sequence[Sequence[Hashable]], step: int) -> float:
    """`reached` of one live group."""
    return sum(len(set(one[:step])) for one in things) / (len(things) * step)


def repetition(views: Views) -> Floats:
    """Share of the group's first K steps whose observation that trajectory had read before. (N, T), in [0, 1]."""
    again = (views.observations != END) & ~is_first(views.observations, first_steps(views.observations))
    return _share(again, views.observations != END)


def repetition_at(prefixes: Sequence[Prefix], step: int) -> float:
    """`repetition` of one live group."""
    seen = [prefix.observations[:step] for prefix in prefixes]
    steps = sum(map(len, seen))
    return (steps - sum(len(set(one)) for one in seen)) / steps if steps else 0.0


def refused_share(views: Views) -> Floats:
    """Share of the commands sent in the group's first K steps that the game did not admit. (N, T), in [0, 1]."""
    return _share(views.refused, views.observations != END)


def refused_share_at(prefixes: Sequence[Prefix], step: int) -> float:
    """`refused_share` of one live group."""
    sent = [refused for prefix in prefixes for refused in prefix.refused[:step]]
    return sum(sent) / len(sent) if sent else 0.0


def mean_logprob(views: Views) -> Floats:
    """Mean log-probability of the tokens sampled in the group's first K steps; 0 without a token. (N, T), at most 0."""
    return _share(views.logprobs, views.tokens)


def mean_logprob_at(prefixes: Sequence[Prefix], step: int) -> float:
    """`mean_logprob` of one live group."""
    tokens = sum(sum(prefix.tokens[:step]) for prefix in prefixes)
    return sum(sum(prefix.logprobs[:step]) for prefix in prefixes) / tokens if tokens else 0.0


def _share(part: NDArray[np.bool_] | Floats, whole: NDArray[np.bool_] | NDArray[np.int64]) -> Floats:
    """Running sum of `part` over that of `whole`, over the group's trajectories and first K steps; 0 over nothing."""
    sums = [array.sum(axis=1).cumsum(axis=1) for array in (part, whole)]
    return np.asarray(sums[0] / np.maximum(sums[1], 1), np.float64)
