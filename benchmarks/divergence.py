"""How fast the signals are: `python benchmarks/divergence.py`.

Measures, in one process on one core, the sweep of the prefix edit distance over all steps against rapidfuzz asked once
per step (the two are compared for equality first), the sweep of every signal, and the latency of one live decision by
one signal, by each, and by a learned gate on all. Times are the best of several rounds.
"""

import argparse
import timeit
from collections.abc import Callable
from functools import partial
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from rapidfuzz.distance import Levenshtein

from calibrate.edit_distance import prefix_edit_distance
from calibrate.prefixes import END, Deeds, Prefix, Views
from calibrate.rules import Learned, Term, Threshold
from calibrate.signals import BY_NAME, REGISTRY


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
    horizon = options.horizons[0]
    symbols = make_groups(options.groups, options.size, horizon, rng)
    sources = as_sources(symbols, rng)
    live = live_group(make_groups(1, options.size, options.step, rng)[0])
    print(f"every signal: groups/s over all K = 1 to {horizon}, and one live score at K = {options.step}")
    for signal in REGISTRY:
        sweep = best_seconds(partial(signal.sweep, sources[signal.source]))
        single = best_seconds(partial(signal.at_step, live, options.step))
        print(f"  {signal.name:28} {options.groups / sweep:9,.0f} groups/s  {1e6 * single:5.0f} µs")
    rule = Learned(
        step=options.step,
        threshold=0.5,
        intercept=0.0,
        terms=tuple(Term(signal=signal.name, mean=0.5, scale=1.0, weight=0.1) for signal in REGISTRY),
    )
    for name, chosen in (("one signal", prefix_rule(options.step)), ("all signals, learned", rule)):
        print(f"one live decision, {name}: {1e6 * best_seconds(partial(decide, chosen, live)):.0f} µs")


def as_sources(symbols: NDArray[np.int32], rng: np.random.Generator) -> dict[str, Deeds | Views]:
    """The groups as what signals sweep over, with observations and the rest to go with their actions."""
    taken = symbols != END
    lengths = taken.sum(axis=2).astype(np.int32)
    tokens = np.where(taken, 6, 0)
    seen = np.where(taken, symbols % 23 + 1, END).astype(np.int32)
    return {
        "deeds": Deeds(lengths, symbols, np.where(taken, symbols % 7 + 1, END).astype(np.int32)),
        "views": Views(lengths, seen, seen, taken & (symbols % 5 == 0), -rng.random(taken.shape) * tokens, tokens),
    }


def live_group(symbols: NDArray[np.int32]) -> list[Prefix]:
    """One group as a live gate is given it."""
    rows = [[a for a in row if a != END] for row in symbols.tolist()]
    return [
        Prefix(
            actions=[f"go to cabinet {a}" for a in row],
            observations=[f"On the cabinet {a}, you see a mug {a % 5}." for a in row],
            commands=[[f"go to cabinet {n}" for n in range(a % 20)] for a in row],
            refused=[a % 5 == 0 for a in row],
            logprobs=[-0.1 * (a % 7) for a in row],
            tokens=[6] * len(row),
        )
        for row in rows
    ]


def prefix_rule(step: int) -> Threshold:
    """The paper's gate."""
    return Threshold(signal=REGISTRY[0].name, step=step, threshold=0.1)


def decide(rule: Threshold | Learned, prefixes: list[Prefix]) -> bool:
    """What `Gate.decide` does once it knows that the prefixes fit."""
    values = {name: BY_NAME[name].at_step(prefixes, rule.step) for name in rule.signals}
    return bool(rule.judge(values, rule.step)[2])


if __name__ == "__main__":
    main()
