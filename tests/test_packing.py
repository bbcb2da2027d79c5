"""Packing trajectories: nothing is lost, none sees another, and the work is shared out evenly."""

import itertools
import random

import torch
from hypothesis import given
from hypothesis import strategies as st
from learners import make_batch, make_example

from train.batch import Example
from train.packing import forwarded, packs, shares

LENGTHS = st.lists(st.integers(0, 500), max_size=40)


@given(LENGTHS, st.integers(1, 6))
def test_every_item_has_one_worker_and_no_worker_has_more_than_its_share_and_one_item(
    lengths: list[int], among: int
) -> None:
    parts = shares(lengths, among)
    assert len(parts) == among
    assert sorted(index for part in parts for index in part) == list(range(len(lengths)))
    assert all(part == sorted(part) for part in parts)
    heaviest = max(sum(lengths[i] for i in part) for part in parts)
    assert heaviest <= sum(lengths) / among + max(lengths, default=0)


@given(st.integers(0, 1000), st.integers(1, 12), st.integers(1, 200))
def test_rows_hold_all_that_is_needed_in_order_and_keep_to_the_budget(seed: int, count: int, budget: int) -> None:
    batch = make_batch(seed, [1.0 + i for i in range(count)])
    rows = list(packs(batch, budget, "cpu"))
    assert [length for row in rows for length in row.lengths] == [forwarded(example) for example in batch]
    for row in rows:
        assert row.token_ids.shape == row.position_ids.shape == (1, sum(row.lengths))
        assert sum(row.lengths) <= budget or len(row.lengths) == 1
    for previous, row in itertools.pairwise(rows):
        assert sum(previous.lengths) + row.lengths[0] > budget  # none is left half empty
    examples = iter(batch)
    for row in rows:
        start = target = 0
        for length in row.lengths:
            example = next(examples)
            n = len(example.logprobs)
            assert row.token_ids[0, start : start + length].tolist() == list(example.token_ids[:length])
            assert row.position_ids[0, start : start + length].tolist() == list(range(length))
            said = [i for i, sampled in enumerate(example.policy_mask) if sampled]
            here = slice(target, target + n)
            assert row.before[here].tolist() == [start + i - 1 for i in said]
            assert row.targets[here].tolist() == [example.token_ids[i] for i in said]
            assert row.advantages[here].tolist() == [example.advantage] * n
            torch.testing.assert_close(row.sampled[here], torch.tensor(example.logprobs))
            start, target = start + length, target + n


def test_what_comes_after_the_last_sampled_token_is_not_forwarded() -> None:
    assert forwarded(Example("g", (5, 6, 7, 8, 9), (False, True, False, True, False), (-1.0, -1.0), 1.0)) == 3
    assert forwarded(Example("g", (5, 6), (False, False), (), 1.0)) == 0
    assert list(packs([], 10, "cpu")) == []


def test_a_row_takes_fewer_tokens_than_padding_would() -> None:
    batch = [make_example(random.Random(turns), turns, 1.0) for turns in range(1, 9)]
    (row,) = packs(batch, 10_000, "cpu")
    assert row.token_ids.shape[1] == sum(map(forwarded, batch)) < len(batch) * max(map(forwarded, batch))
