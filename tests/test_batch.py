"""What an update learns from: which trajectories, with which advantage."""

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import make_group

from collect.trajectory import Decision
from train.batch import Example, Normalisation, denominator, examples_of, group_advantages

REWARDS = st.lists(st.floats(-10, 10), min_size=2, max_size=16)
CUT = Decision(step=3, score=0.1, threshold=0.2, flagged=True, enforced=True)
AUDITED = Decision(step=3, score=0.1, threshold=0.2, flagged=True, enforced=False, audited=True)


def test_advantages_by_hand() -> None:
    # Mean 0.25, standard deviation sqrt(3)/4.
    assert group_advantages([1.0, 0.0, 0.0, 0.0]) == pytest.approx([3**0.5, *[-(3**-0.5)] * 3])


@given(REWARDS)
def test_advantages_are_rewards_in_standard_deviations_from_their_mean(rewards: list[float]) -> None:
    deviation = statistics.pstdev(rewards)
    mean = statistics.fmean(rewards)
    if max(rewards) - min(rewards) > 1e-8:
        expected = [(reward - mean) / (deviation + 1e-8) for reward in rewards]
        assert group_advantages(rewards) == pytest.approx(expected, rel=1e-6, abs=1e-6)


@given(REWARDS)
def test_advantages_sum_to_nothing_and_keep_the_order_of_rewards(rewards: list[float]) -> None:
    advantages = group_advantages(rewards)
    assert sum(advantages) == pytest.approx(0, abs=1e-5 * len(rewards))
    for r, a in zip(rewards, advantages, strict=True):
        for other_r, other_a in zip(rewards, advantages, strict=True):
            assert not (r < other_r and a > other_a)


@given(REWARDS, st.floats(0.5, 4), st.floats(-5, 5))
def test_advantages_do_not_depend_on_the_scale_of_rewards(rewards: list[float], scale: float, shift: float) -> None:
    if max(rewards) - min(rewards) > 0.1:
        moved = [reward * scale + shift for reward in rewards]
        assert group_advantages(moved) == pytest.approx(group_advantages(rewards), rel=1e-5, abs=1e-5)


@given(st.floats(-10, 10), st.integers(2, 16))
def test_equal_rewards_have_exactly_no_advantage(reward: float, size: int) -> None:
    assert group_advantages([reward] * size) == [0.0] * size


def test_examples_are_the_trajectories_of_groups_in_order() -> None:
    rng = random.Random(0)
    groups = [
        make_group(rng, 2, number=0, won=[True, False]),
        make_group(rng, 3, number=1, won=[False, True, True], decision=AUDITED),
    ]
    examples = examples_of(groups)
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    assert [example.group for example in examples] == [groups[0].id] * 2 + [groups[1].id] * 3
    assert [example.token_ids for example in examples] == [trajectory.token_ids for trajectory in trajectories]
    assert [example.logprobs for example in examples] == [trajectory.logprobs for trajectory in trajectories]
    assert [example.advantage for example in examples] == pytest.approx([1, -1, -(2**0.5), 0.5**0.5, 0.5**0.5])


def test_cut_groups_never_enter() -> None:
    rng = random.Random(1)
    cut = make_group(rng, 4, number=0, won=[True, False, False, False], decision=CUT)
    kept = make_group(rng, 4, number=1, won=[True, False, False, False])
    assert {example.group for example in examples_of([cut, kept])} == {kept.id}
    assert examples_of([cut]) == []


@pytest.mark.parametrize("won", [[True] * 3, [False] * 3])
def test_groups_without_variance_dilute_unless_they_are_dropped(won: list[bool]) -> None:
    rng = random.Random(2)
    groups = [make_group(rng, 3, number=0, won=won), make_group(rng, 3, number=1, won=[True, False, False])]
    assert [example.advantage != 0 for example in examples_of(groups)] == [False] * 3 + [True] * 3
    assert {example.group for example in examples_of(groups, drop_zero_variance=True)} == {groups[1].id}


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"policy_mask": (False, True)}, "do not fit"),
        ({"logprobs": (-1.0, -1.0)}, "do not fit"),
        ({"policy_mask": (True, False, False)}, "nothing comes before its first sampled token"),
        ({"advantage": float("nan")}, "not finite"),
        ({"logprobs": (float("-inf"),)}, "not finite"),
    ],
)
def test_an_example_that_contradicts_itself_is_refused(changes: dict[str, object], complaint: str) -> None:
    fields: dict[str, object] = {
        "group": "a#0",
        "token_ids": (1, 2, 3),
        "policy_mask": (False, False, True),
        "logprobs": (-1.0,),
        "advantage": 1.0,
    }
    with pytest.raises(ValueError, match=f"an example of group a#0: .*{complaint}"):
        Example(**fields | changes)  # type: ignore[arg-type]


def test_only_advantages_on_sampled_tokens_teach() -> None:
    assert Example("g", (1, 2), (False, True), (-1.0,), 0.5).teaches
    assert not Example("g", (1, 2), (False, True), (-1.0,), 0.0).teaches
    assert not Example("g", (1, 2), (False, False), (), 0.5).teaches


@pytest.mark.parametrize(("normalisation", "expected"), [("trajectory", 3), ("token", 5), ("constant", 2.5)])
def test_denominators_count_what_has_no_advantage_too(normalisation: Normalisation, expected: float) -> None:
    batch = [
        Example("g", (1, 2, 3), (False, True, True), (-1.0, -2.0), 1.0),
        Example("g", (1, 2, 3, 4), (False, True, True, True), (-1.0, -2.0, -3.0), 0.0),
        Example("g", (1,), (False,), (), 0.0),
    ]
    assert denominator(batch, normalisation, 2.5) == expected


@pytest.mark.parametrize("normalisation", ["trajectory", "token"])
def test_the_denominator_of_nothing_is_not_zero(normalisation: Normalisation) -> None:
    assert denominator([], normalisation) == 1
