"""The ladder of thresholds at one step: every threshold worth trying, and what each would do."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrate.outcomes import net_saving
from calibrate.ranking import Ranking

MIN_CUTS = 10

# Scores nearer to each other than this count as equal, so that no threshold lies between sums that differ by their
# rounding alone: as they may in a table of signals; this project's own signals are equal to the last bit then.
TIE = 1e-12

_UNDER_ALL = -1e9  # a threshold under every score there is


@dataclass(frozen=True, eq=False)
class Ladder:
    """Thresholds, ascending, and what a gate at each does: arrays (C,).

    A threshold lies halfway between two neighbouring scores, so that the strict comparison is not a matter of rounding;
    the last one lies just above the largest.
    """

    thresholds: NDArray[np.float64]
    taken: NDArray[np.int64]
    true_positives: NDArray[np.int64]
    net_saving: NDArray[np.float64]

    @property
    def precision(self) -> NDArray[np.float64]:
        """Share of zero-variance groups among those taken; NaN where none is."""
        return np.asarray(self.true_positives / np.where(self.taken > 0, self.taken, np.nan))

    def feasible(self, target_precision: float) -> NDArray[np.bool_]:
        """Where a gate may stand: precise enough on at least `MIN_CUTS` groups, with an informative group left."""
        allowed: NDArray[np.bool_] = (self.taken >= MIN_CUTS) & np.isfinite(self.net_saving)
        allowed &= np.nan_to_num(self.precision) >= target_precision
        return allowed

    def best(self, target_precision: float) -> int | None:
        """The rung with the best net saving where a gate may stand; None where none may.

        Ties go to the higher precision, then to the fewer groups taken.
        """
        return first(self.feasible(target_precision), -self.net_saving, -self.precision, self.taken)


@dataclass(frozen=True, eq=False)
class Change:
    """What taking each of n groups adds: to the count of groups taken, to the true positives among them, to the cost
    saved; arrays (n,). A group that is taken already, but later, adds only what is saved by taking it earlier.
    """

    taken: NDArray[np.int64]
    true_positives: NDArray[np.int64]
    saved: NDArray[np.int64]


@dataclass(frozen=True)
class Start:
    """What is taken before the first rung, and the whole of which the net saving is a share. Without informative groups
    no gate may stand.
    """

    cost: int
    informative: int
    taken: int = 0
    true_positives: int = 0
    saved: int = 0


def climb(likeness: NDArray[np.floating[Any]], change: Change, start: Start) -> Ladder:
    """The ladder over n groups of these scores, low ones first. Scores of minus infinity are under every threshold."""
    ranking = Ranking.of(likeness, TIE)
    order, scores = ranking.order, likeness[ranking.order].astype(np.float64)
    last = ranking.starts + ranking.counts - 1
    taken, true_positives, saved = (
        np.cumsum(added[order], dtype=np.int64)[last] + before
        for added, before in (
            (change.taken, start.taken),
            (change.true_positives, start.true_positives),
            (change.saved, start.saved),
        )
    )
    # The score above each rung is the one that comes next in order, not the last of those that tie with it.
    above = np.append(scores[last[:-1] + 1], scores[-1:] + 2 * TIE)
    above = np.where(np.isfinite(above), above, _UNDER_ALL)
    middle = (scores[last] + above) / 2
    dropped = (taken - true_positives) / (start.informative or np.nan)
    return Ladder(
        thresholds=np.where(np.isfinite(middle), middle, above),
        taken=taken,
        true_positives=true_positives,
        net_saving=net_saving(saved / max(1, start.cost), dropped),
    )


def first(where: NDArray[np.bool_], *keys: NDArray[Any]) -> int | None:
    """The place, among those `where`, with the smallest of the first key; ties go by the next key, then by place."""
    if not where.any():
        return None
    places = np.flatnonzero(where)
    # lexsort sorts by its last key first.
    return int(places[np.lexsort([key[places] for key in reversed(keys)])[0]])
