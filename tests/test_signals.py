from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from rapidfuzz.distance import Levenshtein

from calibrate.signals import (
    END,
    PREFIX_EDIT_DISTANCE,
    SIGNALS,
    eligible,
    prefix_edit_distance,
    prefix_edit_distance_at,
    termination_fraction,
)

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
