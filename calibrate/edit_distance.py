"""Edit distance of prefixes: of all pairs of a group's trajectories at every K in one pass, and of one live group."""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rapidfuzz.distance import Levenshtein

from calibrate.prefixes import END, Floats, Symbols

# Pairs of trajectories compared at once: about what a core's own cache holds, and a bound on memory.
_PAIRS_AT_ONCE = 8192
_WORD = 64


def prefix_edit_distance(symbols: Symbols) -> Floats:
    """Mean over the G(G-1)/2 pairs of Levenshtein(prefix_i, prefix_j) / K, at every K = 1 ... T. (N, G, T) -> (N, T).

    N >= 1, G >= 2. Prefixes shorter than K are padded with `END`. Values are in [0, 1], multiples of
    1 / (K · G(G-1)/2). Small symbols are fastest.
    """
    count, size, steps = symbols.shape
    pairs = size * (size - 1) // 2
    total = _total_by_bits if steps <= _WORD else _total_by_table
    at_once = max(1, _PAIRS_AT_ONCE // pairs)
    sums = [total(symbols[start : start + at_once]) for start in range(0, count, at_once)]
    return np.asarray(np.concatenate(sums) / (pairs * np.arange(1, steps + 1)))


def prefix_edit_distance_at(prefixes: Sequence[Sequence[str]], step: int) -> float:
    """`prefix_edit_distance` at one K for one group of G >= 2 sequences of words; only their first K words count."""
    # One character a word: rapidfuzz compares characters exactly, but other elements by their hash.
    characters: dict[str, str] = {}
    words = [
        "".join(characters.setdefault(action, chr(len(characters) + 1)) for action in prefix[:step]).ljust(
            step, chr(END)
        )
        for prefix in prefixes
    ]
    pairs = len(words) * (len(words) - 1) // 2
    return sum(Levenshtein.distance(a, b) for a, b in combinations(words, 2)) / (pairs * step)


def _total_by_bits(symbols: Symbols) -> NDArray[np.int64]:
    """Sum over a group's pairs of Levenshtein(prefix_i, prefix_j) at every K = 1 ... T <= 64. (N, G, T) -> (N, T).

    Hyyrö's bit-parallel algorithm (2003), one word a pair: bit r of the words belongs to row r of the table D, whose
    columns it walks. Bit K of D0 says whether D[K+1][K+1] = D[K][K], so one walk yields the whole diagonal. Rows past
    the diagonal hold what no lower bit reads.
    """
    groups, size, steps = symbols.shape
    symbols = _dense(symbols)
    first, second = np.triu_indices(size, 1)
    word: type[np.unsignedinteger[Any]] = np.uint32 if steps <= 32 else np.uint64
    one = word(1)
    # Where each symbol stands in each trajectory: bit k of word (trajectory, symbol) for step k.
    kinds = int(symbols.max()) + 1
    places = np.zeros(groups * size * kinds, word)
    begin = np.arange(groups * size) * kinds
    for step in range(steps):
        places[begin + symbols[:, :, step].ravel()] |= one << word(step)
    # Pairs come first and groups last, so that summing over pairs adds long rows.
    begin_of_first = begin.reshape(groups, size)[:, first].T
    columns = symbols.transpose(2, 1, 0)
    shape = (len(first), groups)
    plus, minus, distance = np.full(shape, ~word(0)), np.zeros(shape, word), np.zeros(shape, word)
    total = np.empty((steps, groups), np.int64)
    for step in range(steps):
        x = places[begin_of_first + columns[step][second]] | minus
        d0 = ((plus + (x & plus)) ^ plus) | x
        distance += ((d0 >> word(step)) & one) ^ one
        total[step] = distance.sum(axis=0)
        horizontal_plus, horizontal_minus = minus | ~(plus | d0), plus & d0
        x = (horizontal_plus << one) | one
        minus = x & d0
        plus = (horizontal_minus << one) | ~(x | d0)
    return total.T


def _dense(symbols: Symbols) -> Symbols:
    """The symbols, numbered anew within each group if they are so large that a table of them would be too."""
    if symbols.max() <= symbols.shape[1] * symbols.shape[2]:
        return symbols
    return np.stack([np.unique(group, return_inverse=True)[1].reshape(group.shape) for group in symbols])


def _total_by_table(symbols: Symbols) -> NDArray[np.int64]:
    """What `_total_by_bits` gives, at any T: the plain table, one row after another for all pairs at once."""
    groups, size, steps = symbols.shape
    first, second = np.triu_indices(size, 1)
    rows, columns = (np.ascontiguousarray(symbols[:, side].transpose(2, 1, 0)) for side in (first, second))
    above = np.broadcast_to(np.arange(steps + 1, dtype=np.int32)[:, None, None], (steps + 1, len(first), groups))
    total = np.empty((steps, groups), np.int64)
    for row in range(1, steps + 1):
        current = np.empty_like(above)
        current[0] = row
        for column in range(1, steps + 1):
            substituted = above[column - 1] + (rows[row - 1] != columns[column - 1])
            inserted_or_deleted = np.minimum(above[column], current[column - 1]) + 1
            np.minimum(substituted, inserted_or_deleted, out=current[column])
        total[row - 1] = current[row].sum(axis=0)
        above = current
    return total.T
