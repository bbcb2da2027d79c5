"""How far the trajectories of a group agree: sets in common, distinct prefixes and symbols, entropy.

Each measure comes twice: for many groups at every K = 1 ... T in one pass, from symbols (N, G, T), and `..._at` one K
for one live group, from its words.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import combinations, pairwise
from math import log2

import numpy as np

from calibrate.prefixes import END, Floats, Symbols, first_steps, is_first, renumbered

# Groups whose sets are compared at once: a bound on memory.
_GROUPS_AT_ONCE = 512

Words = Sequence[Hashable]


def padded(words: Words, step: int) -> list[Hashable]:
    """The first K words, filled up with a symbol that equals only itself."""
    return [*words[:step], *[None] * (step - len(words))]


def distinct_ratio(symbols: Symbols) -> Floats:
    """Distinct K-th symbols / G. (N, G, T) -> (N, T), in [1/G, 1]."""
    size = symbols.shape[1]
    repeated = sum((symbols[:, :i] == symbols[:, i, None]).any(axis=1) for i in range(1, size))
    return np.asarray((size - repeated) / size)


def distinct_ratio_at(words: Sequence[Words], step: int) -> float:
    """`distinct_ratio` of one live group."""
    return len({padded(one, step)[-1] for one in words}) / len(words)


def distinct_prefix_ratio(symbols: Symbols) -> Floats:
    """Distinct padded prefixes of length K / G. (N, G, T) -> (N, T), in [1/G, 1]."""
    size = symbols.shape[1]
    repeated = sum(
        np.logical_and.accumulate(symbols[:, :i] == symbols[:, i, None], axis=2).any(axis=1) for i in range(1, size)
    )
    return np.asarray((size - repeated) / size)


def distinct_prefix_ratio_at(words: Sequence[Words], step: int) -> float:
    """`distinct_prefix_ratio` of one live group."""
    return len({tuple(padded(one, step)) for one in words}) / len(words)


def entropy(symbols: Symbols) -> Floats:
    """Shannon entropy of the K-th symbols over the G trajectories, over log2 G. (N, G, T) -> (N, T), in [0, 1]."""
    size = symbols.shape[1]
    # Each trajectory contributes log2 of how many share its symbol.
    shared = sum(np.log2((symbols == symbols[:, i, None]).sum(axis=1)) for i in range(size))
    return _settled(1 - shared / (size * log2(size)))


def entropy_at(words: Sequence[Words], step: int) -> float:
    """`entropy` of one live group."""
    size = len(words)
    counts = Counter(padded(one, step)[-1] for one in words).values()
    return float(_settled(1 - sum(count * log2(count) for count in counts) / (size * log2(size))))


def jaccard_distance(elements: Symbols) -> Floats:
    """Mean over pairs of 1 - |A and B| / |A or B|, the sets of elements of the first K steps; two empty sets: 0.

    (N, G, T) -> (N, T), in [0, 1]; a step that is `END` adds no element. Small symbols are fastest.
    """
    parts = [elements[start : start + _GROUPS_AT_ONCE] for start in range(0, len(elements), _GROUPS_AT_ONCE)]
    return np.concatenate([_jaccard_distance(part) for part in parts])


def _jaccard_distance(elements: Symbols) -> Floats:
    count, size, steps = elements.shape
    first, second = np.triu_indices(size, 1)
    met = first_steps(elements)
    new = is_first(elements, met)
    # An element is in both sets from the later of the two steps on.
    row_of_second = np.arange(count * size).reshape(count, size)[:, second]
    both = np.maximum(met[row_of_second[:, :, None], elements[:, first]], np.arange(steps))
    both = np.where(new[:, first], both, steps)
    begin = np.arange(count * len(first)).reshape(count, -1, 1) * (steps + 1)
    added = np.bincount((both + begin).ravel(), minlength=count * len(first) * (steps + 1))
    common = added.reshape(count, -1, steps + 1)[:, :, :steps].cumsum(axis=2)
    sizes = new.cumsum(axis=2)
    union = sizes[:, first] + sizes[:, second] - common
    return _settled((1 - (common + (union == 0)) / np.maximum(union, 1)).mean(axis=1))


def jaccard_distance_at(sets: Sequence[frozenset[Hashable]]) -> float:
    """`jaccard_distance` of one live group, from its trajectories' sets."""
    distances = [1 - len(a & b) / len(a | b) if a or b else 0.0 for a, b in combinations(sets, 2)]
    return float(_settled(sum(distances) / len(distances)))


def _settled(sums: Floats | float) -> Floats:
    """Without the last digits, which depend on the order of the terms: groups that agree alike have one value."""
    return np.asarray(np.round(sums, 12))


def bigrams(symbols: Symbols) -> Symbols:
    """Number the pairs of consecutive symbols within each group; a padded prefix has pairs with `END` too."""
    pairs = np.zeros(symbols.shape, np.int64)
    pairs[:, :, 1:] = symbols[:, :, :-1].astype(np.int64) * (int(symbols.max(initial=END)) + 1) + symbols[:, :, 1:]
    return renumbered(pairs, np.arange(symbols.shape[2]) >= 1)


def bigrams_at(words: Words, step: int) -> frozenset[Hashable]:
    """The set of pairs of consecutive words of one padded prefix."""
    filled = padded(words, step)
    return frozenset(pairwise(filled))
