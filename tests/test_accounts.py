"""What an iteration cost, and what was saved: by hand."""

import random
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import beta
from synthetic import make_group

from collect.trajectory import Decision, Group, Trajectory
from train.accounts import (
    mean_reward,
    steps_taken,
    success,
    tokens_sampled,
    tokens_skipped_by_gate,
    tokens_skipped_by_prompts,
)

RNG = random.Random(3)
CUT = Decision(2, 0.1, 0.2, flagged=True, enforced=True)


def cut_group() -> Group:
    """Two trajectories were running at K = 2, one had won."""
    group = make_group(RNG, 3, 6, actions=[["a", "b"]] * 3, won=[False, False, True], decision=CUT)
    ended = [t if t.won else replace(t, ending="cut") for t in group.trajectories]
    return replace(group, trajectories=tuple(ended))


def tokens_after(trajectory: Trajectory, step: int) -> int:
    return sum(step.reply_tokens for step in trajectory.steps[step:])


def test_tokens_and_steps_are_those_of_all_trajectories() -> None:
    groups = [make_group(RNG, 2, 6, actions=[["a"] * 3, ["b"] * 5], won=[True, False]), cut_group()]
    assert steps_taken(groups) == 3 + 5 + 6
    assert tokens_sampled(groups) == sum(sum(t.policy_mask) for g in groups for t in g.trajectories)


def test_what_a_cut_skipped_is_what_others_sampled_past_k() -> None:
    other = make_group(RNG, 3, 6, actions=[["a"] * 6, ["b"] * 4, ["c"]], won=[False, True, True])
    mean = (tokens_after(other.trajectories[0], 2) + tokens_after(other.trajectories[1], 2)) / 2
    assert tokens_skipped_by_gate([cut_group(), other]) == pytest.approx(2 * mean)
    assert tokens_skipped_by_gate([other]) == 0


def test_where_every_group_was_cut_it_is_what_they_sampled_up_to_the_horizon() -> None:
    group = cut_group()
    so_far = sum(len(t.logprobs) for t in group.trajectories if t.ending == "cut")
    assert tokens_skipped_by_gate([group]) == pytest.approx(so_far / 2 * 4)


def test_a_prompt_passed_over_skips_as_much_as_an_uncut_group_took() -> None:
    groups = [make_group(RNG), make_group(RNG), cut_group()]
    assert tokens_skipped_by_prompts(groups, 3) == pytest.approx(3 * tokens_sampled(groups[:2]) / 2)
    assert tokens_skipped_by_prompts([cut_group()], 3) == 0


def test_success_is_of_uncut_groups_each_of_which_is_one_draw() -> None:
    groups = [make_group(RNG, 4, won=[True, False, False, False]), make_group(RNG, 4, won=[True] * 4), cut_group()]
    found = success(groups)
    assert found.value == pytest.approx(5 / 8)
    assert found.low == pytest.approx(beta.ppf(0.025, 1.25, 1.75))
    assert found.high == pytest.approx(beta.ppf(0.975, 2.25, 0.75))
    assert mean_reward(groups) == pytest.approx(5 / 8)


def test_without_an_uncut_group_rates_are_not_known() -> None:
    assert np.isnan(success([cut_group()]).value)
    assert mean_reward([cut_group()]) is None
