"""How fast the divergence signals are: `python benchmarks/divergence.py`.

Measures, in one process on one core, the sweep over all steps against rapidfuzz asked once per step, and the latency of
one live decision. The two are compared for equality first. Times are the best of several rounds.
"""

import argparse
import timeit
from collections.abc import Callable
from functools import partial
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from rapidfuzz.distance import Levenshtein

from calibrate.edit_distance import prefix_edit_distance, prefix_edit_distance_at
from calibrate.prefixes import END


def make_groups(groups: int, size: int, horizon: int, rng: np.random.Generator) -> NDArray[np.int32]:
    """Groups whose trajectories share an opening of random length; half of them end before the horizon."""
    own = rng.integers(1, 60, (groups, size, horizon))
    shared = rng.integers(1, 60, (groups, 1, horizon))
    step = np.arange(horizon)
    actions = np.where(step < rng.integers(0, horizon // 2 + 1, (groups, size, 1)), shared, own)
    early = rng.integers(horizon // 5, horizon + 1, (groups, size, 1))
    lengths = np.where(rng.random((groups, size, 1)) < 0.5, horizon, early)
    return np.where(step < lengths, actions, END).astype(np.int32)


def by_rapidfuzz(symbols: NDArray[np.int32]) -> NDArray[np.float64]:
    """The same signal, one rapidfuzz call per pair and step, on strings (its fastest input)."""
    _, size, horizon = symbols.shape
    pairs = list(combinations(range(size), 2))
    out = np.empty((len(symbols), horizon))
    for g, group in enumerate(symbols.tolist()):
        words = ["".join(map(chr, row)) for row in group]
        for step in range(1, horizon + 1):
            cut = [word[:step] for word in words]
            out[g, step - 1] = sum(Levenshtein.distance(cut[i], cut[j]) for i, j in pairs) / (len(pairs) * step)
    return out


def best_seconds(work: Callable[[], object], rounds: int = 7) -> float:
    """Seconds of the fastest of several rounds, each long enough for the clock."""
    timer = timeit.Timer(work)
    number, _ = timer.autorange()
    return min(timer.repeat(rounds, number)) / number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=200)
    parser.add_argument("--size", type=int, default=8)
    parser.add_argument("--horizons", type=int, nargs="+", default=[30, 50, 64, 80])
    parser.add_argument("--step", type=int, default=10, help="K of the live decision")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    print(f"{options.groups} groups of {options.size}")
    for horizon in options.horizons:
        symbols = make_groups(options.groups, options.size, horizon, rng)
        assert np.array_equal(prefix_edit_distance(symbols), by_rapidfuzz(symbols))
        sweep = best_seconds(partial(prefix_edit_distance, symbols))
        single = best_seconds(partial(by_rapidfuzz, symbols), rounds=3)
        print(
            f"all K = 1 to {horizon}: {options.groups / sweep:9,.0f} groups/s, rapidfuzz per K "
            f"{options.groups / single:7,.0f}, ratio {single / sweep:.1f}"
        )
    symbols = make_groups(1, options.size, options.step, rng)[0]
    prefixes = [[f"go to cabinet {a}" for a in row if a != END] for row in symbols.tolist()]
    live = best_seconds(partial(prefix_edit_distance_at, prefixes, options.step))
    print(f"one live score at K = {options.step}: {1e6 * live:.0f} µs")


if __name__ == "__main__":
    main()
