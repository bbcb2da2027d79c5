"""Scores in order, with their ties."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Ranking:
    """`order` (n,) sorts n scores, low ones first; `starts` (r,) are the places in it at which another score begins."""

    order: Ints
    starts: Ints

    @classmethod
    def of(cls, scores: NDArray[np.floating[Any]], tie: float = 0.0) -> Self:
        """The ranking of scores, of which any number may be minus infinity; neighbours no further apart than `tie` are
        equal.
        """
        order = np.argsort(scores)
        with np.errstate(invalid="ignore"):  # minus infinity from itself
            other = np.diff(scores[order]) > tie
        return cls(order, np.flatnonzero(np.append(True, other)[: len(order)]))

    @property
    def counts(self) -> Ints:
        """How many there are of each score, (r,)."""
        return np.diff(np.append(self.starts, len(self.order)))

    @property
    def ranks(self) -> NDArray[np.float64]:
        """The rank of each score from 1, equal ones sharing the mean of theirs, (n,)."""
        ranks = np.empty(len(self.order))
        ranks[self.order] = np.repeat(self.starts + (self.counts + 1) / 2, self.counts)
        return ranks
