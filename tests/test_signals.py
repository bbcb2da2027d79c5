import math
from collections.abc import Callable, Sequence
from itertools import combinations, pairwise, permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from rapidfuzz.distance import Levenshtein

from calibrate.edit_distance import prefix_edit_distance, prefix_edit_distance_at
from calibrate.experience import eligible, termination_fraction
from calibrate.prefixes import END, Deeds, Prefix, Views, renumbered
from calibrate.signals import BY_NAME, PREFIX_EDIT_DISTANCE, REGISTRY, SIGNALS, Signal

Group = list[list[str]]

# Few distinct actions, so that trajectories share some; among them the empty one, and ones outside ASCII and the BMP.
ACTIONS = st.one_of(st.sampled_from(["look", "go to desk 1", "", "✗", "🍎 nehmen", "a", "b"]), st.text(max_size=3))


@st.composite
def groups(draw: st.DrawFn, max_horizon: int = 40) -> tuple[list[Group], int]:
    """Some groups of one size and the horizon; trajectories end anywhere, also at 0."""
    size, horizon = draw(st.integers(2, 5)), draw(st.integers(1, max_horizon))
    alphabet = draw(st.lists(ACTIONS, min_size=1, max_size=6, unique=True))
    trajectory = st.lists(st.sampled_from(alphabet), max_size=horizon)
    group = st.lists(trajectory, min_size=size, max_size=size)
    return draw(st.lists(group, min_size=1, max_size=4)), horizon


def symbols_of(some: list[Group], horizon: int) -> NDArray[np.int32]:
    """Number each group's actions from 1, in order of appearance."""
    array = np.full((len(some), len(some[0]), horizon), END, np.int32)
    for g, group in enumerate(some):
        numbers: dict[str, int] = {}
        for i, actions in enumerate(group):
            for k, action in enumerate(actions):
                array[g, i, k] = numbers.setdefault(action, len(numbers) + 1)
    return array


def by_rapidfuzz(group: Group, step: int) -> float:
    """The definition: pad with one END symbol that no action equals, average Levenshtein / K over the pairs."""
    # In tuples, because rapidfuzz compares elements of a list by hash, where "" and "\0" are both 0.
    padded = [([(action,) for action in actions[:step]] + [()] * step)[:step] for actions in group]
    distances = [Levenshtein.distance(a, b) for a, b in combinations(padded, 2)]
    return sum(distances) / (len(distances) * step)


def levenshtein_by_recursion(a: str, b: str) -> int:
    if not a or not b:
        return len(a) + len(b)
    return min(
        levenshtein_by_recursion(a[1:], b) + 1,
        levenshtein_by_recursion(a, b[1:]) + 1,
        levenshtein_by_recursion(a[1:], b[1:]) + (a[0] != b[0]),
    )


@given(groups())
@settings(max_examples=150, deadline=None)
def test_every_step_of_the_sweep_equals_rapidfuzz_on_padded_prefixes(drawn: tuple[list[Group], int]) -> None:
    some, horizon = drawn
    swept = prefix_edit_distance(symbols_of(some, horizon))
    expected = [[by_rapidfuzz(group, step) for step in range(1, horizon + 1)] for group in some]
    assert swept.tolist() == expected


@pytest.mark.parametrize("horizon", [31, 32, 33, 63, 64, 65, 80])
def test_the_sweep_equals_rapidfuzz_at_every_word_size_and_beyond(horizon: int) -> None:
    rng = np.random.default_rng(horizon)
    some = [
        [[str(a) for a in rng.integers(0, 4, rng.integers(horizon // 2, horizon + 1))] for _ in range(3)]
        for _ in range(6)
    ]
    swept = prefix_edit_distance(symbols_of(some, horizon))
    expected = [[by_rapidfuzz(group, step) for step in range(1, horizon + 1)] for group in some]
    assert swept.tolist() == expected


def test_the_sweep_of_more_pairs_than_fit_at_once_equals_the_sweep_of_each_group() -> None:
    rng = np.random.default_rng(3)
    symbols = rng.integers(0, 5, (700, 8, 4)).astype(np.int32)  # 19,600 pairs
    whole = prefix_edit_distance(symbols)
    alone = np.vstack([prefix_edit_distance(symbols[g : g + 1]) for g in range(0, 700, 23)])
    assert whole[::23].tolist() == alone.tolist()


def test_only_equality_of_symbols_within_a_group_matters() -> None:
    rng = np.random.default_rng(4)
    symbols = rng.integers(0, 6, (20, 4, 9)).astype(np.int32)
    names = rng.choice(2**31 - 1, (20, 6), replace=False).astype(np.int32)
    names[:, 0] = END
    renamed = np.take_along_axis(names, symbols.reshape(20, -1), axis=1).reshape(symbols.shape)
    assert prefix_edit_distance(renamed).tolist() == prefix_edit_distance(symbols).tolist()


def test_short_words_equal_the_recursive_definition_of_levenshtein() -> None:
    for a, b in permutations(["kitten", "sittin", "tsikne", "eeeeee"], 2):
        swept = prefix_edit_distance(symbols_of([[list(a), list(b)]], 6))[0]
        assert swept.tolist() == [levenshtein_by_recursion(a[:k], b[:k]) / k for k in range(1, 7)]


def test_two_trajectories_that_ended_agree_on_what_follows() -> None:
    swept = prefix_edit_distance(symbols_of([[["a"], ["a"], ["a", "b"]]], 3))[0]
    # K = 1: all alike. K = 2: END against b in two of three pairs. K = 3: the same distance over three steps.
    assert swept.tolist() == [0.0, 2 / 6, 2 / 9]


@given(groups(max_horizon=12))
@settings(max_examples=100, deadline=None)
def test_one_live_group_scores_exactly_as_the_sweep_does(drawn: tuple[list[Group], int]) -> None:
    some, horizon = drawn
    swept = prefix_edit_distance(symbols_of(some, horizon))
    for step in range(1, horizon + 1):
        live = [prefix_edit_distance_at(group, step) for group in some]
        assert live == swept[:, step - 1].tolist()


@given(groups(max_horizon=20))
@settings(max_examples=50, deadline=None)
def test_scores_lie_on_the_lattice_and_in_the_declared_range(drawn: tuple[list[Group], int]) -> None:
    some, horizon = drawn
    swept = prefix_edit_distance(symbols_of(some, horizon))
    pairs = len(some[0]) * (len(some[0]) - 1) // 2
    numerators = swept * pairs * np.arange(1, horizon + 1)
    assert np.allclose(numerators, np.round(numerators), atol=1e-9)
    assert swept.min() >= PREFIX_EDIT_DISTANCE.lowest
    assert swept.max() <= PREFIX_EDIT_DISTANCE.highest


# Every signal


COMMAND_SETS = (("look",), ("look", "inventory"), ("go to desk 1", "look"))


@st.composite
def rolled_out(draw: st.DrawFn) -> tuple[list[list[Prefix]], int]:
    """Some groups of one size with all that a signal can read, and the horizon."""
    some, horizon = draw(groups(max_horizon=9))
    rng = draw(st.randoms(use_true_random=False))

    def prefix(actions: list[str]) -> Prefix:
        tokens = [rng.randint(0, 4) for _ in actions]
        return Prefix(
            actions=actions,
            observations=[rng.choice(["You see a mug.", "", "Nothing happens.", "🍎"]) for _ in actions],
            commands=[rng.sample(known, len(known)) for known in (rng.choice(COMMAND_SETS) for _ in actions)],
            refused=[rng.random() < 0.3 for _ in actions],
            logprobs=[-rng.random() * count for count in tokens],
            tokens=tokens,
        )

    return [[prefix(actions) for actions in group] for group in some], horizon


def in_bulk(some: list[list[Prefix]], horizon: int) -> dict[str, Deeds | Views]:
    """The same groups as the arrays that a sweep reads."""
    lengths = np.array([[len(p.actions) for p in group] for group in some], np.int32)
    taken = np.arange(horizon) < lengths[:, :, None]

    def numbers(things: list[list[list[Any]]], kind: type = float) -> NDArray[Any]:
        array: NDArray[Any] = np.zeros(taken.shape, kind)
        for g, group in enumerate(things):
            for i, row in enumerate(group):
                array[g, i, : len(row)] = row
        return array

    def symbols(things: list[list[list[Any]]]) -> NDArray[np.int32]:
        kinds = {thing: n for n, thing in enumerate({thing for group in things for row in group for thing in row})}
        return renumbered(numbers([[[kinds[thing] for thing in row] for row in group] for group in things]), taken)

    return {
        "deeds": Deeds(
            lengths=lengths,
            actions=symbols([[list(p.actions) for p in group] for group in some]),
            verbs=symbols([[[(a.split() or [""])[0] for a in p.actions] for p in group] for group in some]),
        ),
        "views": Views(
            lengths=lengths,
            observations=symbols([[list(p.observations) for p in group] for group in some]),
            commands=symbols([[[frozenset(c) for c in p.commands] for p in group] for group in some]),
            refused=numbers([[list(p.refused) for p in group] for group in some], bool),
            logprobs=numbers([[list(p.logprobs) for p in group] for group in some]),
            tokens=numbers([[list(p.tokens) for p in group] for group in some], int),
        ),
    }


def padded(words: Sequence[str], step: int) -> list[tuple[str, ...]]:
    filled: list[tuple[str, ...]] = [(word,) for word in words[:step]]
    return (filled + [()] * step)[:step]


def over_pairs(things: list[Any], distance: Callable[[Any, Any], float]) -> float:
    found = [distance(a, b) for a, b in combinations(things, 2)]
    return sum(found) / len(found)


def jaccard(a: set[Any], b: set[Any]) -> float:
    return 0.0 if not a | b else 1 - len(a & b) / len(a | b)


def shannon(symbols: list[Any]) -> float:
    shares = [symbols.count(kind) / len(symbols) for kind in set(symbols)]
    return -sum(share * math.log2(share) for share in shares) / math.log2(len(symbols))


def pooled(rows: list[list[float]], over: list[list[float]]) -> float:
    return sum(map(sum, rows)) / sum(map(sum, over)) if sum(map(sum, over)) else 0.0


def returns(observations: Sequence[str]) -> list[float]:
    return [float(observations[k] in observations[:k]) for k in range(len(observations))]


# Each signal by the words of its definition, of one group at one K, sharing nothing with the code under test.
DEFINITIONS: dict[str, Callable[[list[Prefix], int], float]] = {
    "prefix_edit_distance_mean": lambda group, k: by_rapidfuzz([list(p.actions) for p in group], k),
    "action_bigram_jaccard_mean": lambda group, k: over_pairs(
        [set(pairwise(padded(p.actions, k))) for p in group], jaccard
    ),
    "unique_prefix_ratio": lambda group, k: len({tuple(padded(p.actions, k)) for p in group}) / len(group),
    "unique_action_ratio": lambda group, k: len({padded(p.actions, k)[k - 1] for p in group}) / len(group),
    "action_entropy": lambda group, k: shannon([padded(p.actions, k)[k - 1] for p in group]),
    "obs_unique_ratio": lambda group, k: len({padded(p.observations, k)[k - 1] for p in group}) / len(group),
    "termination_fraction": lambda group, k: sum(len(p.actions) <= k - 1 for p in group) / len(group),
    "verb_edit_distance_mean": lambda group, k: by_rapidfuzz(
        [[(a.split() or [""])[0] for a in p.actions] for p in group], k
    ),
    "action_set_jaccard_mean": lambda group, k: over_pairs([set(p.actions[:k]) for p in group], jaccard),
    "observations_reached": lambda group, k: sum(len(set(p.observations[:k])) / k for p in group) / len(group),
    "commands_reached": lambda group, k: (
        sum(len({frozenset(c) for c in p.commands[:k]}) / k for p in group) / len(group)
    ),
    "repetition": lambda group, k: pooled(
        [returns(p.observations[:k]) for p in group], [[1.0] * len(p.observations[:k]) for p in group]
    ),
    "refused_share": lambda group, k: pooled(
        [[float(r) for r in p.refused[:k]] for p in group], [[1.0] * len(p.refused[:k]) for p in group]
    ),
    "mean_logprob": lambda group, k: pooled(
        [list(p.logprobs[:k]) for p in group], [[float(t) for t in p.tokens[:k]] for p in group]
    ),
}


def test_every_registered_signal_has_a_definition_here_and_a_column_with_its_meaning_and_range() -> None:
    assert [signal.name for signal in REGISTRY] == list(DEFINITIONS)
    columns = {column.name: column for column in SIGNALS.columns}
    for signal in REGISTRY:
        assert signal.meaning in columns[signal.name].comment
        assert signal.alike in ("low", "high")


@pytest.mark.parametrize("signal", REGISTRY, ids=lambda signal: signal.name)
@given(drawn=rolled_out())
@settings(max_examples=40, deadline=None)
def test_swept_and_live_a_signal_is_what_its_definition_says(
    signal: Signal, drawn: tuple[list[list[Prefix]], int]
) -> None:
    some, horizon = drawn
    swept = signal.sweep(in_bulk(some, horizon)[signal.source])
    assert swept.shape == (len(some), horizon)
    for step in range(1, horizon + 1):
        expected = [DEFINITIONS[signal.name](group, step) for group in some]
        assert swept[:, step - 1] == pytest.approx(expected, abs=1e-12)
        assert [signal.at_step(group, step) for group in some] == pytest.approx(expected, abs=1e-12)
        assert all(signal.lowest - 1e-12 <= value <= signal.highest + 1e-12 for value in expected)


@pytest.mark.parametrize("signal", REGISTRY, ids=lambda signal: signal.name)
def test_many_groups_at_once_score_as_each_does_alone(signal: Signal) -> None:
    rng = np.random.default_rng(5)
    shape = (1100, 4, 6)
    lengths = rng.integers(0, 7, shape[:2]).astype(np.int32)
    taken = np.arange(6) < lengths[:, :, None]
    symbols = [renumbered(rng.integers(0, 5, shape), taken) for _ in range(2)]

    def part(rows: slice) -> Deeds | Views:
        if signal.source == "deeds":
            return Deeds(lengths[rows], symbols[0][rows], symbols[1][rows])
        tokens = np.where(taken, symbols[0], 0).astype(np.int64)[rows]
        return Views(lengths[rows], symbols[0][rows], symbols[1][rows], symbols[0][rows] == 2, -tokens / 7, tokens)

    whole = signal.sweep(part(slice(None)))
    for row in range(0, 1100, 97):
        assert signal.sweep(part(slice(row, row + 1)))[0] == pytest.approx(whole[row], abs=1e-12)


def test_a_small_group_by_hand() -> None:
    ways = [["go", "take"], ["go", "go", "take"]]
    group = [
        Prefix(
            way, ["a", "b", "a"][: len(way)], [["x"]] * len(way), [True] * len(way), [-2.0] * len(way), [4] * len(way)
        )
        for way in ways
    ]

    def at(name: str, step: int) -> float:
        return BY_NAME[name].at_step(group, step)

    # At K = 3: {(go, take), (take, END)} and {(go, go), (go, take)} share one of three pairs.
    assert at("action_bigram_jaccard_mean", 3) == pytest.approx(2 / 3)
    assert at("action_set_jaccard_mean", 2) == 0.5
    assert at("termination_fraction", 3) == 0.5
    assert at("repetition", 3) == pytest.approx(1 / 5)
    assert at("observations_reached", 3) == pytest.approx(2 / 3)
    assert at("commands_reached", 2) == 0.5
    assert at("refused_share", 2) == 1.0
    assert at("mean_logprob", 1) == -0.5
    assert at("action_entropy", 2) == 1.0


def test_a_trajectory_that_ends_exactly_at_the_step_is_not_terminated_and_not_running() -> None:
    lengths = np.array([[2, 2, 5, 1], [2, 1, 1, 0]], np.int32)
    steps = np.array([1, 2, 3])
    assert termination_fraction(lengths, steps).tolist() == [[0.0, 0.25, 0.75], [0.25, 0.75, 1.0]]
    assert eligible(lengths, steps).tolist() == [[True, True, True], [True, False, False]]


def test_every_column_of_the_signals_table_is_described_and_the_key_is_among_them() -> None:
    names = SIGNALS.arrow.names
    assert set(SIGNALS.key) <= set(names)
    assert PREFIX_EDIT_DISTANCE.name in names
    assert all(column.comment for column in SIGNALS.columns)
