"""Sampling from logits, against frequencies computed by hand."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from collect.engine import Sampling
from collect.engine_transformers import sample
from collect.errors import InputError

GRID = 400  # evenly spaced uniform numbers: a token of probability p is drawn p · GRID times, give or take one


def draw(logits: list[float], sampling: Sampling) -> tuple[Counter[int], dict[int, float]]:
    rows = torch.tensor([logits] * GRID)
    drawn = sample(rows, [sampling] * GRID, [(i + 0.5) / GRID for i in range(GRID)])
    return Counter(token for token, _ in drawn), dict(drawn)


def distribution(logits: list[float], sampling: Sampling) -> NDArray[np.float64]:
    """The distribution that the settings stand for, in plain numpy."""
    x = np.array(logits, dtype=np.float64) / sampling.temperature
    p = np.exp(x - x.max())
    p /= p.sum()
    order = np.argsort(-p, kind="stable")
    kept = order[: int((np.cumsum(p[order]) < sampling.top_p).sum()) + 1]
    q: NDArray[np.float64] = np.zeros_like(p)
    q[kept] = p[kept] / p[kept].sum()
    return q


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(-4, 4), min_size=2, max_size=8, unique_by=lambda x: round(x, 2)),
    st.floats(0.3, 2.0),
    st.sampled_from([1.0, 0.9, 0.5, 0.01]),
)
def test_tokens_are_drawn_with_the_right_probability_and_log_probability(
    logits: list[float], temperature: float, top_p: float
) -> None:
    sampling = Sampling(temperature, top_p)
    expected = distribution(logits, sampling)
    if np.any(np.abs(np.cumsum(np.sort(expected)[::-1]) - top_p) < 1e-5):
        return  # which token is the last of the nucleus hangs on the last bit
    counts, logprobs = draw(logits, sampling)
    for token, p in enumerate(expected):
        assert abs(counts[token] - p * GRID) <= 1
    for token, logprob in logprobs.items():
        assert logprob == pytest.approx(np.log(expected[token]), abs=1e-4)


def test_temperature_0_takes_the_largest_logit_at_its_untempered_log_probability() -> None:
    counts, logprobs = draw([0.0, 1.0, 0.5], Sampling(0.0))
    assert counts == {1: GRID}
    assert logprobs[1] == pytest.approx(np.log(np.e / (1 + np.e + np.e**0.5)), abs=1e-6)


def test_a_nucleus_wider_than_the_first_look_is_found_whole() -> None:
    (token, logprob), *_ = sample(torch.zeros(1, 4000), [Sampling(1.0, 0.9)], [0.999])
    assert logprob == pytest.approx(-np.log(3600), abs=2e-3)
    assert 0 <= token < 4000


@pytest.mark.parametrize("bad", [{"temperature": -1}, {"top_p": 0}, {"top_p": 1.1}, {"max_tokens": 0}])
def test_settings_out_of_range_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(InputError, match="must be"):
        Sampling(**bad)  # type: ignore[arg-type]
