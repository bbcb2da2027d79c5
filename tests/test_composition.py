"""Which prompts are rolled out, and which groups are learned from."""

import random
from itertools import count as naturals
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import make_game, make_group

from collect.rollout import Task
from collect.trajectory import Decision, Group
from train.composition import batch, coin, is_flat, missing, pass_over, updated_streaks, was_cut

RNG = random.Random(0)
CUT = Decision(2, 0.1, 0.2, flagged=True, enforced=True)
KINDS = {"mixed": [True, False], "fail": [False, False], "succeed": [True, True]}


def group(kind: str, number: int = 0) -> Group:
    if kind == "cut":
        return make_group(RNG, 2, number=number, won=[False, False], decision=CUT)
    return make_group(RNG, 2, number=number, won=KINDS[kind])


def fresh_tasks() -> "list[Task]":
    return [Task(make_game(100 + number), -1) for number in range(100)]


def test_a_group_is_flat_when_it_ran_to_its_end_and_all_rewards_are_equal() -> None:
    assert [is_flat(group(kind)) for kind in ("mixed", "fail", "succeed", "cut")] == [False, True, True, False]
    assert [was_cut(group(kind)) for kind in ("mixed", "fail", "succeed", "cut")] == [False, False, False, True]


# Before the rollout


def test_streaks_count_zero_variance_groups_in_a_row_and_cut_ones_say_nothing() -> None:
    streaks: dict[str, int] = {}
    for kind, expected in (("fail", 1), ("succeed", 2), ("cut", 2), ("mixed", 0), ("cut", 0), ("fail", 1)):
        streaks = updated_streaks(streaks, [group(kind)])
        assert streaks.get(make_game(0).id, 0) == expected


def test_prompts_without_a_history_are_all_kept() -> None:
    tasks = [Task(make_game(number), 0) for number in range(10)]
    prompts = pass_over(tasks, iter(fresh_tasks()), {}, 0.1, seed=7)
    assert (prompts.tasks, prompts.skipped, prompts.drawn) == (tuple(tasks), 0, 0)


@pytest.mark.parametrize(("streak", "floor", "expected"), [(1, 0.1, 0.5), (2, 0.1, 0.25), (9, 0.1, 0.1), (9, 1.0, 1.0)])
def test_a_prompt_is_kept_with_half_the_chance_for_each_group_in_a_row_down_to_the_floor(
    streak: int, floor: float, expected: float
) -> None:
    tasks = [Task(make_game(0), visit) for visit in range(2000)]
    prompts = pass_over(tasks, iter(()), {make_game(0).id: streak}, floor, seed=7)
    assert len(prompts.tasks) / 2000 == pytest.approx(expected, abs=0.035)
    assert prompts.skipped == 2000 - len(prompts.tasks)


def test_passed_over_prompts_are_replaced_by_fresh_ones_with_the_same_coin_whenever_it_is_tossed() -> None:
    tasks = [Task(make_game(number), 3) for number in range(20)]
    streaks = {task.game.id: 3 for task in tasks}
    first, again = (pass_over(tasks, iter(fresh_tasks()), streaks, 0.01, seed=7) for _ in range(2))

    assert first == again
    assert len(first.tasks) == 20
    assert first.skipped == first.drawn > 10
    assert [task for task in first.tasks if task in tasks] == [task for task in tasks if task in first.tasks]


def test_with_nothing_but_prompts_that_teach_nothing_an_iteration_makes_do_with_fewer_groups() -> None:
    tasks = [Task(make_game(0), visit) for visit in range(5)]
    fresh = (Task(make_game(0), -1 - number) for number in naturals())
    prompts = pass_over(tasks, fresh, {make_game(0).id: 60}, 1e-9, seed=7)
    assert prompts.tasks == ()
    assert prompts.drawn == 20
    assert next(fresh).visit == -21


@given(st.text(max_size=20), st.integers(0, 2**40))
def test_a_coin_is_a_probability_that_name_purpose_and_seed_decide(name: str, seed: int) -> None:
    assert 0 <= coin(seed, "audit", name) < 1
    assert coin(seed, "audit", name) == coin(seed, "audit", name)
    assert coin(seed, "audit", name) != coin(seed, "skip", name)


# After it


def kinds_of(groups: list[Group], chosen: list[Group]) -> list[int]:
    return [groups.index(one) for one in chosen]


def test_without_fresh_groups_all_that_were_not_cut_are_learned_from() -> None:
    groups = [group(kind) for kind in ("fail", "mixed", "cut", "succeed")]
    assert kinds_of(groups, batch(groups, 4, drop_zero_variance=False)) == [0, 1, 3]
    assert kinds_of(groups, batch(groups, 4, drop_zero_variance=True)) == [1]


def test_fresh_informative_groups_take_the_places_of_cut_and_zero_variance_ones() -> None:
    groups = [group(kind) for kind in ("fail", "mixed", "cut", "mixed", "mixed")]
    assert missing(groups[:3], 3) == 2
    assert kinds_of(groups, batch(groups, 3, drop_zero_variance=False)) == [1, 3, 4]


@given(st.lists(st.sampled_from(["mixed", "fail", "succeed", "cut"]), max_size=12), st.integers(1, 8), st.booleans())
def test_a_batch_is_no_larger_than_asked_keeps_the_order_and_prefers_informative_groups(
    kinds: list[str], places: int, drop: bool
) -> None:
    informative = kinds.count("mixed")
    if informative > places:
        return  # no more fresh groups are drawn than are missing
    groups = [group(kind) for kind in kinds]
    chosen = kinds_of(groups, batch(groups, places, drop))

    assert chosen == sorted(chosen)
    assert sum(kinds[index] == "mixed" for index in chosen) == informative
    flat = kinds.count("fail") + kinds.count("succeed")
    assert len(chosen) == informative + (0 if drop else min(flat, places - informative))
    assert missing(groups, places) == places - informative


def test_the_coins_of_many_groups_are_spread_evenly() -> None:
    values = [coin(7, "audit", f"game#{number}") for number in islice(naturals(), 4000)]
    assert sum(values) / 4000 == pytest.approx(0.5, abs=0.02)
    assert sum(value < 0.2 for value in values) / 4000 == pytest.approx(0.2, abs=0.02)
